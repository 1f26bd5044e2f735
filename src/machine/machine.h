// The machine as this process may use it: its topology cut down to its limits.
#pragma once
#include "machine/core_kinds.h"
#include "machine/limits.h"
#include "machine/topology.h"

namespace ridge {

struct Machine {
  Topology topology;  // all of it
  Limits limits;
  std::vector<CoreKind> usable;  // the kinds, with the cores and hardware threads that the limits leave; fastest first, never empty

  int cores() const;     // usable ones
  int threads() const;   // usable hardware threads
  int parallel() const;  // threads that can run at the same time: usable ones, capped by the quota, rounded up
};

Machine combine(Topology topology, Limits limits);

// Looks at everything now. Kinds are confirmed by a measurement of some milliseconds, on machines with many clusters up to 0.2 s;
// an empty function leaves them as reported.
Machine look_at_machine(const MeasureCpu& measure = measure_cpu);

}  // namespace ridge
