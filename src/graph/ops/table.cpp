#include "graph/ops/table.h"

#include "graph/ops/rows.h"

namespace ridge {
namespace {

using namespace ops;
using enum OpRow::Traits;

constexpr std::array kRows = {
    // op, operands (min, max), traits, infer, vjp, decompose, cost, samples
    OpRow{Op::neg, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::abs, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_kinked},
    OpRow{Op::sign, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_kinked},
    OpRow{Op::exp, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::expm1, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::log, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_positive},
    OpRow{Op::log1p, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_positive},
    OpRow{Op::sqrt, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_positive},
    OpRow{Op::rsqrt, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_positive},
    OpRow{Op::sin, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::cos, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::tanh, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::sigmoid, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::relu, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_kinked},
    OpRow{Op::gelu_tanh, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::gelu_erf, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::silu, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::softplus, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::erf, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::floor, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_kinked},
    OpRow{Op::ceil, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_kinked},
    OpRow{Op::round, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_kinked},
    OpRow{Op::is_finite, 1, 1, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::logical_not, 1, 1, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_logic},
    OpRow{Op::gelu_tanh_grad, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::gelu_erf_grad, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::silu_grad, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    OpRow{Op::cast, 1, 1, none, infer_cast, vjp_cast, nullptr, cost_elementwise, samples_cast},
    OpRow{Op::add, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_binary},
    OpRow{Op::sub, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_binary},
    OpRow{Op::mul, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_binary},
    OpRow{Op::div, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_divisor},
    OpRow{Op::pow, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_power},
    OpRow{Op::minimum, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_binary},
    OpRow{Op::maximum, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_binary},
    OpRow{Op::mod, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_divisor},
    OpRow{Op::equal, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_integer_like},
    OpRow{Op::not_equal, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_integer_like},
    OpRow{Op::less, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_integer_like},
    OpRow{Op::less_equal, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_integer_like},
    OpRow{Op::greater, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_integer_like},
    OpRow{Op::greater_equal, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_integer_like},
    OpRow{Op::logical_and, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_logic},
    OpRow{Op::logical_or, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_logic},
    OpRow{Op::logical_xor, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_logic},
    OpRow{Op::select, 3, 3, none, infer_elementwise, vjp_select, nullptr, cost_elementwise, samples_select},
    OpRow{Op::clamp, 3, 3, none, infer_elementwise, vjp_clamp, nullptr, cost_elementwise, samples_clamp},

    OpRow{Op::input, 0, 0, no_gradient | source, infer_none, nullptr, nullptr, cost_free, nullptr},
    OpRow{Op::literal, 0, 0, no_gradient | source, infer_literal, nullptr, nullptr, cost_free, nullptr},
    OpRow{Op::iota, 0, 0, no_gradient, infer_iota, nullptr, nullptr, cost_bytes, samples_iota},
    OpRow{Op::random_uniform, 3, 3, no_gradient, infer_random, nullptr, nullptr, cost_bytes, samples_random},
    OpRow{Op::random_bits, 3, 3, no_gradient, infer_random, nullptr, nullptr, cost_bytes, samples_random},
    OpRow{Op::stop_gradient, 1, 1, no_gradient, infer_same, nullptr, nullptr, cost_free, samples_one},
    OpRow{Op::custom, 1, -1, source, infer_same, vjp_custom, nullptr, cost_free, nullptr},
    OpRow{Op::get, 1, 1, source, infer_none, vjp_get, nullptr, cost_free, nullptr},

    OpRow{Op::reshape, 1, 1, none, infer_reshape, vjp_reshape, nullptr, cost_free, samples_reshape},
    OpRow{Op::permute, 1, 1, none, infer_permute, vjp_permute, nullptr, cost_free, samples_permute},
    OpRow{Op::expand, 1, 1, none, infer_expand, vjp_expand, nullptr, cost_free, samples_expand},
    OpRow{Op::slice, 1, 1, none, infer_slice, vjp_slice, nullptr, cost_free, samples_slice},
    OpRow{Op::flip, 1, 1, none, infer_flip, vjp_flip, nullptr, cost_free, samples_flip},
    OpRow{Op::windows, 1, 1, none, infer_windows, vjp_windows, nullptr, cost_free, samples_windows},
    OpRow{Op::pad, 1, 1, none, infer_pad, vjp_pad, nullptr, cost_bytes, samples_pad},
    OpRow{Op::concat, 1, -1, none, infer_concat, vjp_concat, nullptr, cost_bytes, samples_concat},

    OpRow{Op::dynamic_slice, 1, -1, none, infer_dynamic_slice, vjp_dynamic_slice, nullptr, cost_bytes, samples_dynamic_slice},
    OpRow{Op::dynamic_update_slice, 2, -1, none, infer_dynamic_update_slice, vjp_dynamic_update_slice, nullptr, cost_bytes, samples_dynamic_update_slice},
    OpRow{Op::gather, 2, 2, none, infer_gather, vjp_gather, nullptr, cost_bytes, samples_gather},
    OpRow{Op::scatter, 3, 3, none, infer_scatter, vjp_scatter, nullptr, cost_bytes, samples_scatter},
    OpRow{Op::scatter_add, 3, 3, none, infer_scatter, vjp_scatter_add, nullptr, cost_bytes, samples_scatter},
    OpRow{Op::take, 2, 2, none, infer_take, vjp_take, nullptr, cost_bytes, samples_take},
    OpRow{Op::take_grad, 2, 2, none, infer_take_grad, vjp_take_grad, nullptr, cost_bytes, samples_take_grad},
    OpRow{Op::fold, 1, 1, none, infer_fold, vjp_fold, nullptr, cost_bytes, samples_fold},
    OpRow{Op::sort, 1, 1, none, infer_sort, vjp_sort, nullptr, cost_bytes, samples_sort},

    OpRow{Op::reduce_sum, 1, 1, none, infer_reduce, vjp_reduce_sum, nullptr, cost_reduce, samples_reduce},
    OpRow{Op::reduce_max, 1, 1, none, infer_reduce, vjp_reduce_extreme, nullptr, cost_reduce, samples_reduce},
    OpRow{Op::reduce_min, 1, 1, none, infer_reduce, vjp_reduce_extreme, nullptr, cost_reduce, samples_reduce},
    OpRow{Op::reduce_prod, 1, 1, none, infer_reduce, vjp_reduce_prod, nullptr, cost_reduce, samples_reduce},
    OpRow{Op::arg_max, 1, 1, no_gradient, infer_arg, nullptr, nullptr, cost_reduce, samples_arg},
    OpRow{Op::arg_min, 1, 1, no_gradient, infer_arg, nullptr, nullptr, cost_reduce, samples_arg},
    OpRow{Op::cumsum, 1, 1, none, infer_cumsum, vjp_cumsum, nullptr, cost_bytes, samples_cumsum},

    OpRow{Op::matmul, 2, 2, none, infer_matmul, vjp_matmul, nullptr, cost_matmul, samples_matmul},
    OpRow{Op::conv, 2, 2, macro, infer_conv, vjp_conv, decompose_conv, cost_conv, samples_conv},
    OpRow{Op::attention, 3, 8, macro, infer_attention, vjp_attention, decompose_attention, cost_attention, samples_attention},
    OpRow{Op::attention_grad, 6, 11, macro | by_decomposition, infer_attention_grad, nullptr, decompose_attention_grad, cost_attention, samples_attention_grad},
    OpRow{Op::scan, 1, -1, none, infer_scan, vjp_scan, nullptr, cost_scan, samples_scan},
};

constexpr bool complete(const decltype(kRows)& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const OpRow& r = rows[i];
    if (r.op != Op(i) || !r.infer || !r.cost) return false;
    if (!r.vjp && !(r.traits & (no_gradient | by_decomposition))) return false;
    if (!r.decompose && (r.traits & (macro | by_decomposition))) return false;
    if (!r.samples && !(r.traits & source)) return false;
  }
  return true;
}
static_assert(kRows.size() == size_t(Op::count), "an op has no row");
static_assert(complete(kRows), "a row has a hole or is out of order");

}  // namespace

const OpRow& row(Op op) { return kRows[size_t(op)]; }

}  // namespace ridge
