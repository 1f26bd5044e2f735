// Recurrent models in continuous time as a task: CfC, LTC and their relatives on sequences.
#pragma once
#include "train/task.h"

namespace ridge {

inline constexpr const char* kCircuitsName = "cfc";

Task circuits_task();
std::vector<BenchRow> circuit_bench_rows(bool gpu);
BenchStep circuit_bench_step(const BenchRow& row, const config::Resolved& settings);

}  // namespace ridge
