// The learning rate of each attempted step.
#pragma once
#include <cstdint>

namespace ridge {

struct Schedule {
  enum class Kind { cosine, linear, constant } kind = Kind::cosine;
  double lr = 1e-3, min_lr = 1e-4;
  int64_t warmup = 0, steps = 1;
  double rate(int64_t step) const;  // step 0 is the first; past the end min_lr (constant: lr)
};

}  // namespace ridge
