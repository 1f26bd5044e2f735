// The names of all operations. What each one means is one row of the op table (graph/ops/table.h).
#pragma once
#include <cstdint>
#include <string_view>

namespace ridge {

// Elementwise operations: value of one output element from the same element of each operand. Backends implement these
// per element (f32 arithmetic for floating storage types, integers exactly); `in` is the number of operands.
// relu: x > 0 ? x : (NaN stays). mod: sign of the divisor. round: half to even. sign(NaN) = NaN. minimum, maximum: NaN wins.
// Comparison and logic give boolean. select(c, a, b). clamp(x, lo, hi). *_grad: derivative of the function at x.
// clang-format off
#define RIDGE_ELEMENTWISE_OPS(X) \
  X(neg, 1) X(abs, 1) X(sign, 1) X(exp, 1) X(expm1, 1) X(log, 1) X(log1p, 1) X(sqrt, 1) X(rsqrt, 1) \
  X(sin, 1) X(cos, 1) X(tanh, 1) X(sigmoid, 1) X(relu, 1) X(gelu_tanh, 1) X(gelu_erf, 1) X(silu, 1) X(softplus, 1) \
  X(erf, 1) X(floor, 1) X(ceil, 1) X(round, 1) X(is_finite, 1) X(logical_not, 1) X(gelu_tanh_grad, 1) X(gelu_erf_grad, 1) X(silu_grad, 1) \
  X(cast, 1) X(add, 2) X(sub, 2) X(mul, 2) X(div, 2) X(pow, 2) X(minimum, 2) X(maximum, 2) X(mod, 2) \
  X(equal, 2) X(not_equal, 2) X(less, 2) X(less_equal, 2) X(greater, 2) X(greater_equal, 2) X(logical_and, 2) X(logical_or, 2) X(logical_xor, 2) \
  X(select, 3) X(clamp, 3)
// clang-format on

// Everything else.
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
constexpr bool is_elementwise(Op op) { return op <= Op::clamp; }
constexpr bool is_movement(Op op) { return op >= Op::reshape && op <= Op::concat; }
constexpr bool is_reduction(Op op) { return op >= Op::reduce_sum && op <= Op::arg_min; }

}  // namespace ridge
