#include "tasks/ppo/trial.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "tasks/ppo/task.h"

namespace ridge {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNoFigure = std::numeric_limits<double>::quiet_NaN(), kNever = std::numeric_limits<double>::infinity();
constexpr int64_t kRandomEpisodes = 100;

constexpr std::pair<const char*, double SessionMetrics::*> kMetrics[] = {{"total_reward_ma", &SessionMetrics::total_reward_ma},
                                                                         {"strength", &SessionMetrics::strength},
                                                                         {"max_strength", &SessionMetrics::max_strength},
                                                                         {"final_strength", &SessionMetrics::final_strength},
                                                                         {"sample_efficiency", &SessionMetrics::sample_efficiency},
                                                                         {"training_efficiency", &SessionMetrics::training_efficiency},
                                                                         {"stability", &SessionMetrics::stability}};

double ratio(double part, double whole) { return whole != 0 ? part / whole : kNoFigure; }

// Of what is known.
double known_mean(const std::vector<double>& values) {
  double sum = 0, count = 0;
  for (double v : values)
    if (!std::isnan(v)) sum += v, count += 1;
  return ratio(sum, count);
}

// Seeds that did not reach the target count as infinitely slow.
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

SessionCurve curve_of(const ExperimentRun& run) {
  SessionCurve c;
  for (const auto& [step, value] : run.scores)
    if (step > 0) c.returns.push_back(value), c.decisions.push_back(double(step) * run.units_per_step), c.updates.push_back(double(step));
  return c;
}

std::string seed_of(const ExperimentRun& run) {
  const std::string name = run.folder.filename().string();
  return name.substr(name.rfind('_') + 1);
}

std::string cell(double value, int decimals) { return std::isfinite(value) ? fmt::format("{:.{}f}", value, decimals) : "-"; }
std::string small_cell(double value) { return std::isfinite(value) ? fmt::format("{:.2e}", value) : "-"; }
std::string count_cell(double value) { return std::isfinite(value) ? grouped(std::llround(value)) : "-"; }
Json number_json(double value) { return std::isfinite(value) ? Json(value) : Json(); }

// Columns as wide as their widest cell, all but the last aligned to the right.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], size_t(display_width(row[i])));
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - size_t(display_width(row[i])), ' ');
      line += (i ? "  " : "") + (i + 1 == row.size() ? row[i] + blanks : blanks + row[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

// When each seed reached the target.
std::string target_table(std::span<const ExperimentRun> runs, Json& json) {
  const double target = runs[0].target->score;
  std::vector<std::vector<std::string>> rows = {{"seed", "decisions", "seconds", "evaluation", "result"}};
  std::vector<double> decisions, seconds;
  int64_t solved = 0;
  for (const ExperimentRun& run : runs) {
    const bool reached = run.target && run.target->reached;
    solved += reached;
    decisions.push_back(reached ? double(run.target->units) : kNever), seconds.push_back(reached ? run.target->seconds : kNever);
    std::string result = reached ? "solved" : "not solved";
    if (!reached && run.target) result += fmt::format(": ended after {} decisions, {:.1f} s", grouped(run.target->units), run.target->seconds);
    rows.push_back(
        {seed_of(run), count_cell(decisions.back()), cell(seconds.back(), 2), run.target ? cell(run.target->evaluation.value_or(kNoFigure), 2) : "-", result});
  }
  const double middle = median(decisions), time = median(seconds);
  rows.push_back({"median", count_cell(middle), cell(time, 2), "", fmt::format("{} of {} solved", solved, runs.size())});
  json["target"] = target, json["solved"] = solved, json["median_decisions"] = number_json(middle), json["median_seconds"] = number_json(time);
  return fmt::format("Time to the target of {:g}, from the start of each seed's run (the first: of the program)\n", target) + table(rows);
}

// How random actions score in the environment that the runs were trained in; empty: it is not tensor code.
std::optional<PlayedEpisodes> random_baseline(const ExperimentRun& run) {
  const TrainedAgent agent = load_agent(run.folder);
  if (agent.instances->on_host()) return {};
  const std::shared_ptr<CompiledStep::State> held = agent.hold("cpu");
  return random_episodes(held->step, *agent.instances, kRandomEpisodes, agent.args.seed);
}

}  // namespace

SessionMetrics session_metrics(const SessionCurve& c, double random_return) {
  constexpr size_t kWindow = 100;
  SessionMetrics m;
  if (c.returns.empty()) {
    for (const auto& [name, member] : kMetrics) m.*member = kNoFigure;
    return m;
  }
  double sum = 0, per_decision = 0, per_update = 0, drops = 0, before_last = 0, recent = 0;
  const size_t n = c.returns.size(), window = std::min(n, kWindow);
  auto strength = [&](size_t i) { return c.returns[i] - random_return; };
  m.max_strength = strength(0), m.final_strength = strength(n - 1);
  for (size_t i = 0; i < n; ++i) {
    const double s = strength(i);
    sum += s, per_decision += s / c.decisions[i], per_update += s / c.updates[i];
    m.max_strength = std::max(m.max_strength, s);
    if (i + window >= n) recent += c.returns[i];
    if (i + 1 < n) drops += std::min(strength(i + 1) - s, 0.0), before_last += s;
  }
  m.total_reward_ma = recent / double(window), m.strength = sum / double(n);
  m.sample_efficiency = ratio(per_decision, sum), m.training_efficiency = ratio(per_update, sum);
  m.stability = 1 - std::abs(ratio(drops, before_last));
  return m;
}

double consistency(std::span<const SessionCurve> sessions, double random_return) {
  double means = 0, deviations = 0;
  size_t longest = 0;
  for (const SessionCurve& c : sessions) longest = std::max(longest, c.returns.size());
  for (size_t i = 0; i < longest; ++i) {
    std::vector<double> strengths;
    for (const SessionCurve& c : sessions)
      if (i < c.returns.size()) strengths.push_back(c.returns[i] - random_return);
    const MeanError m = mean_error(strengths);
    means += m.mean, deviations += m.error * std::sqrt(double(m.count));
  }
  return 1 - 2 * ratio(deviations, means);
}

RunsReport report_agents(std::span<const ExperimentRun> runs, int width) {
  (void)width;
  RunsReport report;
  Json sessions = Json::array(), trial, target;
  if (runs[0].target) report.text += target_table(runs, target) + "\n";
  const std::optional<PlayedEpisodes> baseline = random_baseline(runs[0]);
  if (!baseline) {
    report.text += "Random actions were not measured, as the environment is not tensor code: there are no metrics of SLM-Lab\n";
    report.file = "trial_metrics.json", report.json = Json{{"time_to_target", target}}.dump(2) + "\n",
    report.event = Json{{"event", "trial_metrics"}, {"trial_metrics", {{"time_to_target", target}}}}.dump();
    return report;
  }
  const PlayedEpisodes& random = *baseline;
  std::vector<std::vector<std::string>> rows = {{"seed", "strength", "max", "final", "sample eff.", "training eff.", "stability", "consistency"}};
  auto add_row = [&](const std::string& name, const SessionMetrics& m, const std::string& last) {
    rows.push_back({name, cell(m.strength, 2), cell(m.max_strength, 2), cell(m.final_strength, 2), small_cell(m.sample_efficiency),
                    small_cell(m.training_efficiency), cell(m.stability, 3), last});
  };
  std::vector<SessionCurve> curves;
  std::vector<SessionMetrics> metrics;
  double frames = 0;
  for (const ExperimentRun& run : runs) {
    curves.push_back(curve_of(run)), metrics.push_back(session_metrics(curves.back(), random.mean()));
    frames = std::max(frames, double(run.steps) * run.units_per_step);
    Json session{{"seed", seed_of(run)}, {"frame", double(run.steps) * run.units_per_step}};
    if (run.target)
      session["solved"] = run.target->reached, session["seconds"] = run.target->seconds,
      session["evaluation"] = number_json(run.target->evaluation.value_or(kNoFigure));
    for (const auto& [name, member] : kMetrics) session[name] = number_json(metrics.back().*member);
    sessions.push_back(session);
    add_row(seed_of(run), metrics.back(), "");
  }
  SessionMetrics mean;
  trial["frame"] = frames;
  for (const auto& [name, member] : kMetrics) {
    std::vector<double> values;
    for (const SessionMetrics& m : metrics) values.push_back(m.*member);
    mean.*member = known_mean(values), trial[name] = number_json(mean.*member);
  }
  const double agreement = consistency(curves, random.mean());
  trial["consistency"] = number_json(agreement);
  add_row("mean", mean, cell(agreement, 3));
  report.text += fmt::format("Metrics of SLM-Lab over the evaluations, against random actions: {:.2f} ± {:.2f} in {} episodes\n{}", random.mean(),
                             random.interval(), random.returns.size(), table(rows));
  Json all{{"random_baseline", {{"mean", random.mean()}, {"interval", random.interval()}, {"episodes", random.returns.size()}}}};
  if (!target.is_null()) all["time_to_target"] = target;
  all["trial"] = trial, all["sessions"] = sessions;
  report.file = "trial_metrics.json", report.json = all.dump(2) + "\n", report.event = Json{{"event", "trial_metrics"}, {"trial_metrics", all}}.dump();
  return report;
}

}  // namespace ridge
