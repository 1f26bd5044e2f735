#include "graph/ops/table.h"

#include <type_traits>

#include "graph/builder.h"
#include "graph/ops/rows.h"

namespace ridge {
namespace ops {
namespace {

using enum OpRow::Traits;
using enum Effort;
using enum Fusion;

// A row and which of its entries are set. That is derived from the types, because with sanitizers function addresses are not constants.
struct Row {
  template <class Infer, class Vjp, class Decompose, class Cost, class Samples, class Batch, class Lift>
  constexpr Row(Op op, int min_in, int max_in, uint32_t traits, Fusion fusion, Effort effort, Infer infer, Vjp vjp, Decompose decompose, Cost cost,
                Samples samples, Batch batch, Lift lift)
      : row{op, min_in, max_in, traits, fusion, effort, infer, vjp, decompose, cost, samples, batch, lift},
        infers(filled<Infer>),
        differentiates(filled<Vjp>),
        decomposes(filled<Decompose>),
        costs(filled<Cost>),
        has_samples(filled<Samples>),
        follows_batch(filled<Batch>),
        lifts(filled<Lift>) {}
  template <class F>
  static constexpr bool filled = !std::is_null_pointer_v<F>;

  OpRow row;
  bool infers, differentiates, decomposes, costs, has_samples, follows_batch, lifts;
};

constexpr std::nullptr_t vjp_nothing = nullptr;

// Elementwise ops: sets what they have in common.
template <class Vjp, class Samples>
constexpr Row each(Op op, int arity, uint32_t traits, Effort effort, Vjp vjp, Samples samples) {
  traits |= elementwise | (traits & logic ? uint32_t(truth) : 0u);
  if (traits & (truth | logic)) traits |= no_gradient;
  Types (*infer)(const InferContext&) = traits & truth        ? infer_comparison
                                        : op == Op::cast      ? infer_cast
                                        : op == Op::random_at ? infer_random_at
                                                              : infer_elementwise;
  return {op, arity, arity, traits, tile, effort, infer, vjp, nullptr, cost_elementwise, samples, batch_same, lift_same};
}

constexpr std::array kRows = {
#define RIDGE_OP(name, arity, trait, effort, vjp, samples) each(Op::name, arity, trait, effort, vjp_##vjp, samples_##samples),
    RIDGE_ELEMENTWISE_OPS(RIDGE_OP)
#undef RIDGE_OP

    // op, operands (min, max), traits, fusion, effort, infer, vjp, decompose, cost, samples, batch, lift
    Row{Op::input, 0, 0, no_gradient | source | in_loop, no_kernel, full, infer_none, nullptr, nullptr, cost_free, nullptr, batch_mixes, nullptr},
    Row{Op::literal, 0, 0, no_gradient | source | in_loop, no_kernel, full, infer_literal, nullptr, nullptr, cost_free, nullptr, batch_mixes, nullptr},
    Row{Op::iota, 0, 0, no_gradient | in_loop, tile, full, infer_iota, nullptr, nullptr, cost_bytes, samples_iota, batch_mixes, nullptr},
    Row{Op::random_uniform, 3, 3, no_gradient | in_loop, tile, full, infer_random, nullptr, nullptr, cost_bytes, samples_random, batch_mixes, nullptr},
    Row{Op::random_bits, 3, 3, no_gradient | in_loop, tile, full, infer_random, nullptr, nullptr, cost_bytes, samples_random, batch_mixes, nullptr},
    Row{Op::check_class, 1, 1, no_gradient | in_loop, tile, full, infer_check_class, nullptr, nullptr, cost_bytes, samples_check_class, batch_same, nullptr},
    Row{Op::stop_gradient, 1, 1, no_gradient | in_loop, no_kernel, full, infer_same, nullptr, nullptr, cost_free, samples_one, batch_same, nullptr},
    Row{Op::custom, 1, -1, source | in_loop, no_kernel, full, infer_same, vjp_custom, nullptr, cost_free, nullptr, batch_same, nullptr},
    Row{Op::get, 1, 1, source | in_loop, no_kernel, full, infer_none, vjp_get, nullptr, cost_free, nullptr, batch_get, nullptr},

    Row{Op::reshape, 1, 1, none, view, full, infer_reshape, vjp_reshape, nullptr, cost_free, samples_reshape, batch_reshape, lift_shape},
    Row{Op::permute, 1, 1, none, view, full, infer_permute, vjp_permute, nullptr, cost_free, samples_permute, batch_permute, lift_permute},
    Row{Op::expand, 1, 1, none, view, full, infer_expand, vjp_expand, nullptr, cost_free, samples_expand, batch_keep, lift_shape},
    Row{Op::slice, 1, 1, none, view, full, infer_slice, vjp_slice, nullptr, cost_free, samples_slice, batch_slice, lift_ranges},
    Row{Op::flip, 1, 1, none, view, full, infer_flip, vjp_flip, nullptr, cost_free, samples_flip, batch_axes, lift_axes},
    Row{Op::windows, 1, 1, none, view, full, infer_windows, vjp_windows, nullptr, cost_free, samples_windows, batch_axis, lift_axis},
    Row{Op::pad, 1, 1, none, view, full, infer_pad, vjp_pad, nullptr, cost_bytes, samples_pad, batch_pad, lift_ranges},
    Row{Op::concat, 1, -1, none, view, full, infer_concat, vjp_concat, nullptr, cost_bytes, samples_concat, batch_axis, lift_axis},

    Row{Op::dynamic_slice, 1, -1, picks | in_loop, tile, full, infer_dynamic_slice, vjp_dynamic_slice, nullptr, cost_picked, samples_dynamic_slice, batch_mixes,
        nullptr},
    Row{Op::dynamic_update_slice, 2, -1, in_loop, alone, full, infer_dynamic_update_slice, vjp_dynamic_update_slice, nullptr, cost_bytes,
        samples_dynamic_update_slice, batch_mixes, nullptr},
    Row{Op::gather, 2, 2, picks, tile, full, infer_gather, vjp_gather, nullptr, cost_picked, samples_gather, batch_gather, lift_axis},
    Row{Op::scatter, 3, 3, in_loop, alone, full, infer_scatter, vjp_scatter, nullptr, cost_bytes, samples_scatter, batch_mixes, nullptr},
    Row{Op::scatter_add, 3, 3, in_loop, alone, full, infer_scatter, vjp_scatter_add, nullptr, cost_bytes, samples_scatter, batch_mixes, nullptr},
    Row{Op::take, 2, 2, picks | fixed_one, tile, full, infer_take, vjp_take, nullptr, cost_picked, samples_take, batch_take, lift_take},
    Row{Op::take_grad, 2, 2, in_loop, alone, full, infer_take_grad, vjp_take_grad, nullptr, cost_bytes, samples_take_grad, batch_mixes, nullptr},
    Row{Op::fold, 1, 1, none, alone, full, infer_fold, vjp_fold, nullptr, cost_bytes, samples_fold, batch_mixes, lift_axis},
    Row{Op::sort, 1, 1, in_loop, alone, full, infer_sort, vjp_sort, nullptr, cost_bytes, samples_sort, batch_axis, nullptr},

    Row{Op::reduce_sum, 1, 1, reduction, tile, full, infer_reduce, vjp_reduce_sum, nullptr, cost_reduce, samples_reduce, batch_reduce, lift_axes},
    Row{Op::reduce_max, 1, 1, reduction, tile, full, infer_reduce, vjp_reduce_extreme, nullptr, cost_reduce, samples_reduce, batch_reduce, lift_axes},
    Row{Op::reduce_min, 1, 1, reduction, tile, full, infer_reduce, vjp_reduce_extreme, nullptr, cost_reduce, samples_reduce, batch_reduce, lift_axes},
    Row{Op::reduce_prod, 1, 1, reduction, tile, full, infer_reduce, vjp_reduce_prod, nullptr, cost_reduce, samples_reduce, batch_reduce, lift_axes},
    Row{Op::arg_max, 1, 1, no_gradient | reduction, tile, full, infer_arg, nullptr, nullptr, cost_reduce, samples_arg, batch_reduce, lift_axes},
    Row{Op::arg_min, 1, 1, no_gradient | reduction, tile, full, infer_arg, nullptr, nullptr, cost_reduce, samples_arg, batch_reduce, lift_axes},
    Row{Op::cumsum, 1, 1, none, alone, full, infer_cumsum, vjp_cumsum, nullptr, cost_bytes, samples_cumsum, batch_axis, lift_axis},

    Row{Op::matmul, 2, 2, none, product, full, infer_matmul, vjp_matmul, nullptr, cost_matmul, samples_matmul, batch_matmul, lift_matmul},
    Row{Op::conv, 2, 2, macro | fixed_one, alone, full, infer_conv, vjp_conv, decompose_conv, cost_conv, samples_conv, batch_conv, lift_conv},
    Row{Op::attention, 3, 8, macro | in_loop, alone, full, infer_attention, vjp_attention, decompose_attention, cost_attention, samples_attention,
        batch_attention, nullptr},
    Row{Op::attention_grad, 6, 11, macro | by_decomposition | in_loop, alone, full, infer_attention_grad, nullptr, decompose_attention_grad, cost_attention,
        samples_attention_grad, batch_mixes, nullptr},
    Row{Op::scan, 1, -1, in_loop, alone, full, infer_scan, vjp_scan, nullptr, cost_scan, samples_scan, batch_mixes, nullptr},
};

constexpr bool complete(const decltype(kRows)& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& r = rows[i];
    const uint32_t traits = r.row.traits;
    if (r.row.op != Op(i) || !r.infers || !r.costs || !r.follows_batch) return false;
    if (!r.differentiates && !(traits & (no_gradient | by_decomposition))) return false;
    if (!r.decomposes && (traits & (macro | by_decomposition))) return false;
    if (!r.has_samples && !(traits & source)) return false;
    if (r.lifts == ((traits & in_loop) != 0)) return false;
  }
  return true;
}
static_assert(kRows.size() == size_t(Op::count), "an op has no row");
static_assert(complete(kRows), "a row has a missing entry or is out of order");

constexpr std::array<OpRow, size_t(Op::count)> table_of(const decltype(kRows)& rows) {
  std::array<OpRow, size_t(Op::count)> table;
  for (size_t i = 0; i < rows.size(); ++i) table[i] = rows[i].row;
  return table;
}

}  // namespace
}  // namespace ops

constinit const std::array<OpRow, size_t(Op::count)> kOpTable = ops::table_of(ops::kRows);

NodeId LiftContext::stacked(size_t operand) const {
  const auto [id, varies] = in[operand];
  if (varies) return id;
  Shape shape = builder.shape(id);
  shape.insert(0, steps);
  return builder.expand(id, shape);
}

}  // namespace ridge
