#include "graph/ops/table.h"

#include <type_traits>

#include "graph/ops/rows.h"

namespace ridge {
namespace {

using namespace ops;
using enum OpRow::Traits;

// A row and which of its places are filled, told from the types: sanitizers keep addresses of functions out of constants.
struct Row {
  template <class Infer, class Vjp, class Decompose, class Cost, class Samples>
  constexpr Row(Op op, int min_in, int max_in, uint32_t traits, Infer infer, Vjp vjp, Decompose decompose, Cost cost, Samples samples)
      : row{op, min_in, max_in, traits, infer, vjp, decompose, cost, samples},
        infers(filled<Infer>),
        differentiates(filled<Vjp>),
        decomposes(filled<Decompose>),
        costs(filled<Cost>),
        has_samples(filled<Samples>) {}
  template <class F>
  static constexpr bool filled = !std::is_null_pointer_v<F>;

  OpRow row;
  bool infers, differentiates, decomposes, costs, has_samples;
};

constexpr std::array kRows = {
    // op, operands (min, max), traits, infer, vjp, decompose, cost, samples
    Row{Op::neg, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    Row{Op::abs, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_kinked},
    Row{Op::sign, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_kinked},
    Row{Op::exp, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    Row{Op::expm1, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    Row{Op::log, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_positive},
    Row{Op::log1p, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_positive},
    Row{Op::sqrt, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_positive},
    Row{Op::rsqrt, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_positive},
    Row{Op::sin, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    Row{Op::cos, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    Row{Op::tanh, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    Row{Op::sigmoid, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    Row{Op::relu, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_kinked},
    Row{Op::gelu_tanh, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    Row{Op::gelu_erf, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    Row{Op::silu, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    Row{Op::softplus, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    Row{Op::erf, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    Row{Op::floor, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_kinked},
    Row{Op::ceil, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_kinked},
    Row{Op::round, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_kinked},
    Row{Op::is_finite, 1, 1, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_smooth},
    Row{Op::logical_not, 1, 1, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_logic},
    Row{Op::gelu_tanh_grad, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    Row{Op::gelu_erf_grad, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    Row{Op::silu_grad, 1, 1, none, infer_elementwise, vjp_unary, nullptr, cost_elementwise, samples_smooth},
    Row{Op::cast, 1, 1, none, infer_cast, vjp_cast, nullptr, cost_elementwise, samples_cast},
    Row{Op::add, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_binary},
    Row{Op::sub, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_binary},
    Row{Op::mul, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_binary},
    Row{Op::div, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_divisor},
    Row{Op::pow, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_power},
    Row{Op::minimum, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_binary},
    Row{Op::maximum, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_binary},
    Row{Op::mod, 2, 2, none, infer_elementwise, vjp_binary, nullptr, cost_elementwise, samples_divisor},
    Row{Op::equal, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_integer_like},
    Row{Op::not_equal, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_integer_like},
    Row{Op::less, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_integer_like},
    Row{Op::less_equal, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_integer_like},
    Row{Op::greater, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_integer_like},
    Row{Op::greater_equal, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_integer_like},
    Row{Op::logical_and, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_logic},
    Row{Op::logical_or, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_logic},
    Row{Op::logical_xor, 2, 2, no_gradient, infer_comparison, nullptr, nullptr, cost_elementwise, samples_logic},
    Row{Op::select, 3, 3, none, infer_elementwise, vjp_select, nullptr, cost_elementwise, samples_select},
    Row{Op::clamp, 3, 3, none, infer_elementwise, vjp_clamp, nullptr, cost_elementwise, samples_clamp},

    Row{Op::input, 0, 0, no_gradient | source, infer_none, nullptr, nullptr, cost_free, nullptr},
    Row{Op::literal, 0, 0, no_gradient | source, infer_literal, nullptr, nullptr, cost_free, nullptr},
    Row{Op::iota, 0, 0, no_gradient, infer_iota, nullptr, nullptr, cost_bytes, samples_iota},
    Row{Op::random_uniform, 3, 3, no_gradient, infer_random, nullptr, nullptr, cost_bytes, samples_random},
    Row{Op::random_bits, 3, 3, no_gradient, infer_random, nullptr, nullptr, cost_bytes, samples_random},
    Row{Op::check_class, 1, 1, no_gradient, infer_check_class, nullptr, nullptr, cost_bytes, samples_check_class},
    Row{Op::stop_gradient, 1, 1, no_gradient, infer_same, nullptr, nullptr, cost_free, samples_one},
    Row{Op::custom, 1, -1, source, infer_same, vjp_custom, nullptr, cost_free, nullptr},
    Row{Op::get, 1, 1, source, infer_none, vjp_get, nullptr, cost_free, nullptr},

    Row{Op::reshape, 1, 1, none, infer_reshape, vjp_reshape, nullptr, cost_free, samples_reshape},
    Row{Op::permute, 1, 1, none, infer_permute, vjp_permute, nullptr, cost_free, samples_permute},
    Row{Op::expand, 1, 1, none, infer_expand, vjp_expand, nullptr, cost_free, samples_expand},
    Row{Op::slice, 1, 1, none, infer_slice, vjp_slice, nullptr, cost_free, samples_slice},
    Row{Op::flip, 1, 1, none, infer_flip, vjp_flip, nullptr, cost_free, samples_flip},
    Row{Op::windows, 1, 1, none, infer_windows, vjp_windows, nullptr, cost_free, samples_windows},
    Row{Op::pad, 1, 1, none, infer_pad, vjp_pad, nullptr, cost_bytes, samples_pad},
    Row{Op::concat, 1, -1, none, infer_concat, vjp_concat, nullptr, cost_bytes, samples_concat},

    Row{Op::dynamic_slice, 1, -1, none, infer_dynamic_slice, vjp_dynamic_slice, nullptr, cost_picked, samples_dynamic_slice},
    Row{Op::dynamic_update_slice, 2, -1, none, infer_dynamic_update_slice, vjp_dynamic_update_slice, nullptr, cost_bytes, samples_dynamic_update_slice},
    Row{Op::gather, 2, 2, none, infer_gather, vjp_gather, nullptr, cost_picked, samples_gather},
    Row{Op::scatter, 3, 3, none, infer_scatter, vjp_scatter, nullptr, cost_bytes, samples_scatter},
    Row{Op::scatter_add, 3, 3, none, infer_scatter, vjp_scatter_add, nullptr, cost_bytes, samples_scatter},
    Row{Op::take, 2, 2, none, infer_take, vjp_take, nullptr, cost_picked, samples_take},
    Row{Op::take_grad, 2, 2, none, infer_take_grad, vjp_take_grad, nullptr, cost_bytes, samples_take_grad},
    Row{Op::fold, 1, 1, none, infer_fold, vjp_fold, nullptr, cost_bytes, samples_fold},
    Row{Op::sort, 1, 1, none, infer_sort, vjp_sort, nullptr, cost_bytes, samples_sort},

    Row{Op::reduce_sum, 1, 1, none, infer_reduce, vjp_reduce_sum, nullptr, cost_reduce, samples_reduce},
    Row{Op::reduce_max, 1, 1, none, infer_reduce, vjp_reduce_extreme, nullptr, cost_reduce, samples_reduce},
    Row{Op::reduce_min, 1, 1, none, infer_reduce, vjp_reduce_extreme, nullptr, cost_reduce, samples_reduce},
    Row{Op::reduce_prod, 1, 1, none, infer_reduce, vjp_reduce_prod, nullptr, cost_reduce, samples_reduce},
    Row{Op::arg_max, 1, 1, no_gradient, infer_arg, nullptr, nullptr, cost_reduce, samples_arg},
    Row{Op::arg_min, 1, 1, no_gradient, infer_arg, nullptr, nullptr, cost_reduce, samples_arg},
    Row{Op::cumsum, 1, 1, none, infer_cumsum, vjp_cumsum, nullptr, cost_bytes, samples_cumsum},

    Row{Op::matmul, 2, 2, none, infer_matmul, vjp_matmul, nullptr, cost_matmul, samples_matmul},
    Row{Op::conv, 2, 2, macro, infer_conv, vjp_conv, decompose_conv, cost_conv, samples_conv},
    Row{Op::attention, 3, 8, macro, infer_attention, vjp_attention, decompose_attention, cost_attention, samples_attention},
    Row{Op::attention_grad, 6, 11, macro | by_decomposition, infer_attention_grad, nullptr, decompose_attention_grad, cost_attention, samples_attention_grad},
    Row{Op::scan, 1, -1, none, infer_scan, vjp_scan, nullptr, cost_scan, samples_scan},
};

constexpr bool complete(const decltype(kRows)& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& r = rows[i];
    const uint32_t traits = r.row.traits;
    if (r.row.op != Op(i) || !r.infers || !r.costs) return false;
    if (!r.differentiates && !(traits & (no_gradient | by_decomposition))) return false;
    if (!r.decomposes && (traits & (macro | by_decomposition))) return false;
    if (!r.has_samples && !(traits & source)) return false;
  }
  return true;
}
static_assert(kRows.size() == size_t(Op::count), "an op has no row");
static_assert(complete(kRows), "a row has a hole or is out of order");

}  // namespace

const OpRow& row(Op op) { return kRows[size_t(op)].row; }

}  // namespace ridge
