#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>

#include "machine/affinity.h"
#include "machine/core_kinds.h"
#include "measure/ceiling_kernels.h"

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;

// Short windows, so that some are not interrupted. An idle core takes a while to reach its clock, so measuring continues until results stop improving for a
// while.
double best_gflops() {
  constexpr double kWindowNs = 1e5, kSettledNs = 1.2e6, kMaxNs = 1e7;
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
  constexpr int64_t kMaxIterations = 1 << 20;
  int64_t iterations = 64;
  for (double ns; (ns = ns_of(iterations)) < kWindowNs && iterations < kMaxIterations;) iterations *= ns < kWindowNs / 4 ? 4 : 2;
  double best = 0, improved = 0;
  const auto start = Clock::now();
  for (double now = 0; now - improved < kSettledNs && now < kMaxNs; now = ns_since(start)) {
    const double rate = double(iterations) * kernel->flops / ns_of(iterations);
    if (rate > 1.02 * best) improved = now;
    best = std::max(best, rate);
  }
  return best;
}

}  // namespace

double measure_cpu(int cpu) {
  double gflops = 0;
  try {
    std::thread([&] { gflops = pin_this_thread(cpu) ? best_gflops() : 0; }).join();
  } catch (const std::system_error&) {  // no more threads available
  }
  return gflops;
}

}  // namespace ridge
