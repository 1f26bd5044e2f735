#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>

#include "machine/core_kinds.h"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "machine/ceiling_kernels.h"

namespace ridge {

#if defined(__linux__)
namespace {

using Clock = std::chrono::steady_clock;

bool pin_this_thread(int cpu) {
  cpu_set_t* set = CPU_ALLOC(cpu + 1);
  if (!set) return false;
  const size_t bytes = CPU_ALLOC_SIZE(cpu + 1);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(cpu, bytes, set);
  const bool ok = pthread_setaffinity_np(pthread_self(), bytes, set) == 0;
  CPU_FREE(set);
  return ok;
}

// Short windows, so that some are not interrupted. An idle core takes its time to reach its clock: on until a while has brought
// nothing more.
double best_gflops() {
  constexpr double kWindowNs = 1e5, kSettledNs = 1.2e6, kMostNs = 1e7;
  const auto& kernels = ceiling_kernels().fma;
  const auto kernel = std::find_if(kernels.begin(), kernels.end(), [](const FmaKernel& k) { return k.dtype == DType::f32; });
  if (kernel == kernels.end()) return 0;
  auto ns_since = [](Clock::time_point start) { return std::chrono::duration<double, std::nano>(Clock::now() - start).count(); };
  auto ns_of = [&](int64_t iterations) {
    const auto start = Clock::now();
    volatile float sink = kernel->run(iterations);
    (void)sink;
    return std::max(1.0, ns_since(start));
  };
  constexpr int64_t kMostIterations = 1 << 20;
  int64_t iterations = 64;
  for (double ns; (ns = ns_of(iterations)) < kWindowNs && iterations < kMostIterations;) iterations *= ns < kWindowNs / 4 ? 4 : 2;
  double best = 0, improved = 0;
  const auto start = Clock::now();
  for (double now = 0; now - improved < kSettledNs && now < kMostNs; now = ns_since(start)) {
    const double rate = double(iterations) * kernel->flops / ns_of(iterations);
    if (rate > 1.02 * best) improved = now;
    best = std::max(best, rate);
  }
  return best;
}

}  // namespace

double measure_cpu(int cpu) {
  double gflops = 0;
  if (cpu < 0) return 0;
  try {
    std::thread([&] { gflops = pin_this_thread(cpu) ? best_gflops() : 0; }).join();
  } catch (const std::system_error&) {  // no more threads to be had
  }
  return gflops;
}

#else

double measure_cpu(int) { return 0; }

#endif

}  // namespace ridge
