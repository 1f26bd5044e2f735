// How a policy sees observations and predicts values: by their running statistics.
#pragma once
#include "ridge/ops.h"

namespace ridge {

inline constexpr double kLargestObservation = 10;  // of normalised ones

// Inputs of programs that act.
struct Scales {
  Tensor shift, scale, value;  // of observations [n] (undefined: not normalised), and mean and deviation of values [2]
  Tensor observation(const Tensor& x) const { return shift.defined() ? clamp((x - shift) * scale, -kLargestObservation, kLargestObservation) : x; }
  Tensor real_value(const Tensor& v) const { return v * slice(value, 0, 1, 2) + slice(value, 0, 0, 1); }
};

}  // namespace ridge
