// Figures of several fresh processes, as shown, stored in a file and compared. Rows are the JSON objects that `ridge bench --json --raw` prints, whatever the
// suite.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "measure/statistics.h"

namespace ridge::bench {

// One row of one process.
struct Round {
  std::vector<double> times_us;  // every sample
  double median_us = 0;
  double roof = 0;  // 0: the row has none
  double others = 0, ghz = 0, load = 0;
};

struct RecordedRow {
  std::string key;    // name, number format, state, device, threads and batch: equal for the same work
  std::string facts;  // the first process's JSON object without its samples
  std::vector<Round> rounds;

  std::vector<double> medians() const;   // of the processes
  std::vector<double> relative() const;  // times in units of what the ceiling of the same moment allows; empty without a roof
  bool busy() const;                     // other programs used more than kQuiet of the machine in half of the rounds
};

struct Record {
  std::string suite, build, machine, date;
  std::vector<RecordedRow> rows;  // in the order of the first process

  void add(const std::string& json_line);                                 // a row of the next process; lines without samples (ceilings) are left out
  std::string to_json() const;                                            // the file: ends with a newline
  static Record parse(const std::string& text, const std::string& file);  // ErrorCode::io names the file, the problem and the remedy
};
Record load_record(const std::string& file);
std::string now_text();  // "2026-11-18T16:20:05Z"

// Cells under heads; numbers are right-aligned.
struct TextTable {
  std::vector<std::string> heads;
  std::vector<std::vector<std::string>> rows;

  std::string plain() const;
  std::string markdown() const;
  std::string csv() const;  // RFC 4180
};
TextTable table_of(const Record& record);
std::string short_number(double x);  // four digits; "-" for 0

struct RowComparison {
  std::string key;
  Comparison time = {};
  Change verdict = Change::same;  // slower and faster need the time and, for rows with a ceiling, half of the change in the time relative to it
  bool busy = false;
};
struct RecordComparison {
  std::vector<RowComparison> rows;  // that both have
  std::vector<std::string> only_before, only_after;
  double confidence = 0;             // of each row, so that all together are right with at least 95 %
  std::vector<std::string> remarks;  // other machine, other suite

  int count(Change verdict) const;
  TextTable table() const;
  std::string sentence() const;  // the result in one line
};
// ErrorCode::usage if they have no row in common.
RecordComparison compare_records(const Record& before, const Record& after);

}  // namespace ridge::bench
