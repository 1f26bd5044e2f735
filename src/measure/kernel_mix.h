// What a team of threads is worth: the throughput of a small mix of real kernels, with the threads of a training run beside it.
#pragma once
#include <vector>

#include "threads/thread_team.h"

namespace ridge {

// Rounds of the mix per second on each of these teams: a matmul, an elementwise kernel, a row reduction, sized for the largest team. The
// teams take turns, so that a change of the machine's speed hits all of them. A loader, a logger and a sampler run meanwhile.
// 0 for a team that cannot be made.
std::vector<double> measure_kernel_mix(const std::vector<TeamOptions>& teams, double seconds = 0.25);

}  // namespace ridge
