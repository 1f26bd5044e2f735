// The machine as this process may use it: its topology restricted to its limits.
#pragma once
#include "machine/core_kinds.h"
#include "machine/limits.h"
#include "machine/topology.h"

namespace ridge {

struct Machine {
  Topology topology;  // of the whole machine
  Limits limits;
  std::vector<CoreKind> usable;  // the kinds with the cores and hardware threads that the limits allow; fastest first, never empty

  int cores() const;     // usable ones
  int threads() const;   // usable hardware threads
  int parallel() const;  // threads that can run at the same time: usable ones, capped by the quota, rounded up
};

Machine combine(Topology topology, Limits limits);

// Examines everything now. Kinds are confirmed by a measurement of a few milliseconds, up to 0.2 s on machines with many clusters; with an empty function they
// stay as reported.
Machine detect_machine(const MeasureCpu& measure = measure_cpu);

}  // namespace ridge
