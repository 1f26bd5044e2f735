#include "train/run_table.h"

#include <algorithm>
#include <set>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "train/score_json.h"
#include "train/train_text.h"

namespace ridge {
namespace {

std::string padded(const std::string& text, int width, bool right) {
  const std::string blanks(size_t(std::max(0, width - display_width(text))), ' ');
  return right ? blanks + text : text + blanks;
}

std::string loss_cell(const RunGroup& group, std::optional<double> ExperimentRun::*what) {
  const MeanError m = mean_error(group.values(what));
  if (m.count == 0) return "-";
  return m.count == 1 ? figure_text(m.mean) : fmt::format("{} ± {}", figure_text(m.mean), figure_text(m.error));
}

// "finished", or "2/3 finished" if its seeds ended differently
std::string state_cell(const RunGroup& group) {
  const auto state = [](const ExperimentRun& run) -> std::string {
    if (!run.damage.empty()) return "damaged";
    return run.end.empty() ? "not ended" : run.end;
  };
  const std::string first = state(group.runs.front());
  if (std::all_of(group.runs.begin(), group.runs.end(), [&](const ExperimentRun& run) { return state(run) == first; })) return first;
  const auto finished = std::count_if(group.runs.begin(), group.runs.end(), [](const ExperimentRun& run) { return run.end == "finished"; });
  return fmt::format("{}/{} finished", finished, group.runs.size());
}

// The most important figure on test data. Errors may be very small, so significant digits are shown.
std::string test_cell(const RunGroup& group) {
  const MeanError m = mean_error(group.test_values(group.test_figure()));
  if (m.count == 0) return "-";
  return m.count == 1 ? fmt::format("{:.4g}", m.mean) : fmt::format("{:.4g} ± {:.2g}", m.mean, m.error);
}

// "test mse", if the runs agree on what it is; empty: no run has such a figure.
std::string test_heading(std::span<const RunGroup> groups) {
  std::set<std::string> names;
  for (const RunGroup& group : groups) names.insert(group.test_figure());
  names.erase("");
  return names.empty() ? "" : names.size() == 1 ? "test " + *names.begin() : "test";
}

std::vector<std::string> cells(const RunGroup& group, bool with_unit) {
  const MeanError seconds = mean_error(group.values(&ExperimentRun::seconds)), speed = mean_error(group.values(&ExperimentRun::tokens_s));
  const ExperimentRun& first = group.runs.front();
  return {group.name,
          std::to_string(first.steps),
          loss_cell(group, &ExperimentRun::final_train_loss),
          loss_cell(group, group.score().is_loss() ? &ExperimentRun::best_val_loss : &ExperimentRun::best_score),
          speed.count ? count_text(speed.mean) + (with_unit ? " " + first.unit : "") : "-",
          seconds.count ? clock_text(seconds.mean) : "-",
          std::to_string(group.runs.size()),
          state_cell(group),
          first.device.empty() ? "-" : first.device + " " + first.precision};
}

// The name of the runs' score, if they agree.
std::string best_heading(std::span<const RunGroup> groups) {
  const std::string name = groups.empty() ? Score{}.name : groups[0].score().name;
  if (!std::all_of(groups.begin(), groups.end(), [&](const RunGroup& group) { return group.score().name == name; })) return "best score";
  return name == Score{}.name ? "best val loss" : "best " + name;
}

// The shortest width to which names can be cut while staying distinct.
int narrowest_name(std::span<const std::vector<std::string>> rows, int full) {
  constexpr int kNarrowest = 12;
  const auto different = [&](int width) {
    std::set<std::string> names;
    for (const auto& row : rows) names.insert(cut(printable(row[0]), width));
    return names.size();
  };
  int width = std::min(full, kNarrowest);
  for (const size_t all = different(full); width < full && different(width) < all;) ++width;
  return width;
}

}  // namespace

std::string run_table(std::span<const RunGroup> groups, int width) {
  constexpr int kGap = 2;
  size_t seeds = 6;  // a column
  const std::string unit = groups.empty() ? "" : groups[0].runs.front().unit;
  const bool same_unit = std::all_of(groups.begin(), groups.end(), [&](const RunGroup& group) { return group.runs.front().unit == unit; });
  std::vector<std::vector<std::string>> rows = {
      {"run", "steps", "train loss", best_heading(groups), same_unit ? unit + "/s" : "per second", "time", "seeds", "state", "device"}};
  for (const RunGroup& group : groups) rows.push_back(cells(group, !same_unit));
  if (const std::string heading = test_heading(groups); !heading.empty()) {
    constexpr int kTest = 4;  // behind the validation
    rows[0].insert(rows[0].begin() + kTest, heading), ++seeds;
    for (size_t g = 0; g < groups.size(); ++g) rows[g + 1].insert(rows[g + 1].begin() + kTest, test_cell(groups[g]));
  }
  const bool single = std::all_of(groups.begin(), groups.end(), [](const RunGroup& group) { return group.runs.size() == 1; });
  if (single)
    for (auto& row : rows) row.erase(row.begin() + int64_t(seeds));
  std::vector<int> widths(rows[0].size(), 0);
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));

  const auto total = [&](size_t columns) {
    int sum = 0;
    for (size_t i = 0; i < columns; ++i) sum += widths[i] + (i ? kGap : 0);
    return sum;
  };
  // Shorten the names first, then drop columns from the right.
  size_t columns = rows[0].size();
  const int name = widths[0];
  widths[0] = narrowest_name(rows, name);
  while (columns > 2 && total(columns) > width) --columns;
  widths[0] = std::clamp(width - (total(columns) - widths[0]), std::min(widths[0], width), name);

  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < columns; ++i) {
      const bool right = i >= 1 && i < seeds + !single;
      line += std::string(i ? kGap : 0, ' ') + padded(cut(printable(row[i]), widths[i]), widths[i], right);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

nlohmann::ordered_json run_document(std::span<const RunGroup> groups) {
  using Json = nlohmann::ordered_json;
  Json rows = Json::array();
  for (const RunGroup& group : groups) {
    Json row;
    row["name"] = group.name;
    for (const ExperimentRun& run : group.runs) row["folders"].push_back(run.folder.string());
    row["state"] = state_cell(group);
    row["steps"] = group.runs.front().steps;
    const auto add = [&](const char* key, std::optional<double> ExperimentRun::*what) {
      const MeanError m = mean_error(group.values(what));
      row[key] = m.count ? Json(m.mean) : Json();
      if (m.count > 1) row[std::string(key) + "_stderr"] = m.error;
    };
    add("final_train_loss", &ExperimentRun::final_train_loss);
    add("best_val_loss", &ExperimentRun::best_val_loss);
    if (!group.score().is_loss()) row["score"] = to_json(group.score()), add("best_score", &ExperimentRun::best_score);
    if (const std::string figure = group.test_figure(); !figure.empty()) {
      const MeanError m = mean_error(group.test_values(figure));
      row["test_" + figure] = m.mean;
      if (m.count > 1) row["test_" + figure + "_stderr"] = m.error;
    }
    add("seconds", &ExperimentRun::seconds);
    add("tokens_s", &ExperimentRun::tokens_s);
    row["unit"] = group.runs.front().unit;
    row["device"] = group.runs.front().device, row["precision"] = group.runs.front().precision;
    rows.push_back(std::move(row));
  }
  return {{"runs", std::move(rows)}};
}

}  // namespace ridge
