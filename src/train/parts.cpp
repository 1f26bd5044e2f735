#include "train/parts.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <limits>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "train/checkpoint.h"
#include "train/experiment.h"
#include "train/run_state.h"
#include "train/score_json.h"
#include "train/train_text.h"
#include "train/training_loop.h"

namespace ridge {
namespace fs = std::filesystem;
namespace {

nlohmann::json summary_in(const fs::path& folder) {
  std::ifstream file(folder / "summary.json");
  return nlohmann::json::parse(file);
}

// Otherwise more steps were done since the summary, or the last ones were lost.
bool is_last(const nlohmann::json& summary, const std::optional<RunState>& state) {
  return !state || (summary.at("steps").get<int64_t>() == state->step.attempted && !state->validation_due);
}

bool is_at_target(const nlohmann::json& summary, double target) {
  const Score score = summary.contains("score") ? score_from(summary.at("score")) : Score{};
  const nlohmann::json& value = summary.at(score == Score{} ? "final_val_loss" : "final_score");
  return value.is_number() && score.reaches(value.get<double>(), target);
}

// Steps were trained here, so starting again would overwrite their results.
bool was_trained(const fs::path& folder) {
  if (fs::exists(folder / "summary.json") || fs::exists(folder / "checkpoints" / "LATEST")) return true;
  return fs::exists(folder / "metrics.jsonl") && read_experiment_run(folder).steps > 0;
}

// With other seeds or data than before, all runs would start from scratch, next to the existing runs or over them.
void refuse_others(const std::vector<Part>& parts, const fs::path& out) {
  if (std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.begun || part.finished; })) return;
  for (const fs::path& run : find_runs(out))
    if (std::none_of(parts.begin(), parts.end(), [&](const Part& part) { return part.folder == run; }))
      fail(ErrorCode::usage,
           "[resume] {} exists, but {} was requested and does not; leave data, seed and seeds as they were, or start a new run with --out DIR", run.string(),
           parts.front().folder.string());
}

// Whether the run's task was set as it is now: a run that ended by itself has more to do with other settings, such as a larger number of decisions.
bool is_trained_with(const RunState& state, const config::Resolved& settings) {
  return std::all_of(state.settings.begin(), state.settings.end(), [&](const auto& setting) {
    const auto& [key, value] = setting;
    return key == "seed" || !config::find_key(key) || settings.get<std::string>(key) == value;
  });
}

}  // namespace

bool can_start_from_weights(const config::Resolved& settings) {
  return std::ranges::any_of(settings.describe({}), [](const config::Row& row) { return row.key->name == "init_from"; });
}

bool is_finished(const fs::path& folder, const std::optional<RunState>& state, std::optional<int64_t> steps, std::optional<double> target) try {
  const nlohmann::json summary = summary_in(folder);
  const int64_t recorded = summary.at("steps").get<int64_t>(), done = state ? state->step.attempted : recorded;
  if (!is_last(summary, state)) return false;
  if (!steps) {
    const std::string end = summary.at("end");
    return end == name(TrainingEnd::finished) || end == name(TrainingEnd::target);
  }
  return done >= *steps || (target && is_at_target(summary, *target));
} catch (const nlohmann::json::exception&) {
  return false;  // the summary is missing or damaged
}

bool has_ended_at(const fs::path& folder, const std::optional<RunState>& state, double target) try {
  const nlohmann::json summary = summary_in(folder);
  if (!is_last(summary, state) || summary.at("end") != name(TrainingEnd::target)) return false;
  return is_at_target(summary, target) || (summary.contains("target") && summary.at("target").at("score").get<double>() >= target);
} catch (const nlohmann::json::exception&) {
  return false;  // the summary is missing or damaged
}

std::string word_for(const std::string& data) {
  std::error_code ignored;
  const fs::path path = fs::absolute(data, ignored).lexically_normal();  // resolves . and ..
  std::string word = path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  for (char& c : word)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') c = '_';
  return word.empty() ? "data" : word;
}

std::vector<Part> parts_of(const config::Resolved& settings, const fs::path& out, const std::string& name) {
  std::vector<std::string> data = settings.get<std::vector<std::string>>("data");
  if (data.empty()) data = {"builtin"};
  const int64_t seeds = settings.get<int64_t>("seeds"), first = settings.get<int64_t>("seed");
  std::vector<Part> parts;
  for (const std::string& d : data)
    for (int64_t i = 0; i < seeds; ++i) {
      Part part{d, name.empty() ? word_for(d) : name, uint64_t(first + i), out};
      if (data.size() > 1) part.folder /= word_for(d);
      if (seeds > 1) part.folder /= fmt::format("seed_{}", first + i);
      const fs::path wanted = part.folder;
      auto taken = [&] { return std::any_of(parts.begin(), parts.end(), [&](const Part& p) { return p.folder == part.folder; }); };
      for (int n = 2; taken(); ++n) part.folder = fmt::format("{}_{}", wanted.string(), n);  // two data sets with the same name
      parts.push_back(part);
    }
  return parts;
}

void find_progress(std::vector<Part>& parts, const config::Resolved& settings, const fs::path& out) {
  const std::optional<int64_t> steps = settings.get<std::optional<int64_t>>("steps");
  std::optional<double> target;  // of a task without steps
  if (!steps && config::find_key("target_score")) target = settings.get<std::optional<double>>("target_score");
  for (Part& part : parts) {
    part.begun = !CheckpointStore(part.folder / "checkpoints").steps().empty();
    const std::optional<RunState> state = newest_state(part.folder);
    part.finished = parts.size() > 1 && is_finished(part.folder, state, steps, settings.get<std::optional<double>>("target_loss"));
    if (part.finished && !steps && state) {
      const bool aimed = has_ended_at(part.folder, state, std::numeric_limits<double>::lowest());
      part.finished = aimed ? target && has_ended_at(part.folder, state, *target) : is_trained_with(*state, settings);
    }
    if (!part.begun && !part.finished && was_trained(part.folder))
      fail(ErrorCode::usage, "[resume] {} was trained, but has no checkpoint to resume from; {}", part.folder.string(),
           can_start_from_weights(settings) ? fmt::format("init_from={} starts a new run from its weights", part.folder.string())
                                            : "start a new run without --resume, in another folder with --out DIR");
  }
  refuse_others(parts, out);
  if (std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.finished; }))
    fail(ErrorCode::usage, "[resume] all {} runs in {} are finished; to continue, {}", parts.size(), out.string(),
         steps ? "set steps=N with a larger N, more seeds, or another target_loss if one was reached" : "ask for a longer run or more seeds");
}

config::Resolved settings_of(const Part& part, config::Sources sources) {
  sources.decided.insert(sources.decided.end(),
                         {"seeds=1", fmt::format("seed={}", part.seed), fmt::format("data={}", part.data), fmt::format("out={}", part.folder.string())});
  return config::resolve(sources);
}

}  // namespace ridge
