// The true kinds of cores. What the system reports is a hint: some chips are reported with too many kinds, some with too few,
// some with none. A short measurement on some cores of each cluster decides.
#pragma once
#include <functional>

#include "machine/topology.h"

namespace ridge {

// The speed of one CPU in any unit, the same for all of them; 0: cannot be told.
using MeasureCpu = std::function<double(int cpu)>;

// Measures some cores of every cluster, more where they differ, and splits and merges the kinds accordingly; the remarks say what
// changed. Only CPUs in `allowed` are measured (empty: all), and at most 64 of them, however large the machine. Without a usable
// measurement the kinds stay those of the hints.
void confirm_kinds(Topology& topology, const MeasureCpu& measure, const std::vector<int>& allowed = {});

// GFLOP/s of multiply-adds on a thread pinned there: some ms, until the clock has settled, 10 ms at most. 0 where threads cannot be pinned.
double measure_cpu(int cpu);

}  // namespace ridge
