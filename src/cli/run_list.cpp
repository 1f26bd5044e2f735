#include "cli/run_list.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/terminal.h"
#include "base/text.h"
#include "train/run_table.h"

namespace ridge::cli {

std::vector<RunGroup> read_groups(const std::vector<std::filesystem::path>& folders) {
  std::vector<ExperimentRun> runs;
  for (const std::filesystem::path& folder : folders) {
    runs.push_back(read_experiment_run(folder));
    if (!runs.back().damage.empty()) fmt::print(stderr, "ridge: {}\n", printable(runs.back().damage));
  }
  return group_seeds(std::move(runs));
}

void print_groups(const std::vector<RunGroup>& groups, bool json) {
  // A folder name may contain any bytes; JSON must be UTF-8.
  if (json)
    fmt::print("{}\n", run_document(groups).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  else
    fmt::print("{}", run_table(groups, terminal_width()));
}

}  // namespace ridge::cli
