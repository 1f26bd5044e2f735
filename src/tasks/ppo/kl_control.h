// How the KL divergence of an epoch steers the updates after it: once for numbers on the host, and for tensors in the programs of a device.
#pragma once
#include <type_traits>

#include "rl/numbers.h"
#include "tasks/ppo/ppo.h"

namespace ridge {

inline constexpr double kRateStep = 1.5, kSmallestFactor = 0.01, kLargestFactor = 30;  // of the rate: factor of a change, and of all changes together

namespace kl_numbers {
template <class Number>
Number of(double value) {
  if constexpr (std::is_same_v<Number, double>)
    return value;
  else
    return rl::num(value);
}
inline double where(bool condition, double yes, double no) { return condition ? yes : no; }
inline double minimum(double a, double b) { return a < b ? a : b; }
inline double maximum(double a, double b) { return a > b ? a : b; }
inline bool logical_and(bool a, bool b) { return a && b; }
}  // namespace kl_numbers

// After an update with this KL divergence. Flag: bool, or a tensor of it; `made` is false before the first update of a rollout.
template <class Number, class Flag>
KlControl<Number> after_update(const KlControl<Number>& before, const Flag& made, const Flag& applied, const Number& kl, const PpoArgs& args) {
  using namespace kl_numbers;
  const auto number = [](double value) { return of<Number>(value); };
  KlControl<Number> c = before;
  c.sum = c.sum + where(applied, kl, number(0)), c.applied = c.applied + where(applied, number(1), number(0));
  c.made = c.made + where(made, number(1), number(0));
  const auto ends = c.made >= number(double(args.minibatches()));
  // An epoch of which no update was applied says nothing.
  const Number mean = c.sum / maximum(c.applied, number(1));
  const auto known = logical_and(ends, c.applied > number(0));
  if (args.target_kl > 0) c.stopped = where(logical_and(known, mean > number(args.target_kl)), number(1), c.stopped);
  if (args.adaptive_kl > 0) {
    const Number less = maximum(c.factor / number(kRateStep), number(kSmallestFactor)), more = minimum(c.factor * number(kRateStep), number(kLargestFactor));
    const Number next = where(mean > number(2 * args.adaptive_kl), less, where(mean < number(args.adaptive_kl / 2), more, c.factor));
    c.factor = where(known, next, c.factor);
  }
  for (Number* sum : {&c.sum, &c.applied, &c.made}) *sum = where(ends, number(0), *sum);
  return c;
}

}  // namespace ridge
