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

// The lines of a compiled program's dump about its loops: "loop of 16 steps, resident: 64 blocks of 256 threads, …".
std::vector<std::string> loop_lines(const std::string& dump);

// How these loops run: "resident", "unrolled", both, or nothing if the dump says nothing about loops.
std::string loops_in(const std::string& dump);

// Stages of a time step in all loops together, forward and backward; 0 unless all of them are resident.
int loop_stages(const std::string& dump);

}  // namespace ridge::bench
