// The true kinds of cores. What the system reports is a hint: some chips are reported with too many kinds, some with too few,
// some with none. A short measurement on some cores of each cluster decides.
#pragma once
#include <functional>

#include "machine/topology.h"

namespace ridge {

// The speed of one CPU in any unit, the same for all of them; 0: cannot be told.
using MeasureCpu = std::function<double(int cpu)>;

// Kinds whose speeds differ by less than this are one.
constexpr double kSameKind = 0.15;

// Measures cores of every cluster (at most 64 measurements more than three per reported kind, however large the machine), splits
// and merges kinds accordingly and says in the remarks what changed. Only CPUs in `allowed` are measured; empty: all.
// Without a usable measurement the kinds are those of the hints, merged by the same rule.
void confirm_kinds(Topology& topology, const MeasureCpu& measure, const std::vector<int>& allowed = {});

double measure_cpu(int cpu);  // multiply-adds per ns of a dependent scalar loop and of independent ones, pinned there; about 2 ms

}  // namespace ridge
