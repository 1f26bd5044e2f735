#include "bench/grid.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "backend/registry.h"
#include "base/error.h"
#include "base/nearest.h"
#include "base/svg.h"
#include "base/text.h"
#include "config/key.h"
#include "config/value.h"
#include "config/words.h"
#include "machine/precision.h"
#include "tasks/registry.h"

namespace ridge::bench {
namespace {

using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

constexpr size_t kMostPoints = 1000;

// A task, or one of a task's presets.
GridPoint subject_of(const std::string& word) {
  std::vector<std::string_view> known;
  for (const Task& task : tasks()) {
    if (word == task.name) return {word, {}, {}, {}};
    known.push_back(task.name);
  }
  for (const Task& task : tasks())
    if (const config::Key* key = config::find_key("preset", task.keys))
      for (std::string_view preset : config::split(key->words, '|')) {
        if (word == preset) return {task.name, {"preset=" + word}, {}, {}};
        known.push_back(preset);
      }
  fail(ErrorCode::usage, "[bench] '{}' is neither a task nor a preset; {}", word, nearest_hint(word, known, "valid: " + config::join(known, ", ")));
}

std::string key_in(const std::string& word) {
  const size_t start = word.starts_with("--") ? 2 : 0;
  return word.substr(start, word.find('=') - start);
}

Words values_in(const std::string& word) {
  const config::Key* key = config::find_key(key_in(word));
  const size_t equal = word.find('=');
  using enum config::Type;
  if (!key || equal == word.npos) return {};
  if (key->name == "data") {  // several sources are one run each
    const config::Parsed sources = config::parse_value(*key, std::string_view(word).substr(equal + 1));
    return sources.value ? *sources.value->as<Words>() : Words{};
  }
  if (key->type == list || key->type == path || key->type == text) return {};
  Words values;
  for (std::string_view value : config::split(std::string_view(word).substr(equal + 1), ',')) values.emplace_back(value);
  return values;
}

// Tasks and presets before the first setting; at least one.
std::vector<GridPoint> subjects_in(const Words& words, size_t& used) {
  std::vector<GridPoint> subjects;
  for (used = 0; used < words.size() && words[used].find('=') == std::string::npos && !words[used].starts_with('-'); ++used)
    subjects.push_back(subject_of(words[used]));
  if (subjects.empty()) fail(ErrorCode::usage, "[bench] name a task or a preset, such as ridge bench devices {}", tasks().front().name);
  return subjects;
}

const RankedRow* row_named(const Ranking& ranking, const std::string& label) {
  const auto at = std::find_if(ranking.rows.begin(), ranking.rows.end(), [&](const RankedRow& row) { return row.label == label; });
  return at == ranking.rows.end() ? nullptr : &*at;
}

void judge(Ranking& ranking, bool devices) {
  std::vector<RankedRow>& rows = ranking.rows;
  const double confidence = 1 - 0.05 / double(std::max<size_t>(1, rows.size() - 1));
  auto compared = [&](const RankedRow& a, const RankedRow& b) { return compare_times(a.per_unit, b.per_unit, confidence); };
  const RankedRow* best = &rows.front();
  constexpr double kEqual = 1.02;
  for (const RankedRow& row : rows)
    if (const Comparison c = compared(rows.front(), row); c.verdict == Change::same && c.ratio < kEqual && row.place < best->place) best = &row;
  ranking.recommended = best->label;
  std::vector<const RankedRow*> others;
  auto add = [&](const RankedRow* row) {
    if (row && row != best && std::find(others.begin(), others.end(), row) == others.end()) others.push_back(row);
  };
  if (devices) add(row_named(ranking, best->label.substr(0, best->label.rfind(' ')) + " fp32"));
  for (const RankedRow& row : rows)
    if (others.size() < 2) add(&row);
  if (!devices) add(&rows.back());
  for (const RankedRow* other : others) {
    const Comparison c = compared(*best, *other);
    const char* model = devices ? " for this model" : "";
    if (c.verdict == Change::slower)
      ranking.sentences.push_back(fmt::format("{} is {:.2f} x faster than {}{} (95 % confidence: {:.2f} to {:.2f})", best->label, c.ratio, other->label, model,
                                              c.interval.low, c.interval.high));
    else if (best->per_unit.size() > 1 && c.ratio < kEqual)
      ranking.sentences.push_back(
          fmt::format("{} and {} are equally fast{}: a difference below {:.1f} % could not be shown", best->label, other->label, model, 100 * c.resolution()));
    else
      ranking.sentences.push_back(
          fmt::format("{} took {:.2f} x as long as {}{}, which is not proven: give --repeat 9, on a quiet machine", other->label, c.ratio, best->label, model));
  }
}

}  // namespace

std::vector<GridPoint> grid_of(const Words& words) {
  size_t used = 0;
  std::vector<GridPoint> grid;
  for (GridPoint& subject : subjects_in(words, used)) {
    std::vector<GridPoint> points = {std::move(subject)};
    for (size_t i = used; i < words.size(); ++i) {
      const Words values = values_in(words[i]);
      std::vector<GridPoint> next;
      for (const GridPoint& point : points) {
        if (values.size() < 2) next.push_back(point), next.back().shared.push_back(words[i]);
        for (size_t v = 0; v < values.size() && values.size() > 1; ++v)
          next.push_back(point), next.back().config.push_back(fmt::format("{}={}", key_in(words[i]), values[v]));
      }
      points = std::move(next);
      if (points.size() > kMostPoints)
        fail(ErrorCode::usage, "[bench] the grid has more than {} combinations; give fewer values or fewer settings with several", kMostPoints);
    }
    grid.insert(grid.end(), points.begin(), points.end());
  }
  for (GridPoint& point : grid) point.label = config::join(point.config, " ");
  return grid;
}

std::vector<GridPoint> devices_of(const Words& words) {
  std::vector<GridPoint> all;
  for (const GridPoint& point : grid_of(words)) {
    if (!point.config.empty())
      fail(ErrorCode::usage, "[bench] devices tries devices and number formats alone, not {}; for other settings use ridge bench configs", point.label);
    for (const std::string& word : point.shared)
      if (const std::string key = key_in(word); key == "device" || key.starts_with("precision"))
        fail(ErrorCode::usage, "[bench] devices tries every device and number format; leave out {}, or use ridge bench configs", word);
    std::vector<KnownDevice> devices = known_devices(gpus(), usable_backends(gpus()));
    std::rotate(devices.begin(), devices.end() - 1, devices.end());  // the CPU is last
    for (const KnownDevice& device : devices) {
      if (!device.missing.empty()) continue;
      const ArithmeticUnit unit = arithmetic_of(device.device, gpus());
      for (Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16}) {
        if (facts_of(precision, unit, {}).support == Support::absent) continue;
        GridPoint& p = all.emplace_back(point);
        p.config = {"device=" + to_string(device.device), fmt::format("precision={}", name(precision)), "no_fallback=true"};
        p.label = fmt::format("{} {}", to_string(device.device), name(precision));
      }
    }
  }
  return all;
}

std::string row_of(const GridPoint& point, std::string_view suite, const std::string& json_line) {
  Json row = Json::parse(json_line);
  row["suite"] = std::string(suite), row["config"] = point.label;
  std::string name = point.task;
  for (const std::string& word : point.shared)
    if (!word.starts_with("seconds=")) name += " " + word;
  row["name"] = name;
  return row.dump();
}

std::vector<Ranking> rank(const Record& record) {
  std::vector<Ranking> all;
  for (size_t i = 0; i < record.rows.size(); ++i) {
    const RecordedRow& row = record.rows[i];
    const Json facts = Json::parse(row.facts);
    const std::string name = facts.at("name");
    auto at = std::find_if(all.begin(), all.end(), [&](const Ranking& r) { return r.name == name; });
    if (at == all.end()) at = all.insert(all.end(), {name, facts.at("unit"), {}, {}, {}});
    RankedRow& r = at->rows.emplace_back(RankedRow{.label = facts.at("config"), .place = i, .per_unit = {}});
    const double units = facts.at("units");
    for (double us : row.medians()) r.per_unit.push_back(1e-6 * us / units);
    const Summary of = summary_of(row.rounds.size() > 1 ? row.medians() : row.rounds.front().times_us);
    r.rate = 1e6 * units / of.median, r.interval = {1e6 * units / of.interval.high, 1e6 * units / of.interval.low};
  }
  for (Ranking& r : all) {
    std::stable_sort(r.rows.begin(), r.rows.end(), [](const RankedRow& a, const RankedRow& b) { return a.rate > b.rate; });
    judge(r, record.suite == "devices");
  }
  return all;
}

TextTable table_of(const Record& record, const std::vector<Ranking>& rankings) {
  TextTable table{{"model", "row", "a second", "95 % from", "to", "unit", "share of the fastest", "ms", "TFLOP/s", "first step ms", "ready s", "planned",
                   "processes", "samples", "outliers", "GHz", "load", "others"},
                  {}};
  for (const Ranking& ranking : rankings)
    for (const RankedRow& r : ranking.rows) {
      const RecordedRow& row = record.rows[r.place];
      const Json facts = Json::parse(row.facts);
      size_t samples = 0;
      int outliers = 0;
      std::vector<double> clocks, loads, others;
      for (const Round& round : row.rounds) {
        samples += round.times_us.size(), outliers += summary_of(round.times_us).outliers;
        clocks.push_back(round.ghz), loads.push_back(round.load), others.push_back(round.others);
      }
      const double ms = 1e-3 * summary_of(row.medians()).median;
      table.rows.push_back({ranking.name, r.label.empty() ? "-" : r.label, short_number(r.rate), short_number(r.interval.low), short_number(r.interval.high),
                            ranking.unit, fmt::format("{:.3f}", r.rate / ranking.rows.front().rate), short_number(ms),
                            short_number(facts.at("tflops").get<double>() * facts.at("ms").get<double>() / ms), short_number(facts.at("first_ms")),
                            short_number(facts.at("ready_s")), size_text(facts.at("planned_bytes").get<int64_t>()), std::to_string(row.rounds.size()),
                            std::to_string(samples), std::to_string(outliers), short_number(summary_of(clocks).median), short_number(summary_of(loads).median),
                            fmt::format("{:.0f} %", 100 * summary_of(others).median)});
    }
  return table;
}

std::string picture_of(const Record& record, const std::vector<Ranking>& rankings) {
  using svg::Anchor;
  using svg::Ink;
  constexpr double kSheet = 1080, kRow = 26, kHead = 62, kTop = 70, kRight = 950;
  constexpr Ink kInks[] = {Ink::blue, Ink::teal, Ink::amber, Ink::violet, Ink::red};
  size_t rows = 0;
  double left = 0;
  for (const Ranking& ranking : rankings) {
    rows += ranking.rows.size();
    for (const RankedRow& r : ranking.rows) left = std::max(left, svg::text_width(r.label, 13, true));
  }
  left = std::min(32 + left + 14, 520.0);
  const std::string about = fmt::format("{}; {}; {}", record.machine, record.build, record.date.substr(0, 10));
  svg::Picture picture(kSheet, kTop + kHead * double(rankings.size()) + kRow * double(rows) + 36, "Speed by configuration", about);
  picture.text({32, 40}, record.suite == "devices" ? "Speed by device and number format" : "Speed by configuration", {.size = 22, .bold = true});
  picture.text({32, 62}, svg::fit(about, kSheet - 64, 13), {.size = 13, .ink = Ink::muted});
  double y = kTop;
  for (const Ranking& ranking : rankings) {
    picture.text({32, y + 30}, fmt::format("{}: {} per second", ranking.name, ranking.unit), {.size = 15, .bold = true});
    picture.text({32, y + 48}, fmt::format("recommended: {}; lines: 95 % intervals of {} processes", ranking.recommended, ranking.rows.front().per_unit.size()),
                 {.size = 12, .ink = Ink::muted});
    y += kHead;
    double most = 0;
    for (const RankedRow& r : ranking.rows) most = std::max({most, r.rate, r.interval.high});
    std::vector<RankedRow> ordered = ranking.rows;  // as in the grid, so that neighbours differ in one setting
    std::sort(ordered.begin(), ordered.end(), [](const RankedRow& a, const RankedRow& b) { return a.place < b.place; });
    Words firsts;  // a colour for each value of the first setting
    for (const RankedRow& r : ordered) {
      const std::string first = r.label.substr(0, r.label.find(' '));
      auto at = std::find(firsts.begin(), firsts.end(), first);
      if (at == firsts.end()) at = firsts.insert(firsts.end(), first);
      const bool chosen = r.label == ranking.recommended;
      auto x = [&](double rate) { return left + rate / most * (kRight - left); };
      picture.text({left - 10, y + 16}, svg::fit(r.label, left - 40, 13, chosen), {.size = 13, .anchor = Anchor::end, .bold = chosen});
      picture.rect({left, y + 4, x(r.rate) - left, kRow - 9},
                   {.fill = kInks[size_t(at - firsts.begin()) % std::size(kInks)], .opacity = chosen ? 1 : 0.65, .radius = 2});
      picture.line({x(r.interval.low), y + 12}, {x(r.interval.high), y + 12}, {.stroke = Ink::text, .width = 1.5});
      picture.text({std::max(x(r.rate), x(r.interval.high)) + 8, y + 16}, grouped(int64_t(r.rate + 0.5)), {.size = 12, .bold = chosen});
      y += kRow;
    }
  }
  return picture.str();
}

}  // namespace ridge::bench
