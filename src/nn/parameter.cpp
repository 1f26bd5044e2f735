#include "nn/parameter.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <thread>

#include "base/error.h"
#include "base/rng.h"

namespace ridge {

Shape used_shape(const Parameter& p) {
  Shape shape = p.shape;
  if (p.used_rows > 0) shape[0] = p.used_rows;
  return shape;
}

namespace {

// Normal values starting at index `first`, by Box-Muller in double: each depends only on its index. One block of random words gives two
// values.
void draw(const Parameter& p, const RandomKey& key, size_t first, std::span<float> values) {
  std::array<uint32_t, 4> words{};
  for (size_t k = 0; k < values.size(); ++k) {
    const size_t i = first + k;
    if (k == 0 || i % 2 == 0) words = philox(key, i / 2);
    const uint32_t* pair = words.data() + i % 2 * 2;
    const double u = 1 - double(uniform_from(pair[0])), angle = 2 * M_PI * double(uniform_from(pair[1]));
    values[k] = float(p.mean + p.deviation * std::sqrt(-2 * std::log(u)) * std::cos(angle));
  }
}

}  // namespace

void initialize(const Parameter& p, uint64_t seed, uint32_t index, std::span<float> values) {
  if (int64_t(values.size()) != p.shape.numel())
    fail(ErrorCode::shape, "[initialize] {} has shape {}, got room for {} values", p.name, to_string(p.shape), values.size());
  const size_t used = size_t(used_shape(p).numel());
  std::fill(values.begin() + long(used), values.end(), 0.0f);
  if (p.deviation == 0) {
    std::fill_n(values.begin(), used, float(p.mean));
    return;
  }
  // Large models have hundreds of millions of values: several threads each draw one range at a time.
  constexpr size_t kStretch = size_t(1) << 19;
  const size_t stretches = (used + kStretch - 1) / kStretch;
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t s = next++; s < stretches; s = next++)
      draw(p, {seed, 0, index}, s * kStretch, values.subspan(s * kStretch, std::min(kStretch, used - s * kStretch)));
  };
  std::vector<std::jthread> helpers(std::min<size_t>(stretches, std::max(1u, std::thread::hardware_concurrency())) - (stretches > 0));
  for (std::jthread& t : helpers) t = std::jthread(work);
  work();
}

std::vector<double> decay_values(std::span<const Parameter> parameters, double value) {
  std::vector<double> out;
  for (const Parameter& p : parameters) out.push_back(p.decay ? value : 0);
  return out;
}

}  // namespace ridge
