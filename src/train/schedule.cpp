#include "train/schedule.h"

#include <cmath>
#include <numbers>

namespace ridge {

// nanoGPT's formula; the remaining fraction of the decay is 1 after the warm-up and 0 at the end.
double Schedule::rate(int64_t step) const {
  if (step >= steps) return kind == Kind::constant ? lr : min_lr;
  if (step < warmup) return lr * double(step + 1) / double(warmup + 1);
  if (kind == Kind::constant) return lr;
  const double done = double(step - warmup) / double(steps - warmup);
  const double left = kind == Kind::cosine ? 0.5 * (1 + std::cos(std::numbers::pi * done)) : 1 - done;
  return min_lr + left * (lr - min_lr);
}

std::string_view name(RateKind kind) {
  constexpr std::string_view kNames[] = {"cosine", "linear", "constant"};
  return kNames[size_t(kind)];
}

}  // namespace ridge
