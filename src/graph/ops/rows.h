// The functions that fill the rows of the op table, one group of ops per file.
#pragma once
#include "graph/ops/table.h"

namespace ridge::ops {

using Types = std::vector<Type>;

// For batch rules: the sample axis of the first operand that has one.
inline SampleAxis first_samples(const BatchContext& c) {
  for (const std::optional<SampleAxis>& at : c.in)
    if (at) return *at;
  throw Coupled{"none of its operands has samples"};
}
// For lift rules: the node with new attributes, applied to its stacked operands.
NodeId lifted(const LiftContext& c, std::vector<int64_t> ints);

// elementwise.cpp
Types infer_elementwise(const InferContext&);
Types infer_comparison(const InferContext&);
Types infer_cast(const InferContext&);
Types infer_random_at(const InferContext&);
void vjp_unary(GradContext&);
void vjp_binary(GradContext&);
void vjp_select(GradContext&);
void vjp_clamp(GradContext&);
void vjp_cast(GradContext&);
Cost cost_elementwise(const Graph&, NodeId);
BatchFlow batch_same(const BatchContext&);  // the result has its samples where all operands have them
NodeId lift_same(const LiftContext&);       // keeps the attributes
void samples_smooth(const SampleSink&);     // domain -2 … 2, no kinks
void samples_kinked(const SampleSink&);     // avoids whole numbers
void samples_positive(const SampleSink&);
void samples_binary(const SampleSink&);
void samples_divisor(const SampleSink&);
void samples_power(const SampleSink&);
void samples_integer_like(const SampleSink&);
void samples_logic(const SampleSink&);
void samples_select(const SampleSink&);
void samples_random_at(const SampleSink&);
void samples_clamp(const SampleSink&);
void samples_cast(const SampleSink&);

// source.cpp
Types infer_none(const InferContext&);
Types infer_literal(const InferContext&);
Types infer_iota(const InferContext&);
Types infer_random(const InferContext&);
Types infer_same(const InferContext&);
void vjp_get(GradContext&);
void vjp_custom(GradContext&);
Cost cost_free(const Graph&, NodeId);
Cost cost_bytes(const Graph&, NodeId);
BatchFlow batch_mixes(const BatchContext&);  // always refuses
BatchFlow batch_get(const BatchContext&);
Cost cost_picked(const Graph&, NodeId);  // reads only as much of the first operand as the result holds
void samples_iota(const SampleSink&);
void samples_random(const SampleSink&);
void samples_one(const SampleSink&);

// movement.cpp
Types infer_reshape(const InferContext&);
Types infer_permute(const InferContext&);
Types infer_expand(const InferContext&);
Types infer_slice(const InferContext&);
Types infer_flip(const InferContext&);
Types infer_windows(const InferContext&);
Types infer_fold(const InferContext&);
Types infer_pad(const InferContext&);
Types infer_concat(const InferContext&);
void vjp_reshape(GradContext&);
void vjp_permute(GradContext&);
void vjp_expand(GradContext&);
void vjp_slice(GradContext&);
void vjp_flip(GradContext&);
void vjp_windows(GradContext&);
void vjp_fold(GradContext&);
void vjp_pad(GradContext&);
void vjp_concat(GradContext&);
BatchFlow batch_reshape(const BatchContext&);
BatchFlow batch_permute(const BatchContext&);
BatchFlow batch_keep(const BatchContext&);  // the result has its samples where the operand has them
BatchFlow batch_slice(const BatchContext&);
BatchFlow batch_pad(const BatchContext&);
BatchFlow batch_axis(const BatchContext&);  // the first attribute is an axis, which must not be the sample axis
BatchFlow batch_axes(const BatchContext&);  // the same for all attributes
NodeId lift_shape(const LiftContext&);      // the attributes are the shape of the result
NodeId lift_permute(const LiftContext&);
NodeId lift_ranges(const LiftContext&);  // three lists with one entry per axis
NodeId lift_axis(const LiftContext&);    // the first attribute is an axis
NodeId lift_axes(const LiftContext&);    // all attributes are axes
void samples_reshape(const SampleSink&);
void samples_permute(const SampleSink&);
void samples_expand(const SampleSink&);
void samples_slice(const SampleSink&);
void samples_flip(const SampleSink&);
void samples_windows(const SampleSink&);
void samples_fold(const SampleSink&);
void samples_pad(const SampleSink&);
void samples_concat(const SampleSink&);

// index.cpp
Types infer_check_class(const InferContext&);
Types infer_dynamic_slice(const InferContext&);
Types infer_dynamic_update_slice(const InferContext&);
Types infer_gather(const InferContext&);
Types infer_scatter(const InferContext&);
Types infer_take(const InferContext&);
Types infer_take_grad(const InferContext&);
Types infer_sort(const InferContext&);
void vjp_dynamic_slice(GradContext&);
void vjp_dynamic_update_slice(GradContext&);
void vjp_gather(GradContext&);
void vjp_scatter(GradContext&);
void vjp_scatter_add(GradContext&);
void vjp_take(GradContext&);
void vjp_take_grad(GradContext&);
void vjp_sort(GradContext&);
BatchFlow batch_gather(const BatchContext&);
BatchFlow batch_take(const BatchContext&);
NodeId lift_take(const LiftContext&);
void samples_check_class(const SampleSink&);
void samples_dynamic_slice(const SampleSink&);
void samples_dynamic_update_slice(const SampleSink&);
void samples_gather(const SampleSink&);
void samples_scatter(const SampleSink&);
void samples_take(const SampleSink&);
void samples_take_grad(const SampleSink&);
void samples_sort(const SampleSink&);

// reduce.cpp
Types infer_reduce(const InferContext&);
Types infer_arg(const InferContext&);
Types infer_cumsum(const InferContext&);
void vjp_reduce_sum(GradContext&);
void vjp_reduce_extreme(GradContext&);
void vjp_reduce_prod(GradContext&);
void vjp_cumsum(GradContext&);
Cost cost_reduce(const Graph&, NodeId);
BatchFlow batch_reduce(const BatchContext&);
void samples_reduce(const SampleSink&);
void samples_arg(const SampleSink&);
void samples_cumsum(const SampleSink&);

// contract.cpp
Types infer_matmul(const InferContext&);
Types infer_conv(const InferContext&);
void vjp_matmul(GradContext&);
void vjp_conv(GradContext&);
std::vector<NodeId> decompose_conv(Graph&, NodeId);
Cost cost_matmul(const Graph&, NodeId);
Cost cost_conv(const Graph&, NodeId);
BatchFlow batch_matmul(const BatchContext&);
BatchFlow batch_conv(const BatchContext&);
NodeId lift_matmul(const LiftContext&);
NodeId lift_conv(const LiftContext&);
void samples_matmul(const SampleSink&);
void samples_conv(const SampleSink&);

// attention.cpp
Types infer_attention(const InferContext&);
Types infer_attention_grad(const InferContext&);
void vjp_attention(GradContext&);
std::vector<NodeId> decompose_attention(Graph&, NodeId);
std::vector<NodeId> decompose_attention_grad(Graph&, NodeId);
Cost cost_attention(const Graph&, NodeId);
BatchFlow batch_attention(const BatchContext&);
void samples_attention(const SampleSink&);
void samples_attention_grad(const SampleSink&);

// scan.cpp
Types infer_scan(const InferContext&);
void vjp_scan(GradContext&);
Cost cost_scan(const Graph&, NodeId);
void samples_scan(const SampleSink&);

}  // namespace ridge::ops
