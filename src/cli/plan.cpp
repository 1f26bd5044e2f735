// ridge plan: shows the memory, time and decisions of a training, without allocating or training anything.
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/settings.h"
#include "measure/default_team.h"
#include "tasks/registry.h"
#include "train/parts.h"
#include "train/plan_report.h"

namespace ridge::cli {
namespace {

// Groups the unfinished runs by plan. Runs of one data set that have not begun share a plan.
std::vector<std::vector<Part>> by_plan(const std::vector<Part>& parts) {
  std::vector<std::vector<Part>> groups;
  for (const Part& part : parts) {
    if (part.finished) {
      fmt::print(stderr, "{} is finished\n", part.folder.string());
      continue;
    }
    const Part* last = groups.empty() ? nullptr : &groups.back().back();
    if (last && !last->begun && !part.begun && last->data == part.data && last->seed + 1 == part.seed)
      groups.back().push_back(part);
    else
      groups.push_back({part});
  }
  return groups;
}

std::unique_ptr<TaskRun> plan_part(const Task& task, const Part& part, const config::Resolved& settings) {
  if (part.begun && !newest_state(part.folder))
    fail(ErrorCode::usage, "[plan] {} has no checkpoint to resume from; plan without --resume, or name one of the runs that ridge runs lists",
         part.folder.string());
  RunOptions options;
  options.data = part.data, options.seed = part.seed, options.resume = part.begun;
  if (part.begun) options.folder = part.folder;
  options.measure = settings.get<bool>("optimize_perf");
  options.probe = true;
  return task.plan(settings, options);
}

// Plans several runs, which would be trained one after another.
void plan_all(const Task& task, const std::vector<Part>& parts, const config::Sources& sources, const TerminalStyle& style, bool json) {
  nlohmann::ordered_json document;
  double seconds = 0;
  size_t runs = 0;
  for (const std::vector<Part>& group : by_plan(parts)) {
    const uint64_t first = group.front().seed, last = group.back().seed;
    const std::unique_ptr<TaskRun> run = plan_part(task, group.front(), settings_of(group.front(), sources));
    if (json) {
      document["runs"].push_back({{"data", group.front().data}, {"seeds", nlohmann::json::array()}, {"plan", nlohmann::ordered_json::parse(plan_json(*run))}});
      for (const Part& part : group) document["runs"].back()["seeds"].push_back(part.seed);
    } else {
      fmt::print("{}{}, {}\n\n{}", runs ? "\n" : "", group.front().data,
                 first == last ? fmt::format("seed {}", first) : fmt::format("seeds {} to {}, each", first, last), plan_text(*run, style));
    }
    seconds += double(group.size()) * run->expected_total(), runs += group.size();
  }
  document["expected_seconds"] = seconds;
  if (json)
    fmt::print("{}\n", document.dump(2));
  else if (seconds > 0)
    fmt::print("\nExpected: {} for {}\n", duration_text(seconds), runs == 1 ? "the run that is left" : fmt::format("{} runs together", runs));
}

const Command plan_command("plan", "show the memory, time and decisions of a training run without starting it", [](Line line) {
  auto name = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  line.word("task", *name, task_words().c_str());
  line.flag("--json", *json, "print one JSON document on stdout");
  auto sources = add_settings(line);
  line.footer(
      "Settings: preset=NAME data=FILE|FOLDER|builtin batch=N steps=N device=auto|cpu|cuda precision=auto|fp32|tf32|bf16|fp16 memory=SIZE;\n"
      "--resume RUN plans what is left of a run, --no-fallback fails instead of using another device. See ridge config keys.");
  return [=] {
    const Task& task = find_task(*name);
    config::Sources task_sources = sources();
    task_sources.task = task.keys;
    add_implied(task, task_sources);
    config::Resolved settings = config::resolve(task_sources);
    const bool resume = settings.get<bool>("resume");
    if (resume)
      settings = resolve_resumed(task_sources);
    else
      note_unused(settings, "plan");
    request_default_threads(thread_request(settings));
    const std::filesystem::path out = settings.get<std::string>("out");
    std::vector<Part> parts = parts_of(settings, out);
    if (resume) find_progress(parts, settings, out);
    const TerminalStyle style{terminal_width(), use_colour()};
    if (parts.size() > 1) {
      plan_all(task, parts, task_sources, style, *json);
    } else {
      parts[0].begun = resume;
      const std::unique_ptr<TaskRun> run = plan_part(task, parts[0], settings);
      fmt::print("{}", *json ? plan_json(*run) : plan_text(*run, style));
    }
    return kOk;
  };
});

}  // namespace
}  // namespace ridge::cli
