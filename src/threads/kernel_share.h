// How much of the cores' time a thread team spends inside kernels. Waiting for data or for other threads counts as idle, and so does spinning.
#pragma once

namespace ridge {

class ThreadTeam;

// Readings of counters, in seconds.
struct KernelTime {
  double wall = 0, process = 0, kernels = 0;  // process: CPU time; kernels: summed over threads
};
KernelTime kernel_time(const ThreadTeam& team);

// Time in kernels ÷ (wall-clock time × threads) between two readings, from 0 to 1.
double kernel_share(const KernelTime& from, const KernelTime& to, int threads);

}  // namespace ridge
