// ridge runs: what has been trained here.
#include <filesystem>
#include <memory>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/terminal.h"
#include "cli/command.h"
#include "train/run_table.h"

namespace ridge::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsualFolder = "runs";

struct RunsArguments {
  std::string folder = kUsualFolder;
  bool json = false;
};

int list_runs(const RunsArguments& arguments) {
  std::error_code ignored;
  if (!fs::exists(arguments.folder, ignored) && arguments.folder != kUsualFolder)  // that one is missing until the first run
    fail(ErrorCode::io, "[runs] there is no folder {}; name the one that holds the runs", arguments.folder);
  if (fs::exists(arguments.folder, ignored) && !fs::is_directory(arguments.folder, ignored))
    fail(ErrorCode::io, "[runs] {} is no folder; name the one that holds the runs", arguments.folder);
  std::vector<ExperimentRun> runs;
  for (const fs::path& path : find_runs(arguments.folder)) runs.push_back(read_experiment_run(path));
  const std::vector<RunGroup> groups = group_seeds(std::move(runs));
  if (arguments.json)
    fmt::print("{}\n", run_document(groups).dump(2));
  else if (groups.empty())
    fmt::print("No runs in {}. `ridge train gpt` makes one.\n", arguments.folder);
  else
    fmt::print("{}", run_table(groups, terminal_width()));
  return kOk;
}

const Command runs_command("runs", "list the runs in a folder", [](Line line) {
  auto arguments = std::make_shared<RunsArguments>();
  line.default_word("DIR", arguments->folder, "where they are");
  line.flag("--json", arguments->json, "one JSON document");
  return [arguments] { return list_runs(*arguments); };
});

}  // namespace
}  // namespace ridge::cli
