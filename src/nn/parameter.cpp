#include "nn/parameter.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"

namespace ridge {

Shape used_shape(const Parameter& p) {
  Shape shape = p.shape;
  if (p.used_rows > 0) shape[0] = p.used_rows;
  return shape;
}

void initialize(const Parameter& p, uint64_t seed, uint32_t index, std::span<float> values) {
  if (int64_t(values.size()) != p.shape.numel())
    fail(ErrorCode::shape, "[initialize] {} has shape {}, got room for {} values", p.name, to_string(p.shape), values.size());
  RandomKey key{seed, 0, index};
  const size_t used = size_t(used_shape(p).numel());
  std::fill(values.begin() + long(used), values.end(), 0.0f);
  for (size_t i = 0; i < used; ++i) {
    if (p.deviation == 0) {
      values[i] = float(p.mean);
      continue;
    }
    // Box-Muller in double: a function of the element's index alone.
    double u = 1 - double(uniform_from(random_word(key, 2 * i))), angle = 2 * M_PI * double(uniform_from(random_word(key, 2 * i + 1)));
    values[i] = float(p.mean + p.deviation * std::sqrt(-2 * std::log(u)) * std::cos(angle));
  }
}

std::vector<double> decay_values(std::span<const Parameter> parameters, double value) {
  std::vector<double> out;
  for (const Parameter& p : parameters) out.push_back(p.decay ? value : 0);
  return out;
}

}  // namespace ridge
