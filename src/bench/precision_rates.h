// How fast Ridge multiplies matrices in each number format on this CPU, which determines the choice of precision.
#pragma once
#include "machine/measurement_store.h"
#include "machine/precision.h"

namespace ridge {
class ThreadTeam;
}

namespace ridge::bench {

// GFLOP/s of a square matmul with fp32, bf16 or fp16 operands, measured in turns for this many seconds in total. tf32 has none.
std::vector<std::pair<Precision, double>> measure_precision_rates(ThreadTeam& team, double seconds = 0.15);

// The same from the measurement store, measured and stored now if it has none.
RateLookup known_precision_rates(MeasurementStore& store, ThreadTeam& team);

}  // namespace ridge::bench
