#include "machine/gpu_ceilings.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/digits.h"

namespace ridge {
namespace {

// Three digits, in the unit or thousands of it.
std::string with_unit(double x, const char* unit, const char* thousand) {
  if (x >= 1000) return fmt::format("{:.3g} {}", x / 1000, thousand);
  return x >= 100 ? fmt::format("{:.0f} {}", x, unit) : x >= 10 ? fmt::format("{:.1f} {}", x, unit) : fmt::format("{:.2g} {}", x, unit);
}

}  // namespace

Measured summarize(std::vector<double> samples) {
  Measured m;
  m.samples = int(samples.size());
  if (samples.empty()) return m;
  std::sort(samples.begin(), samples.end());
  auto quantile = [&](double q) {
    const double at = q * double(samples.size() - 1);
    const size_t i = size_t(at);
    return samples[i] + (at - double(i)) * (samples[std::min(i + 1, samples.size() - 1)] - samples[i]);
  };
  m.median = quantile(0.5);
  m.spread = m.median > 0 ? (quantile(0.75) - quantile(0.25)) / m.median : 0;
  return m;
}

std::string rate_text(double gflops) { return with_unit(gflops, "GFLOP/s", "TFLOP/s"); }

std::string bandwidth_text(double gbs) { return with_unit(gbs, "GB/s", "TB/s"); }

const GpuCeilings::Rate* GpuCeilings::fastest() const {
  const auto best = std::max_element(matmul.begin(), matmul.end(), [](const Rate& a, const Rate& b) { return a.gflops.median < b.gflops.median; });
  return best == matmul.end() ? nullptr : &*best;
}

}  // namespace ridge
