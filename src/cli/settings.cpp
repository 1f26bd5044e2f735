#include "cli/settings.h"

#include <memory>

#include <fmt/core.h>

#include "base/error.h"
#include "base/nearest.h"

namespace ridge::cli {

std::function<config::Sources()> add_settings(Line line, unsigned task) {
  auto files = std::make_shared<std::vector<std::string>>();
  line.repeated_option("--config", *files, "a configuration file (.ini, .yaml, .json); may be repeated, the last one wins");
  line.allow_rest();
  line.footer("Settings are written as key=value, --key=value or --key value; ridge config keys lists them.");
  return [files, task, line] {
    config::Sources sources;
    sources.task = task;
    sources.files.assign(files->begin(), files->end());
    sources.environment = config::process_environment();
    sources.words = line.rest();
    return sources;
  };
}

void check_task(const std::string& task) {
  constexpr std::string_view tasks[] = {"gpt"};
  if (task != tasks[0]) fail(ErrorCode::usage, "unknown task '{}'; {}", task, nearest_hint(task, tasks));
}

void note_unused(const config::Resolved& settings, std::string_view command) {
  for (const config::Row& row : settings.describe({}))
    if (row.source == "command line" && row.key->used_by.find(command) == std::string_view::npos)
      fmt::print(stderr, "ridge: {}={} has no effect on ridge {}\n", row.key->name, row.value, command);
}

ThreadRequest thread_request(const config::Resolved& settings) {
  ThreadRequest request;
  request.threads = settings.get<std::string>("threads");
  request.affinity = parse_affinity(settings.get<std::string>("affinity"));
  request.wait = parse_wait(settings.get<std::string>("wait"));
  request.source = settings.setting("threads").source;
  request.measure = settings.get<bool>("optimize_perf");
  return request;
}

}  // namespace ridge::cli
