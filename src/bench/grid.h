// Many configurations of one step, compared: the grid of `ridge bench configs`, the devices and number formats of `devices`, their ranking and picture.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/record.h"

namespace ridge::bench {

// A task with settings. `config`: the words that differ within the grid, `shared`: the others.
struct GridPoint {
  std::string task;
  std::vector<std::string> shared, config;
  std::string label;  // of config: "threads=1 precision=bf16", "cpu bf16"
};

// Every combination of "threads=1,2 precision=fp32,bf16" and the tasks or presets that come before the first setting. Settings that are lists themselves (data)
// span no axis. ErrorCode::usage for a word that is neither a task nor a preset, and for more than 1000 combinations.
std::vector<GridPoint> grid_of(const std::vector<std::string>& words);

// Every usable device and number format for the same words, the CPU and fp32 first. ErrorCode::usage if they set device or precision.
std::vector<GridPoint> devices_of(const std::vector<std::string>& words);

// A row of a process as printed by to_json(StepResult), as a row of its grid.
std::string row_of(const GridPoint& point, std::string_view suite, const std::string& json_line);

struct RankedRow {
  std::string label;
  size_t place = 0;              // in the record
  std::vector<double> per_unit;  // seconds per unit, one for each process
  double rate = 0;               // units per second
  Interval interval = {};        // of the rate
};
struct Ranking {
  std::string name, unit;
  std::vector<RankedRow> rows;           // fastest first
  std::string recommended;               // a label
  std::vector<std::string> sentences{};  // why
};
// One for each task or model. Of rows that are equally fast, the one that comes first in the record is recommended.
std::vector<Ranking> rank(const Record& record);

TextTable table_of(const Record& record, const std::vector<Ranking>& rankings);      // fastest first
std::string picture_of(const Record& record, const std::vector<Ranking>& rankings);  // SVG: bars of rates with their intervals

}  // namespace ridge::bench
