#include "rl/numbers.h"

namespace ridge::rl {

std::pair<Tensor, Tensor> sine_cosine(const Tensor& x) {
  // x = quarter · π/2 + r with |r| <= π/4; the parts of π/2 have few bits, so that their products with `quarter` are exact in f32.
  const Tensor quarter = floor(x * num(0.63661977236758134308) + num(0.5));
  const Tensor r = ((x - quarter * num(1.5703125)) - quarter * num(4.8351287841796875e-4)) - quarter * num(3.1391647865048132169e-7);
  const Tensor r2 = r * r;
  auto series = [&](std::initializer_list<double> coefficients) {  // highest power first
    Tensor sum;
    for (double c : coefficients) sum = sum.defined() ? sum * r2 + num(c) : num(c);
    return sum;
  };
  const Tensor s = r * series({-1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1});
  const Tensor c = series({1.0 / 20922789888000, -1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5, 1});
  const Tensor turn = quarter - num(4) * floor(quarter * num(0.25));  // 0 … 3
  const Tensor odd = equal(turn, num(1)), two = equal(turn, num(2)), three = equal(turn, num(3));
  const Tensor swapped = logical_or(odd, three);
  const Tensor sine = where(swapped, c, s), cosine = where(swapped, s, c);
  return {where(logical_or(two, three), -sine, sine), where(logical_or(odd, two), -cosine, cosine)};
}

}  // namespace ridge::rl
