// ridge runs: lists the runs in a folder.
#include <filesystem>
#include <memory>

#include <fmt/core.h>

#include "base/error.h"
#include "cli/command.h"
#include "cli/run_list.h"
#include "tasks/registry.h"

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
  if (!fs::exists(arguments.folder, ignored) && arguments.folder != kUsualFolder)  // the usual folder does not exist before the first run
    fail(ErrorCode::io, "[runs] there is no folder {}; name the one that contains the runs", arguments.folder);
  if (fs::exists(arguments.folder, ignored) && !fs::is_directory(arguments.folder, ignored))
    fail(ErrorCode::io, "[runs] {} is not a folder; name the one that contains the runs", arguments.folder);
  const std::vector<RunGroup> groups = read_groups(find_runs(arguments.folder));
  if (groups.empty() && !arguments.json)
    fmt::print("No runs in {}. `ridge train {}` makes one.\n", arguments.folder, tasks().front().name);
  else
    print_groups(groups, arguments.json);
  return kOk;
}

const Command runs_command("runs", "list the runs in a folder", [](Line line) {
  auto arguments = std::make_shared<RunsArguments>();
  line.default_word("DIR", arguments->folder, "folder of the runs");
  line.flag("--json", arguments->json, "print one JSON document");
  return [arguments] { return list_runs(*arguments); };
});

}  // namespace
}  // namespace ridge::cli
