// The learning rate of each attempted step.
#pragma once
#include <cstdint>
#include <string_view>

#include "ridge/training.h"

namespace ridge {

struct Schedule {
  using Kind = RateKind;
  Kind kind = Kind::cosine;
  double lr = 1e-3, min_lr = 1e-4;
  int64_t warmup = 0, steps = 1;
  double rate(int64_t step) const;  // steps count from 0; past the end, min_lr (constant: lr)
};

std::string_view name(RateKind kind);  // cosine, linear, constant

}  // namespace ridge
