#include <cmath>

#include "ridge/nn.h"

namespace ridge {
namespace {

Tensor centred_uniform(const Shape& shape, int64_t inputs) {
  double bound = 1 / std::sqrt(double(inputs));
  Tensor t = uniform(shape) * (2 * bound) - bound;
  t.eval();
  return t;
}

}  // namespace

Linear::Linear(int64_t in, int64_t out, bool with_bias) : weight(centred_uniform({out, in}, in)) {
  if (with_bias) bias = centred_uniform({out}, in);
}

LayerNorm::LayerNorm(int64_t width, bool with_bias) : weight(full({width}, 1)) {
  weight.eval();
  if (with_bias) bias = Tensor::zeros({width});
}

Embedding::Embedding(int64_t entries, int64_t width) : weight(normal({entries, width}) * 0.02) { weight.eval(); }

Conv2d::Conv2d(int64_t in, int64_t out, int64_t window, ConvArgs a, bool with_bias)
    : weight(centred_uniform({out, in / a.groups, window, window}, in / a.groups * window * window)), args(std::move(a)) {
  if (with_bias) bias = centred_uniform({out}, in / args.groups * window * window);
}

Tensor Conv2d::operator()(const Tensor& x) const {
  Tensor y = conv2d(x, weight, args);
  return bias.defined() ? y + reshape(bias, {-1, 1, 1}) : y;
}

}  // namespace ridge
