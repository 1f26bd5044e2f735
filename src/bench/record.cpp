#include "bench/record.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "machine/utilisation.h"

namespace ridge::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr double kFamily = 0.05;  // all verdicts of a comparison together are wrong with at most this probability

// The work that a row describes. Everything else in it is measured.
std::string key_of(const Json& row) {
  std::string key = row.at("name").get<std::string>();
  if (row.contains("config")) return key + " " + row.at("config").get<std::string>();
  for (const char* field : {"dtype", "precision", "state", "device"})
    if (row.contains(field)) key += " " + row.at(field).get<std::string>();
  if (row.contains("batch")) key += fmt::format(" batch {}", row.at("batch").get<int64_t>());
  if (row.contains("threads") && row.at("threads").get<int64_t>() > 0) key += fmt::format(" threads {}", row.at("threads").get<int64_t>());
  return key;
}

double number_in(const Json& row, const char* field) { return row.contains(field) && row.at(field).is_number() ? row.at(field).get<double>() : 0; }

Round round_of(const Json& row) {
  Round r;
  r.times_us = row.at("times_us").get<std::vector<double>>();
  r.median_us = summary_of(r.times_us).median;
  r.roof = number_in(row, "roof"), r.others = number_in(row, "others"), r.ghz = number_in(row, "ghz"), r.load = number_in(row, "load");
  return r;
}

std::string percent(double share, int decimals = 1) { return fmt::format("{:.{}f} %", 100 * share, decimals); }

bool numeric(const std::string& cell) { return !cell.empty() && cell.find_first_not_of("0123456789.,-+ %×–") == cell.npos; }

size_t width_of(const std::string& text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string median_text(std::vector<double> values) { return values.empty() ? "-" : short_number(summary_of(std::move(values)).median); }

const char* word_of(Change verdict) { return verdict == Change::slower ? "slower" : verdict == Change::faster ? "faster" : "same"; }

}  // namespace

std::string short_number(double x) {
  if (x == 0) return "-";
  const double size = std::abs(x);
  return fmt::format("{:.{}f}", x, size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4);
}

std::vector<double> RecordedRow::medians() const {
  std::vector<double> all;
  for (const Round& r : rounds) all.push_back(r.median_us);
  return all;
}

std::vector<double> RecordedRow::relative() const {
  std::vector<double> all;
  for (const Round& r : rounds)
    if (r.roof > 0) all.push_back(1 / r.roof);
  return all.size() == rounds.size() ? all : std::vector<double>();
}

bool RecordedRow::busy() const {
  return 2 * std::count_if(rounds.begin(), rounds.end(), [](const Round& r) { return r.others > kQuiet; }) >= int64_t(rounds.size());
}

void Record::add(const std::string& json_line) {
  Json row = Json::parse(json_line);
  if (!row.contains("times_us") || row.at("times_us").empty()) return;
  const std::string key = key_of(row);
  auto at = std::find_if(rows.begin(), rows.end(), [&](const RecordedRow& r) { return r.key == key; });
  if (at == rows.end()) {
    Json facts = row;
    facts.erase("times_us");
    at = rows.insert(rows.end(), {key, facts.dump(), {}});
  }
  at->rounds.push_back(round_of(row));
}

std::string Record::to_json() const {
  Json file;
  file["ridge_bench"] = kFormat, file["suite"] = suite, file["build"] = build, file["machine"] = machine, file["date"] = date;
  std::string text = file.dump();
  text.pop_back();
  text += ",\n\"rows\": [";
  for (const RecordedRow& row : rows) {
    text += fmt::format("{}\n{{\"facts\": {}, \"rounds\": [", &row == &rows.front() ? "" : ",", row.facts);
    for (const Round& r : row.rounds) {
      Json j;
      j["roof"] = r.roof, j["others"] = r.others, j["ghz"] = r.ghz, j["load"] = r.load, j["times_us"] = r.times_us;
      text += fmt::format("{}\n  {}", &r == &row.rounds.front() ? "" : ",", j.dump());
    }
    text += "]}";
  }
  return text + "]}\n";
}

Record Record::parse(const std::string& text, const std::string& file) {
  const Json all = Json::parse(text, nullptr, false);
  if (all.is_discarded() || !all.is_object() || !all.contains("ridge_bench"))
    fail(ErrorCode::io, "[bench] {} is not a file of measurements; make one with ridge bench SUITE --save FILE", file);
  if (all.at("ridge_bench") != kFormat)
    fail(ErrorCode::io, "[bench] {} has format {}, but this build reads {}; measure again with --save", file, all.at("ridge_bench").dump(), kFormat);
  try {
    Record record{.suite = all.at("suite"), .build = all.at("build"), .machine = all.at("machine"), .date = all.at("date"), .rows = {}};
    for (const Json& row : all.at("rows")) {
      RecordedRow& r = record.rows.emplace_back(RecordedRow{key_of(row.at("facts")), row.at("facts").dump(), {}});
      for (const Json& round : row.at("rounds")) {
        r.rounds.push_back(round_of(round));
        if (!(r.rounds.back().median_us > 0))
          fail(ErrorCode::io, "[bench] {}: row {} has a round without positive times; measure again with --save", file, r.key);
      }
      if (r.rounds.empty()) fail(ErrorCode::io, "[bench] {}: row {} has no rounds; measure again with --save", file, r.key);
    }
    return record;
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorCode::io, "[bench] {} is damaged ({}); measure again with --save", file, e.what());
  }
}

Record load_record(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) fail(ErrorCode::io, "[bench] cannot read {}; make it with ridge bench SUITE --save {}", file, file);
  std::ostringstream text;
  text << in.rdbuf();
  return Record::parse(text.str(), file);
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

std::string TextTable::plain() const {
  std::vector<size_t> widths;
  for (const std::string& head : heads) widths.push_back(width_of(head));
  for (const auto& row : rows)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  std::string text;
  auto put = [&](const std::vector<std::string>& cells, const std::vector<std::string>& like) {
    std::string line;
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string gap(widths[c] - width_of(cells[c]), ' ');
      line += (c ? "  " : "") + (c && (numeric(like[c]) || like[c].empty()) ? gap + cells[c] : cells[c] + gap);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  put(heads, rows.empty() ? heads : rows.front());
  for (const auto& row : rows) put(row, row);
  return text;
}

std::string TextTable::markdown() const {
  std::string text = "|";
  for (const std::string& head : heads) text += " " + head + " |";
  text += "\n|";
  for (size_t c = 0; c < heads.size(); ++c) text += c == 0 ? "---|" : "--:|";
  for (const auto& row : rows) {
    text += "\n|";
    for (std::string cell : row) {
      for (size_t at = 0; (at = cell.find('|', at)) != cell.npos; at += 2) cell.insert(at, "\\");
      text += " " + cell + " |";
    }
  }
  return text + "\n";
}

std::string TextTable::csv() const {
  std::string text;
  auto put = [&](const std::vector<std::string>& cells) {
    for (size_t c = 0; c < cells.size(); ++c) {
      std::string cell = cells[c];
      if (cell.find_first_of(",\"\n") != cell.npos) {
        for (size_t at = 0; (at = cell.find('"', at)) != cell.npos; at += 2) cell.insert(at, "\"");
        cell = "\"" + cell + "\"";
      }
      text += (c ? "," : "") + cell;
    }
    text += "\n";
  };
  put(heads);
  for (const auto& row : rows) put(row);
  return text;
}

TextTable table_of(const Record& record) {
  TextTable table{{"row", "min us", "median us", "max us", "95 % from", "to", "spread", "GFLOP/s", "GB/s", "roof", "a second", "processes", "samples",
                   "outliers", "GHz", "others"},
                  {}};
  for (const RecordedRow& row : record.rows) {
    std::vector<double> all, roofs, clocks, others;
    int outliers = 0;
    for (const Round& r : row.rounds) {
      all.insert(all.end(), r.times_us.begin(), r.times_us.end());
      outliers += summary_of(r.times_us).outliers;
      if (r.roof > 0) roofs.push_back(r.roof);
      if (r.ghz > 0) clocks.push_back(r.ghz);
      others.push_back(r.others);
    }
    // One process: the interval of its samples. Several: samples of one process belong together, so the interval is that of the processes' medians.
    const Summary samples = summary_of(all), of = row.rounds.size() > 1 ? summary_of(row.medians()) : samples;
    const Json facts = Json::parse(row.facts);
    // Rates in the facts are those of the first process's median.
    const double scale = row.rounds.front().median_us / of.median;
    const double gflops = number_in(facts, "gflops") + 1e3 * number_in(facts, "tflops");
    const double rate = std::max({number_in(facts, "tokens_s"), number_in(facts, "steps_s")});
    table.rows.push_back({row.key, short_number(samples.min), short_number(of.median), short_number(samples.max), short_number(of.interval.low),
                          short_number(of.interval.high), percent(of.spread), short_number(gflops * scale), short_number(number_in(facts, "gbs") * scale),
                          median_text(roofs), short_number(rate * scale), std::to_string(row.rounds.size()), std::to_string(samples.samples),
                          std::to_string(outliers), median_text(clocks), percent(summary_of(others).median, 0)});
  }
  return table;
}

int RecordComparison::count(Change verdict) const {
  return int(std::count_if(rows.begin(), rows.end(), [&](const RowComparison& r) { return r.verdict == verdict; }));
}

TextTable RecordComparison::table() const {
  TextTable table{{"row", "after ÷ before", "from", "to", "finds changes of", "verdict"}, {}};
  for (const RowComparison& r : rows) {
    const bool known = std::isfinite(r.time.interval.high);
    table.rows.push_back({r.key, fmt::format("{:.3f}", r.time.ratio), known ? fmt::format("{:.3f}", r.time.interval.low) : "-",
                          known ? fmt::format("{:.3f}", r.time.interval.high) : "-", known ? percent(r.time.resolution()) : "-",
                          std::string(word_of(r.verdict)) + (r.busy ? " (busy machine)" : "")});
  }
  return table;
}

std::string RecordComparison::sentence() const {
  const int slower = count(Change::slower), faster = count(Change::faster);
  std::string text = fmt::format("{} of {} rows slower, {} faster, {} the same, with at least {:.0f} % confidence in all verdicts together", slower,
                                 rows.size(), faster, count(Change::same), 100 * (1 - kFamily));
  if (const auto most = std::count_if(rows.begin(), rows.end(), [](const RowComparison& r) { return !(r.time.resolution() <= 0.05); }); most > 0)
    text += fmt::format("; {} row{} could not have shown a change of 5 %: give --repeat 9 or more, on a quiet machine", most, most == 1 ? "" : "s");
  return text;
}

RecordComparison compare_records(const Record& before, const Record& after) {
  RecordComparison c;
  auto find = [](const Record& record, const std::string& key) {
    return std::find_if(record.rows.begin(), record.rows.end(), [&](const RecordedRow& r) { return r.key == key; });
  };
  int64_t common = 0;
  for (const RecordedRow& row : before.rows) find(after, row.key) == after.rows.end() ? c.only_before.push_back(row.key) : void(++common);
  if (!common)
    fail(ErrorCode::usage,
         "[bench] the two measurements have no row in common (the file has {}); give the suite, --filter, threads and device that it was measured with",
         before.rows.empty() ? "none" : before.rows.front().key);
  if (before.machine != after.machine) c.remarks.push_back(fmt::format("measured on another machine: {} before, {} now", before.machine, after.machine));
  c.confidence = 1 - kFamily / double(common);
  for (const RecordedRow& row : after.rows) {
    const auto old = find(before, row.key);
    if (old == before.rows.end()) {
      c.only_after.push_back(row.key);
      continue;
    }
    RowComparison r{.key = row.key, .busy = row.busy() || old->busy()};
    // Next to other programs a run depends on what they do.
    const double between = r.busy ? 2 * kBetweenRuns : kBetweenRuns;
    r.time = compare_times(old->medians(), row.medians(), c.confidence, between);
    r.verdict = r.time.verdict;
    // A change of the machine's own speed moves the time, but not its ratio to the ceiling, which is noisier: it only has to show half of the change.
    if (const std::vector<double> a = old->relative(), b = row.relative(); !a.empty() && !b.empty() && r.verdict != Change::same)
      if (std::log(compare_times(a, b, c.confidence, between).ratio) / std::log(r.time.ratio) < 0.5) r.verdict = Change::same;
    c.rows.push_back(r);
  }
  return c;
}

}  // namespace ridge::bench
