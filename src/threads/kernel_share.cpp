#include "threads/kernel_share.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include "threads/thread_team.h"

namespace ridge {

KernelTime kernel_time(const ThreadTeam& team) {
  timespec process{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &process);
  return {std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(), double(process.tv_sec) + 1e-9 * double(process.tv_nsec),
          team.kernel_seconds()};
}

double kernel_share(const KernelTime& from, const KernelTime& to, int threads) {
  // A thread that is preempted inside a kernel seems to be computing, but a process computes no longer than its CPU time.
  const double busy = std::min(to.kernels - from.kernels, to.process - from.process), all = (to.wall - from.wall) * threads;
  return all > 0 ? std::clamp(busy / all, 0.0, 1.0) : 0;
}

}  // namespace ridge
