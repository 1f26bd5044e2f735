// Loops over time as rows: steps without and with products, forward and backward.
#pragma once
#include <string>
#include <vector>

#include "bench/compiled.h"

namespace ridge::bench {

struct LoopRow {
  std::string name;
  int64_t steps;
  Trace trace;
};
std::vector<LoopRow> loop_formulas();
std::vector<Row> loop_rows();

// How the loops of a compiled program run, from its dump: "resident", "unrolled", both, or nothing if it says nothing about loops.
std::string loops_in(const std::string& dump);

}  // namespace ridge::bench
