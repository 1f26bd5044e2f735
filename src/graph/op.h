// The names of all operations. Each one is defined by a row of the op table (graph/ops/table.h).
#pragma once
#include <cstdint>
#include <string_view>

namespace ridge {

// Elementwise operations compute one output element from the same element of each operand. Backends implement them per element, with f32
// arithmetic for floating storage types and exact integers.
// - relu: x > 0 ? x : 0, NaN is kept. sign(NaN) = NaN. minimum, maximum: NaN wins.
// - mod: has the sign of the divisor. round: half to even.
// - Comparison and logic ops return booleans. select(c, a, b). clamp(x, lo, hi).
// - *_grad: the derivative of the function at x.
// - random_at(seed, counter, lane), of i64: f32 in [0, 1), the first word of block `counter` with step and stream taken from the lane's halves (base/rng.h).
// Because they differ so little, this list also defines their rows of the op table: name, operand count, trait (OpRow::Traits), effort,
// gradient and test samples (vjp_… and samples_… in graph/ops/rows.h).
// clang-format off
#define RIDGE_ELEMENTWISE_OPS(X) \
  X(neg, 1, none, cheap, unary, smooth)                    X(abs, 1, none, full, unary, kinked)                     X(sign, 1, none, full, unary, kinked) \
  X(exp, 1, real, full, unary, smooth)                     X(expm1, 1, real, full, unary, smooth)                   X(log, 1, real, full, unary, positive) \
  X(log1p, 1, real, full, unary, positive)                 X(sqrt, 1, real, full, unary, positive)                  X(rsqrt, 1, real, full, unary, positive) \
  X(sin, 1, real, full, unary, smooth)                     X(cos, 1, real, full, unary, smooth)                     X(tanh, 1, real, full, unary, smooth) \
  X(sigmoid, 1, real, full, unary, smooth)                 X(relu, 1, none, full, unary, kinked)                    X(gelu_tanh, 1, real, full, unary, smooth) \
  X(gelu_erf, 1, real, full, unary, smooth)                X(silu, 1, real, full, unary, smooth)                    X(softplus, 1, real, full, unary, smooth) \
  X(erf, 1, real, full, unary, smooth)                     X(floor, 1, none, full, unary, kinked)                   X(ceil, 1, none, full, unary, kinked) \
  X(round, 1, none, full, unary, kinked)                   X(is_finite, 1, truth, full, nothing, smooth)            X(logical_not, 1, logic, full, nothing, logic) \
  X(gelu_tanh_grad, 1, real, full, unary, smooth)          X(gelu_erf_grad, 1, real, full, unary, smooth)           X(silu_grad, 1, real, full, unary, smooth) \
  X(cast, 1, none, cheap, cast, cast)                      X(add, 2, none, cheap, binary, binary)                   X(sub, 2, none, cheap, binary, binary) \
  X(mul, 2, none, cheap, binary, binary)                   X(div, 2, none, full, binary, divisor)                   X(pow, 2, none, full, binary, power) \
  X(minimum, 2, none, full, binary, binary)                X(maximum, 2, none, full, binary, binary)                X(mod, 2, none, full, binary, divisor) \
  X(equal, 2, truth, cheap, nothing, integer_like)         X(not_equal, 2, truth, cheap, nothing, integer_like)     X(less, 2, truth, cheap, nothing, integer_like) \
  X(less_equal, 2, truth, cheap, nothing, integer_like)    X(greater, 2, truth, cheap, nothing, integer_like)       X(greater_equal, 2, truth, cheap, nothing, integer_like) \
  X(logical_and, 2, logic, cheap, nothing, logic)          X(logical_or, 2, logic, cheap, nothing, logic)           X(logical_xor, 2, logic, cheap, nothing, logic) \
  X(select, 3, none, cheap, select, select)                X(clamp, 3, none, full, clamp, clamp)                    X(random_at, 3, no_gradient, full, nothing, random_at)
// clang-format on

// All other operations.
// clang-format off
#define RIDGE_OTHER_OPS(X) \
  X(input) X(literal) X(iota) X(random_uniform) X(random_bits) X(check_class) X(stop_gradient) X(custom) X(get) X(reshape) \
  X(permute) X(expand) X(slice) X(flip) X(windows) X(pad) X(concat) X(dynamic_slice) X(dynamic_update_slice) \
  X(gather) X(scatter) X(scatter_add) X(take) X(take_grad) X(fold) X(sort) X(reduce_sum) X(reduce_max) \
  X(reduce_min) X(reduce_prod) X(arg_max) X(arg_min) X(cumsum) X(matmul) X(conv) X(attention) X(attention_grad) \
  X(scan)
// clang-format on

enum class Op : uint8_t {
#define RIDGE_OP(name, ...) name,
  RIDGE_ELEMENTWISE_OPS(RIDGE_OP) RIDGE_OTHER_OPS(RIDGE_OP)
#undef RIDGE_OP
      count
};

std::string_view name(Op op);

}  // namespace ridge
