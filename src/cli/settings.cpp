#include "cli/settings.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include <fmt/core.h>

#include "base/error.h"
#include "config/key.h"
#include "config/presets.h"
#include "config/value.h"
#include "config/words.h"
#include "tasks/registry.h"
#include "train/experiment.h"
#include "train/run_trial.h"

namespace ridge::cli {
namespace {

namespace fs = std::filesystem;

bool same_folder(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return (a / "").lexically_normal() == (b / "").lexically_normal() || fs::equivalent(a, b, ignored);
}

// A run resumes in its own folder, so naming a second folder is a mistake.
void check_resumed_folder(const std::vector<std::string>& words, const std::string& run) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = std::string_view(words[i]).substr(words[i].starts_with("--") ? 2 : 0);
    const size_t equal = word.find('=');
    if ((equal == word.npos && (word.size() == words[i].size() || i + 1 == words.size())) || config::find_key(word.substr(0, equal)) != config::find_key("out"))
      continue;
    if (const std::string out(equal == word.npos ? std::string_view(words[i + 1]) : word.substr(equal + 1)); !same_folder(out, run))
      fail(ErrorCode::usage,
           "[resume] --resume {0} and out={1} name two folders, and a run resumes in its own; omit out={1}, or omit --resume to start a new run in {1}", run,
           out);
  }
}

// Accepts "--resume RUN" and "--resume=RUN" as short forms of "--resume --out RUN".
void read_resumed_folder(std::vector<std::string>& words) {
  constexpr std::string_view kResume = "--resume=";
  for (size_t i = 0; i < words.size(); ++i)
    if (words[i].starts_with(kResume)) {
      const std::string value = words[i].substr(kResume.size());
      if (config::parse_value(*config::find_key("resume"), value).value || value.empty()) continue;
      words[i] = "--resume";
      words.insert(words.begin() + int64_t(i) + 1, value);
    }
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    std::string& next = words[i + 1];
    const bool truth = next == "true" || next == "false" || next == "yes" || next == "no" || next == "on" || next == "off" || next == "1" || next == "0";
    if (words[i] == "--resume" && !truth && !next.starts_with("--") && (next.find('=') == next.npos || std::filesystem::is_directory(next)))
      check_resumed_folder(words, next), next = "out=" + next;
  }
}

// Whose run it is, is in the descriptions of its models. An experiment is known by its runs.
void check_resumed_task(const fs::path& out, unsigned keys) {
  std::vector<fs::path> places = {out};
  if (const std::vector<fs::path> runs = find_runs(out); !runs.empty()) places.push_back(runs.front());
  const auto owns = [&](const Task& task) { return task.owns && std::ranges::any_of(places, [&](const fs::path& place) { return task.owns(place); }); };
  const auto owner = std::ranges::find_if(tasks(), owns), wanted = std::ranges::find_if(tasks(), [&](const Task&task) { return task.keys == keys; });
  if (owner == tasks().end() || wanted == tasks().end() || owns(*wanted)) return;
  fail(ErrorCode::usage, "[resume] {0} is a run of ridge train {1}, not of ridge train {2}; continue it with ridge train {1} --resume {0}", out.string(),
       owner->name, wanted->name);
}

}  // namespace

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
    sources.options = line.option_names();
    read_resumed_folder(sources.words);
    return sources;
  };
}

config::Resolved resolve_resumed(config::Sources& sources) {
  namespace fs = std::filesystem;
  const config::Resolved requested = config::resolve(sources);
  fs::path out = requested.get<std::string>("out");
  if (!out.empty() && !out.has_filename()) out = out.parent_path();  // a trailing "/"
  if (out.empty()) fail(ErrorCode::usage, "[resume] which run? Name its folder with --out DIR (ridge runs lists them)");
  if (!fs::exists(out))
    fail(ErrorCode::usage, "[resume] there is no run folder {}; ridge runs lists those in {}", out.string(), requested.get<std::string>("runs_dir"));
  if (!fs::is_directory(out)) fail(ErrorCode::usage, "[resume] {} is not a folder; name the one of a run (ridge runs lists them)", out.string());
  if (const fs::path before = out / "config.yaml"; fs::exists(before)) {
    check_resumed_task(out, sources.task);
    sources.files.insert(sources.files.begin(), before);
    config::Resolved settings = config::resolve(sources);
    std::vector<std::string_view> kept(config::preset_keys().begin(), config::preset_keys().end());  // the run's settings are stronger than any preset's
    for (const Task& task : tasks())
      if (task.keys == sources.task) kept.insert(kept.end(), task.kept.begin(), task.kept.end());
    for (std::string_view key : kept) {
      const config::Value& now = settings.setting(key).value;
      const auto text = [&](const config::Value& value) { return config::to_text(*config::find_key(key, sources.task), value); };
      for (const config::Setting& past : settings.history(key))
        if (config::is_of_run(past.source, out) && past.value != now)
          fail(ErrorCode::usage, "[resume] {} was trained with {}={}, but {}={} was requested; leave it out, or start a new run", out.string(), key,
               text(past.value), key, text(now));
    }
    return settings;
  }
  for (const fs::path& above : {out.parent_path(), out.parent_path().parent_path()})  // `out` may be the checkpoints folder or one checkpoint
    if (!above.empty() && fs::exists(above / "config.yaml"))
      fail(ErrorCode::usage, "[resume] {} is a part of a run; name the run: --resume {}", out.string(), above.string());
  if (const std::vector<fs::path> runs = find_runs(out); !runs.empty() && runs.front() != out)
    fail(ErrorCode::usage, "[resume] {} is not a run, but contains some; name one: --resume {}", out.string(), runs.front().string());
  fail(ErrorCode::usage, "[resume] {} is not a run folder: it has no config.yaml; train without --resume to start one", out.string());
}

void add_implied(const Task& task, config::Sources& sources) {
  if (!task.implied) return;
  const Task::Implied implied = task.implied(config::resolve(sources));
  sources.assumed.insert(sources.assumed.end(), implied.words.begin(), implied.words.end());
  if (!implied.source.empty()) sources.assumed_source = implied.source;
  for (const std::string& line : implied.notes) fmt::print(stderr, "ridge: {}\n", line);
}

void measure_batch(const Task& task, config::Sources& sources, const RunOptions& options) {
  constexpr double kSeconds = 0.2;
  const config::Resolved settings = config::resolve(sources);
  if (!is_batch_measured(settings) || task.sizes.empty() || task.sizes.front().values.empty()) return;
  if (!options.measure) fail(ErrorCode::usage, "[tune] batch=auto is measured, which optimize_perf=false rules out; set batch=N");
  const SizeCurve curve = measure_sizes(task, settings, options, "batch", task.sizes.front().values.front(), kSeconds);
  fmt::print(stderr, "batch=auto:\n{}", curve_text(curve, "batch", "samples"));
  sources.measured.push_back(fmt::format("batch={}", curve.points[curve.chosen].size));
}

std::string task_words() {
  std::vector<std::string_view> names;
  for (const Task& task : tasks()) names.emplace_back(task.name);
  return config::join(names, ", ");
}

}  // namespace ridge::cli
