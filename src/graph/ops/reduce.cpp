#include <algorithm>

#include "base/error.h"
#include "graph/builder.h"
#include "graph/ops/rows.h"

namespace ridge::ops {

Types infer_reduce(const InferContext& c) {
  Shape out;
  const Shape& s = c.in[0].shape;
  for (int i = 0; i < s.rank(); ++i) {
    bool reduced = std::find(c.attrs.ints.begin(), c.attrs.ints.end(), i) != c.attrs.ints.end();
    if (!reduced)
      out.push_back(s[i]);
    else if (s[i] == 0 && c.op != Op::reduce_sum && c.op != Op::reduce_prod)
      fail(ErrorCode::shape, "[{}] axis {} of {} is empty and has no maximum or minimum", name(c.op), i, to_string(s));
  }
  for (int64_t a : c.attrs.ints) normal_axis(a, s.rank(), std::string(name(c.op)).c_str());
  return {{c.in[0].dtype, out}};
}

Types infer_arg(const InferContext& c) {
  Types t = infer_reduce(c);
  t[0].dtype = DType::i64;
  return t;
}

Types infer_cumsum(const InferContext& c) {
  normal_axis(c.attrs.ints.at(0), c.in[0].shape.rank(), "cumsum");
  return {c.in[0]};
}

namespace {

// Broadcasts the reduced value or its gradient to the shape of the operand.
NodeId spread(Builder& b, NodeId reduced, NodeId x, const std::vector<int64_t>& axes) {
  Shape kept = b.shape(x);
  for (int64_t a : axes) kept[int(a)] = 1;
  return b.expand(b.reshape(reduced, kept), b.shape(x));
}

}  // namespace

void vjp_reduce_sum(GradContext& c) {
  Builder b(c.graph());
  c.add(0, spread(b, c.cotangent(), c.in(0), c.graph()[c.node()].attrs.ints));
}

void vjp_reduce_extreme(GradContext& c) {  // equal extremes share the gradient, as PyTorch's amax and amin do
  Builder b(c.graph());
  std::vector<int64_t> axes = c.graph()[c.node()].attrs.ints;
  NodeId x = c.in(0);
  NodeId hit = b.cast(b.binary(Op::equal, x, spread(b, c.node(), x, axes)), b.dtype(x));
  NodeId share = b.div(c.cotangent(), b.sum(hit, axes));
  c.add(0, b.mul(hit, spread(b, share, x, axes)));
}

void vjp_reduce_prod(GradContext& c) {
  // d prod / d x_i is the product of all other elements: exclusive products from both sides, so zeros need no special case. The axes are
  // moved to the end and flattened; prefix products are computed by doubling, without exp.
  Builder b(c.graph());
  std::vector<int64_t> axes = c.graph()[c.node()].attrs.ints;
  NodeId x = c.in(0);
  Shape order, kept;
  for (int i = 0; i < b.shape(x).rank(); ++i)
    if (std::find(axes.begin(), axes.end(), i) == axes.end()) order.push_back(i), kept.push_back(b.shape(x)[i]);
  for (int64_t a : axes) order.push_back(a);
  NodeId moved = b.permute(x, order);
  Shape moved_shape = b.shape(moved), flat = kept;
  int64_t n = 1;
  for (int64_t a : axes) n *= b.shape(x)[int(a)];
  flat.push_back(n);
  moved = b.reshape(moved, flat);
  int last = flat.rank() - 1;
  auto exclusive = [&](bool from_end) {
    NodeId p = from_end ? b.pad(b.slice(moved, last, 1, n), last, 0, 1, 0, 1) : b.pad(b.slice(moved, last, 0, n - 1), last, 1, 0, 0, 1);
    for (int64_t step = 1; step < n; step *= 2) {
      NodeId shifted = from_end ? b.pad(b.slice(p, last, step, n), last, 0, step, 0, 1) : b.pad(b.slice(p, last, 0, n - step), last, step, 0, 0, 1);
      p = b.mul(p, shifted);
    }
    return p;
  };
  if (n == 0) return;
  Shape column = kept;
  column.push_back(1);
  NodeId g = b.mul(b.mul(exclusive(false), exclusive(true)), b.reshape(c.cotangent(), column));
  Shape inverse = Shape::filled(order.rank(), 0);
  for (int i = 0; i < order.rank(); ++i) inverse[int(order[i])] = i;
  c.add(0, b.permute(b.reshape(g, moved_shape), inverse));
}

void vjp_cumsum(GradContext& c) {
  const std::vector<int64_t>& a = c.graph()[c.node()].attrs.ints;
  c.add(0, Builder(c.graph()).cumsum(c.cotangent(), int(a[0]), !a[1]));
}

Cost cost_reduce(const Graph& g, NodeId id) {
  NodeId x = g[id].in[0];
  return {double(g.shape(x).numel()), double(g.type(x).bytes() + g.type(id).bytes())};
}

void samples_reduce(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::bf16, DType::f16, DType::i64}) {
    auto give = [&](Shape s, std::vector<int64_t> axes) {
      sink({{{{t, s}, t == DType::i64 ? -3.0 : 0.3, t == DType::i64 ? 3.0 : 1.7}}, {axes, {}, nullptr}, 0});
    };
    give({33}, {0}), give({1}, {0}), give({7, 31}, {1}), give({7, 31}, {0}), give({3, 5, 7}, {1}), give({3, 5, 7}, {0, 2}), give({3, 5, 7}, {0, 1}),
        give({2, 3, 2, 5}, {1, 3});
  }
  sink({{{{DType::f32, {0, 3}}}}, {{1}, {}, nullptr}, 0});
}

void samples_arg(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::bf16, DType::i32, DType::i64}) {
    auto give = [&](Shape s, int64_t axis) { sink({{{{t, s}, -3, 3}}, {{axis}, {}, nullptr}, 0}); };
    give({33}, 0), give({7, 31}, 1), give({7, 31}, 0), give({3, 5, 7}, 1);
  }
}

void samples_cumsum(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::bf16, DType::i64}) {
    auto give = [&](Shape s, int64_t axis, int64_t reverse) { sink({{{{t, s}}}, {{axis, reverse}, {}, nullptr}, 0}); };
    give({33}, 0, 0), give({7, 31}, 1, 1), give({7, 31}, 0, 0), give({3, 5, 7}, 1, 1), give({0, 3}, 0, 0);
  }
}

BatchFlow batch_reduce(const BatchContext& c) {
  const SampleAxis b = first_samples(c);
  const std::vector<int64_t>& axes = (*c).attrs.ints;
  if (std::find(axes.begin(), axes.end(), b.axis) != axes.end()) {
    if ((*c).op != Op::reduce_sum) throw Coupled{"it reduces over the batch axis"};
    return {std::nullopt, true};
  }
  const int before = int(std::count_if(axes.begin(), axes.end(), [&](int64_t a) { return a < b.axis; }));
  return {SampleAxis{b.axis - before, b.inner, b.count}};
}

}  // namespace ridge::ops
