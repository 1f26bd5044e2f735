// ridge train: from settings to a trained model, a run folder and a summary.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <set>

#include <fmt/core.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/settings.h"
#include "io/atomic_file.h"
#include "measure/default_team.h"
#include "tasks/registry.h"
#include "train/run_folder.h"
#include "train/run_trial.h"

namespace ridge::cli {
namespace {

namespace fs = std::filesystem;

int exit_code(const Outcome& outcome) {
  if (outcome.state_lost_since) return kStateLost;
  switch (outcome.end) {
    case Outcome::End::interrupted: return kInterrupted;
    case Outcome::End::terminated: return kTerminated;
    case Outcome::End::diverged: return kDiverged;
    case Outcome::End::unsaved: return kData;  // the last checkpoint could be written after all
    default: return kOk;
  }
}

// The first run's time begins here.
std::chrono::steady_clock::time_point next_start = std::chrono::steady_clock::now();

RunOptions options_of(const Part& part, const config::Resolved& settings, bool json) {
  RunOptions options;
  options.started = next_start;
  options.data = part.data, options.seed = part.seed, options.folder = part.folder, options.resume = part.begun;
  options.measure = settings.get<bool>("optimize_perf"), options.tune = true;
  if (!json)
    options.progress = [](const std::string& what, double done) {
      if (isatty(STDERR_FILENO)) std::fputs(fmt::format("\r\033[K{} {:.0f} %{}", what, 100 * done, done >= 1 ? "\r\033[K" : "").c_str(), stderr);
    };
  return options;
}

RunOutput output_of(const config::Resolved& settings, bool json) {
  return {.json = json, .tensorboard = settings.get<bool>("tensorboard"), .log_level = settings.get<std::string>("log_level")};
}

// `accepted` is called once the run can no longer be rejected.
int train_part(const Task& task, const Part& part, const config::Resolved& settings, bool json, const std::function<void()>& accepted) {
  const std::unique_ptr<TaskRun> run = start_run(task, settings, options_of(part, settings, json));
  accepted();
  config::Resolved kept = settings;
  run->add_found_settings(kept);
  RunOutput output = output_of(settings, json);
  output.config = config_text(kept, part.folder);
  const RunResult result = train_in_folder(*run, settings, output);
  next_start = std::chrono::steady_clock::now();
  if (result.outcome.state_lost_since)
    ridge::print_line(stderr, fmt::format("ridge: progress since step {} is lost: the last checkpoint could not be written", *result.outcome.state_lost_since));
  else if (!result.has_artifact)
    ridge::print_line(stderr, fmt::format("ridge: {} was not written; {}", (part.folder / run->artifact()).string(), run->artifact_remedy()));
  const int code = exit_code(result.outcome);
  return code == kOk && !result.has_artifact ? int(kData) : code;
}

// Reports problems with any data set before training on the first one. The tokens stay in the cache.
void check_data(const Task& task, const std::vector<Part>& parts, const config::Sources& sources, bool json) {
  std::set<std::string> seen;
  for (const Part& part : parts)
    if (!part.begun && !part.finished && seen.insert(part.data).second) {
      const config::Resolved settings = settings_of(part, sources);
      task.check_data(settings, options_of(part, settings, json));
    }
}

int train_in(const Task& task, const fs::path& out, const config::Resolved& settings, const config::Sources& sources, bool json, bool data_checked = false) {
  const bool resume = settings.get<bool>("resume");
  std::vector<Part> parts = parts_of(settings, out, task.has_data ? "" : task.run_name(settings));
  if (resume) find_progress(parts, settings, out);
  std::vector<fs::path> places = {out};
  for (const Part& part : parts) places.push_back(part.folder);
  if (!resume)
    for (const fs::path& place : places) check_place(place, parts, settings);
  if (parts.size() > 1 && !data_checked) check_data(task, parts, sources, json);
  auto keep_settings = [&] {  // an experiment can be resumed as a whole, or each run separately
    if (parts.size() == 1) return;
    make_run_folder(out);
    write_atomically((out / "config.yaml").string(), config_text(settings, out));
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    if (part.finished) {
      ridge::print_line(stderr, fmt::format("{} is finished", part.folder.string()));
      continue;
    }
    const int code = train_part(task, part, parts.size() > 1 ? settings_of(part, sources) : config::resolve(sources), json, keep_settings);
    if (code == kOk) continue;
    if (const auto left = std::count_if(parts.begin() + int64_t(i), parts.end(), [](const Part& p) { return !p.finished; });
        parts.size() > 1 && (code == kInterrupted || code == kTerminated))
      ridge::print_line(stderr, fmt::format("ridge: {} of {} runs are left; ridge train {} --resume {} continues all of them", left, parts.size(), task.name,
                                            shell_word(out.string())));
    return code;
  }
  try {  // a failure loses nothing: the same data is in the runs' folders
    finish_experiment(out, parts, output_of(settings, json), task.report);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io) throw;
    ridge::print_line(stderr, fmt::format("ridge: {}", error.what()));
  }
  return kOk;
}

int train_all(const Task& task, config::Sources sources, bool json) {
  std::signal(SIGPIPE, SIG_IGN);
  config::Resolved settings = config::resolve(sources);
  const fs::path out = settings.get<std::string>("out");
  if (settings.get<bool>("resume")) settings = resolve_resumed(sources);
  note_unused(settings, "train");
  request_default_threads(thread_request(settings));
  if (is_batch_measured(settings)) {
    RunOptions options;
    options.measure = settings.get<bool>("optimize_perf"), options.data = parts_of(settings, out).front().data;
    measure_batch(task, sources, options);
    settings = config::resolve(sources);
  }
  if (!out.empty()) return train_in(task, out, settings, sources, json);
  const std::vector<std::string> data = settings.get<std::vector<std::string>>("data");
  const fs::path runs = settings.get<std::string>("runs_dir");
  const std::vector<Part> parts = parts_of(settings, runs / "new");  // placeholder: the folders have no names yet
  if (parts.size() > 1) check_data(task, parts, sources, json);
  std::error_code ignored;
  const bool first = !fs::exists(runs, ignored);
  const fs::path fresh = new_run_folder(runs, task.run_name(settings), !task.has_data ? "" : data.empty() ? "builtin" : data.front());
  try {
    return train_in(task, fresh, settings, sources, json, true);
  } catch (...) {
    fs::remove(fresh, ignored);  // removed only if empty: a rejected run leaves nothing behind
    if (first) fs::remove(runs, ignored);
    throw;
  }
}

const Command train_command("train", fmt::format("train a model: ridge train {} {}", tasks().front().name, tasks().front().example), [](Line line) {
  auto name = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  line.word("task", *name, task_words().c_str());
  line.flag("--json", *json, "print JSON lines on stdout");
  auto sources = add_settings(line);
  line.footer(
      "Settings: preset=NAME data=FILE|FOLDER|builtin batch=N steps=N lr=X seeds=N device=auto|cpu|cuda precision=auto|fp32|tf32|bf16|fp16;\n"
      "--out DIR names the run folder, --resume RUN resumes a run, --no-fallback fails instead of using another device.\n"
      "See ridge config keys.\n"
      "Exit codes: 0 done, 1 error, 2 usage or configuration, 3 does not fit, 4 data or files, 5 diverged, 6 state lost (the last checkpoint could\n"
      "not be written), 75 ended by SIGTERM after a checkpoint (before the first step: 143), 130 by SIGINT.");
  return [=] {
    const Task& task = find_task(*name);
    config::Sources task_sources = sources();
    task_sources.task = task.keys;
    add_implied(task, task_sources);
    const int code = train_all(task, std::move(task_sources), *json);
    if (!*json) std::clearerr(stdout);  // unread text is also in the run folder; for JSON the loss must be an error, as a program may have no other source
    return code;
  };
});

}  // namespace
}  // namespace ridge::cli
