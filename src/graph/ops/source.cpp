#include "base/error.h"
#include "graph/builder.h"
#include "graph/custom.h"
#include "graph/ops/rows.h"

namespace ridge::ops {

Types infer_none(const InferContext& c) { fail(ErrorCode::internal, "[{}] is not created through the op table", name(c.op)); }
Types infer_literal(const InferContext& c) { return {{DType(c.attrs.ints.at(0)), {}}}; }
Types infer_iota(const InferContext& c) { return {{DType(c.attrs.ints.at(0)), Shape(std::span(c.attrs.ints).subspan(2))}}; }

Types infer_random(const InferContext& c) {
  for (const Type& t : c.in)
    if (t.dtype != DType::i64 || t.shape.rank() != 0) fail(ErrorCode::dtype, "[{}] seed, step and base must be i64 scalars, got {}", name(c.op), to_string(t));
  Shape shape(std::span(c.attrs.ints).subspan(1));
  if (const std::vector<double>& whole = c.attrs.reals;
      !whole.empty() && (whole.size() != 2 || whole[0] < 0 || whole[0] >= shape.rank() || whole[1] < double(shape[int(whole[0])])))
    fail(ErrorCode::value, "[{}] {} is not a part of a tensor with {} elements along axis {}", name(c.op), to_string(shape), whole.back(), whole[0]);
  return {{c.op == Op::random_uniform ? DType::f32 : DType::i32, shape}};
}

Types infer_same(const InferContext& c) { return {c.in[0]}; }

// The differentiator collects the gradients of single results and passes all of them to the node that has several results.
void vjp_get(GradContext&) {}

void vjp_custom(GradContext& c) {
  auto* rule = static_cast<const CustomGradient*>(c.graph()[c.node()].attrs.body.get());
  std::vector<NodeId> in(c.graph()[c.node()].in.begin() + 1, c.graph()[c.node()].in.end());
  std::vector<NodeId> grads = rule->vjp(c.graph(), in, c.in(0), c.cotangent());
  if (grads.size() != in.size()) fail(ErrorCode::value, "[custom] the gradient function gave {} gradients for {} inputs", grads.size(), in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    if (!grads[i] || !c.needs(int(i) + 1)) continue;
    if (!(c.graph().shape(grads[i]) == c.graph().shape(in[i])))
      fail(ErrorCode::shape, "[custom] gradient {} has shape {}, its input {}", i, to_string(c.graph().shape(grads[i])), to_string(c.graph().shape(in[i])));
    c.add(int(i) + 1, grads[i]);
  }
}

Cost cost_free(const Graph&, NodeId) { return {}; }

Cost cost_bytes(const Graph& g, NodeId id) {
  Cost cost;
  for (const Type& t : g[id].types) cost.bytes += double(t.bytes());
  for (NodeId in : g[id].in) cost.bytes += double(g.type(in).bytes());
  return cost;
}

Cost cost_picked(const Graph& g, NodeId id) {
  Cost cost{.bytes = 2 * double(g.type(id).bytes())};
  for (NodeId in : std::span(g[id].in).subspan(1)) cost.bytes += double(g.type(in).bytes());
  return cost;
}

void samples_iota(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::i32, DType::i64}) {
    sink({{}, {{int64_t(t), 0, 7}, {}, nullptr}, 0});
    sink({{}, {{int64_t(t), 1, 3, 33}, {}, nullptr}, 0});
    sink({{}, {{int64_t(t), 0, 5, 2, 3}, {}, nullptr}, 0});
  }
}

void samples_random(const SampleSink& sink) {
  Sample::Operand scalar{{DType::i64, {}}, 0, 1000};
  for (std::vector<int64_t> attrs : {std::vector<int64_t>{1, 7}, {2, 3, 33}, {3, 0}, {4, 2, 5, 31}}) sink({{scalar, scalar, scalar}, {attrs, {}, nullptr}, 0});
  // Parts of longer tensors, as drawn by a split batch, and bases as they occur in loops.
  Sample::Operand step{{DType::i64, {}}, 0x1p34, 0x1p50};
  sink({{scalar, scalar, scalar}, {{5, 3, 4, 5}, {1, 9}, nullptr}, 0});
  sink({{scalar, scalar, step}, {{6, 4, 7}, {1, 7}, nullptr}, 0});
  sink({{scalar, scalar, step}, {{7, 3, 33}, {0, 5}, nullptr}, 0});
}

void samples_one(const SampleSink& sink) { sink({{{{DType::f32, {3, 7}}}}, {}, 0}); }

BatchFlow batch_mixes(const BatchContext&) { throw Coupled{"it may mix samples"}; }

BatchFlow batch_get(const BatchContext& c) {
  const SampleAxis b = first_samples(c);
  const bool kept = (*c).attrs.ints[0] == 0 || c.graph[(*c).in[0]].op == Op::sort;
  return {kept ? b : SampleAxis{0, 1, b.count}};
}

}  // namespace ridge::ops
