// How fast Ridge multiplies matrices in each number format on this CPU: what the choice of a precision goes by.
#pragma once
#include "machine/precision.h"
#include "machine/profile.h"

namespace ridge {
class ThreadTeam;
}

namespace ridge::bench {

// GFLOP/s of a square matmul whose operands are fp32, bf16 or fp16, taken in turns for so many seconds in all. tf32 has none.
std::vector<std::pair<Precision, double>> measure_precision_rates(ThreadTeam& team, double seconds = 0.15);

// The same from the profile, measured now where it holds none; what was measured is kept.
RateLookup known_precision_rates(Profile& profile, ThreadTeam& team);

}  // namespace ridge::bench
