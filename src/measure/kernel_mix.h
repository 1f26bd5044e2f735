// How good a thread team is: its throughput on a small mix of real kernels while a training run's other threads are running.
#pragma once
#include <vector>

#include "threads/thread_team.h"

namespace ridge {

// Rounds of the mix per second on each team: a matmul, an elementwise kernel and a row reduction, sized for the largest team. The teams take turns, so that a
// change of the machine's speed affects all of them. A loader, a logger and a sampler run concurrently. 0 for a team that cannot be created.
std::vector<double> measure_kernel_mix(const std::vector<TeamOptions>& teams, double seconds = 0.25);

}  // namespace ridge
