// The actual kinds of cores. What the system reports is only a hint: it reports too many kinds for some chips, too few for others, and none for some. A short
// measurement on some cores of each cluster decides.
#pragma once
#include <functional>

#include "machine/topology.h"

namespace ridge {

// The speed of one CPU, in any unit common to all; 0: unknown.
using MeasureCpu = std::function<double(int cpu)>;

// Measures some cores of every cluster, more where they differ, and splits or merges the kinds accordingly; the remarks say what changed. Measures only CPUs in
// `allowed` (empty: all), and at most 64, however large the machine. Without a usable measurement the kinds stay as hinted.
void confirm_kinds(Topology& topology, const MeasureCpu& measure, const std::vector<int>& allowed = {});

// GFLOP/s of multiply-adds on a thread pinned there: a few ms, until the clock settles, at most 10 ms. 0 if threads cannot be pinned.
double measure_cpu(int cpu);

}  // namespace ridge
