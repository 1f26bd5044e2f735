#include "train/experiment.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "train/score_json.h"
#include "train/training_loop.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;
using Document = nlohmann::json;

constexpr const char* kSummary = "summary.json";
constexpr const char* kMetrics = "metrics.jsonl";

bool is_run(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / kMetrics, ignored) || fs::is_regular_file(folder / kSummary, ignored);
}

template <class Json>
std::optional<double> number(const Json& row, const char* key) {
  const auto found = row.find(key);
  if (found == row.end() || !found->is_number()) return {};
  const double value = found->template get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

template <class Json>
std::string word(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_string() ? found->template get<std::string>() : "";
}

// Steps may repeat after a rollback or a resume; the later ones count.
void add_point(LossPoints& points, int64_t step, double loss) {
  while (!points.empty() && points.back().first >= step) points.pop_back();
  points.emplace_back(step, loss);
}

void add_score(ExperimentRun& run, int64_t step, const Document& score) {
  try {
    const Score by = score_from(score);
    if (by != run.score) run.score = by, run.scores.clear();  // the run was resumed with another score
    if (const auto value = number(score, "value")) add_point(run.scores, step, *value);
  } catch (const Document::exception&) {
    // Skip a damaged row.
  }
}

void read_metrics(ExperimentRun& run) {
  std::ifstream file(run.folder / kMetrics);
  std::vector<double> speeds;
  for (std::string line; std::getline(file, line);) {
    const Document row = Document::parse(line, nullptr, false);
    if (!row.is_object()) continue;
    const std::optional<double> at = number(row, "step"), loss = number(row, "loss"), validation = number(row, "val_loss");
    if (!at || *at < 0 || *at > 1e15) continue;
    const int64_t step = int64_t(*at);
    if (const auto applied = row.find("applied"); loss && (applied == row.end() || *applied != false)) add_point(run.train, step, *loss);
    if (validation) add_point(run.validation, step, *validation);
    if (const auto score = row.find("score"); score != row.end()) add_score(run, step, *score);
    if (const auto speed = number(row, "tokens_s")) run.tokens_s = speed;
    run.steps = std::max(run.steps, step);
  }
}

// The score's curve in training, known by its name once the validations are read.
void read_training_scores(ExperimentRun& run) {
  std::ifstream file(run.folder / kMetrics);
  for (std::string line; std::getline(file, line);) {
    const Document row = Document::parse(line, nullptr, false);
    if (!row.is_object() || !row.contains("loss") || !row.contains("scalars") || !row["scalars"].is_object()) continue;
    const std::optional<double> at = number(row, "step"), value = number(row["scalars"], run.score.name.c_str());
    if (at && value && *at >= 0 && *at <= 1e15) add_point(run.train_score, int64_t(*at), *value);
  }
}

// Fills in the results of a run that has not ended, as the training loop would if it ended now.
void conclude(ExperimentRun& run) {
  if (!run.train.empty()) {
    const size_t count = std::min(kMeanSteps, run.train.size());
    double sum = 0;
    for (size_t i = run.train.size() - count; i < run.train.size(); ++i) sum += run.train[i].second;
    run.final_train_loss = sum / double(count);
  }
  if (run.scores.empty())
    for (const auto& [step, loss] : run.validation) run.best_val_loss = std::min(run.best_val_loss.value_or(loss), loss);
  for (const auto& [step, value] : run.scores) {
    if (run.best_score && !run.score.better(value, *run.best_score)) continue;
    run.best_score = value, run.best_val_loss.reset();
    for (const auto& [at, loss] : run.validation)
      if (at == step) run.best_val_loss = loss;
  }
}

void read_unit(ExperimentRun& run) {
  std::ifstream file(run.folder / "plan.json");
  const Document plan = Document::parse(file, nullptr, false);
  if (const std::string unit = word(plan, "unit"); !unit.empty()) run.unit = unit;
  if (plan.is_object()) run.units_per_step = number(plan, "units_per_step").value_or(0);
}

void read_summary(ExperimentRun& run) {
  std::ifstream file(run.folder / kSummary);
  if (!file) return;
  const auto j = nlohmann::ordered_json::parse(file, nullptr, false);  // figures in their order
  const auto recorded = j.is_object() ? j.find("steps") : j.end();
  if (!j.is_object() || (recorded != j.end() && !recorded->is_number_integer())) {  // the metrics have most of it, and other runs must still be shown
    run.damage = fmt::format("{} is damaged; its run is described by {}", (run.folder / kSummary).string(), kMetrics);
    return;
  }
  run.end = word(j, "end"), run.device = word(j, "device"), run.precision = word(j, "precision");
  if (run.end.empty()) run.end = "finished";
  if (const std::string unit = word(j, "unit"); !unit.empty()) run.unit = unit;
  if (const auto steps = number(j, "steps")) run.steps = int64_t(*steps);
  for (auto& [key, place] : {std::pair("final_train_loss", &run.final_train_loss),
                             {"best_val_loss", &run.best_val_loss},
                             {"best_score", &run.best_score},
                             {"seconds", &run.seconds},
                             {"tokens_s", &run.tokens_s},
                             {"sampled_tokens_s", &run.sampled_tokens_s}})
    if (const auto value = number(j, key)) *place = value;
  if (const auto target = j.find("target"); target != j.end() && target->is_object())
    if (const auto score = number(*target, "score"), units = number(*target, "units"), seconds = number(*target, "seconds"); score && units && seconds)
      run.target = {*score, target->value("reached", nlohmann::ordered_json(false)) == true, int64_t(*units), *seconds, number(*target, "evaluation")};
  if (const auto test = j.find("test"); test != j.end() && test->is_object())
    for (const auto& [what, ignored] : test->items())
      if (const auto value = number(*test, what.c_str())) run.test.emplace_back(what, *value);
}

bool is_seed_folder(const fs::path& folder) { return folder.filename().string().starts_with("seed_"); }

std::string name_of(const fs::path& folder) {
  const fs::path clean = folder.lexically_normal();
  const std::string last = (clean.has_filename() ? clean : clean.parent_path()).filename().string();
  return last.empty() || last == "." ? folder.string() : last;
}

fs::path group_of(const fs::path& folder) { return is_seed_folder(folder) ? folder.parent_path() : folder; }

void gather(const fs::path& folder, int depth, std::vector<fs::path>& out) {
  if (is_run(folder)) {
    out.push_back(folder);
    return;
  }
  if (depth == 0) return;
  std::vector<fs::path> inner;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
    if (entry.is_directory(ignored)) inner.push_back(entry.path());
  std::sort(inner.begin(), inner.end());
  for (const fs::path& path : inner) gather(path, depth - 1, out);
}

}  // namespace

ExperimentRun read_experiment_run(const fs::path& folder, const std::string& dataset) {
  if (!is_run(folder)) fail(ErrorCode::io, "[report] {} is not a run folder: it has neither {} nor {}", folder.string(), kSummary, kMetrics);
  ExperimentRun run;
  run.folder = folder;
  run.dataset = dataset.empty() ? name_of(group_of(folder)) : dataset;
  read_metrics(run);
  if (!run.score.is_loss()) read_training_scores(run);
  conclude(run);
  read_unit(run);
  read_summary(run);
  return run;
}

std::vector<fs::path> find_runs(const fs::path& folder) {
  constexpr int kDepth = 3;  // a folder of runs, each with datasets, each with seeds
  std::vector<fs::path> out;
  gather(folder, kDepth, out);
  return out;
}

MeanError mean_error(std::span<const double> values) {
  MeanError out{.count = values.size()};
  if (values.empty()) return out;
  for (const double v : values) out.mean += v / double(values.size());
  double squares = 0;
  for (const double v : values) squares += (v - out.mean) * (v - out.mean);
  if (values.size() > 1) out.error = std::sqrt(squares / double(values.size() - 1) / double(values.size()));
  return out;
}

std::vector<double> RunGroup::values(std::optional<double> ExperimentRun::*what) const {
  std::vector<double> out;
  for (const ExperimentRun& run : runs)
    if (run.*what) out.push_back(*(run.*what));
  return out;
}

std::vector<double> RunGroup::test_values(const std::string& figure) const {
  std::vector<double> out;
  for (const ExperimentRun& run : runs)
    for (const auto& [what, value] : run.test)
      if (what == figure) out.push_back(value);
  return out;
}

std::string RunGroup::test_figure() const {
  for (const ExperimentRun& run : runs)
    if (!run.test.empty()) return run.test.front().first;
  return {};
}

std::vector<RunGroup> group_seeds(std::vector<ExperimentRun> runs) {
  std::vector<std::pair<fs::path, RunGroup>> groups;
  for (ExperimentRun& run : runs) {
    const fs::path path = group_of(run.folder);
    auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == path; });
    if (found == groups.end()) found = groups.insert(groups.end(), {path, {.name = name_of(path), .runs = {}}});
    found->second.runs.push_back(std::move(run));
  }
  // Groups with the same name are shown with their folders.
  std::vector<RunGroup> out;
  for (const auto& [path, group] : groups) {
    const auto same = [&](const auto& g) { return g.second.name == group.name; };
    out.push_back(group);
    if (std::count_if(groups.begin(), groups.end(), same) > 1) out.back().name = path.string();
  }
  return out;
}

nlohmann::ordered_json final_info(const std::vector<ExperimentRun>& runs) {
  constexpr std::pair<const char*, std::optional<double> ExperimentRun::*> kMetricNames[] = {
      {"final_train_loss", &ExperimentRun::final_train_loss},
      {"best_val_loss", &ExperimentRun::best_val_loss},
      {"total_train_time", &ExperimentRun::seconds},
      {"avg_inference_tokens_per_second", &ExperimentRun::sampled_tokens_s},
  };
  std::vector<RunGroup> datasets;
  for (const ExperimentRun& run : runs) {
    auto found = std::find_if(datasets.begin(), datasets.end(), [&](const RunGroup& g) { return g.name == run.dataset; });
    if (found == datasets.end()) found = datasets.insert(datasets.end(), {.name = run.dataset, .runs = {}});
    found->runs.push_back(run);
  }
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const RunGroup& dataset : datasets) {
    nlohmann::ordered_json means = nlohmann::ordered_json::object(), errors = means, lists = means;
    auto add = [&](const std::string& name, const std::vector<double>& values) {
      if (values.empty()) return;
      const MeanError m = mean_error(values);
      means[name + "_mean"] = m.mean;
      errors[name + "_stderr"] = m.error;
      lists[name] = values;
    };
    for (const auto& [name, member] : kMetricNames) add(name, dataset.values(member));
    if (const Score& score = dataset.score(); !score.is_loss()) add("best_" + score.name, dataset.values(&ExperimentRun::best_score));
    for (const ExperimentRun& run : dataset.runs)
      for (const auto& [what, value] : run.test)
        if (!lists.contains("test_" + what)) add("test_" + what, dataset.test_values(what));
    out[dataset.name] = {{"means", means}, {"stderrs", errors}, {"final_info_dict", lists}, {"stderr_is", "sd/sqrt(n), sd with n - 1"}};
  }
  return out;
}

}  // namespace ridge
