#include "base/error.h"
#include "graph/builder.h"
#include "graph/ops/conv.h"
#include "graph/ops/rows.h"

namespace ridge::ops {

// a [batch…, M, K], b [batch…, K, N]; attrs: dtype of the result. Transposition and broadcasting are views of the operands. Kernels widen
// what they read, so storage types may differ.
Types infer_matmul(const InferContext& c) {
  const Shape &a = c.in[0].shape, &b = c.in[1].shape;
  bool fits = a.rank() == b.rank() && a.rank() >= 2 && a.back() == b[b.rank() - 2] && is_float(c.in[0].dtype) && is_float(c.in[1].dtype) &&
              (c.in[0].dtype == DType::f64) == (c.in[1].dtype == DType::f64);
  for (int i = 0; fits && i < a.rank() - 2; ++i) fits = a[i] == b[i];
  if (!fits)
    fail(ErrorCode::shape, "[matmul] {} times {}: batches and inner sizes must agree and both must be floating, f64 only together", to_string(c.in[0]),
         to_string(c.in[1]));
  Shape out = a;
  out[out.rank() - 1] = b.back();
  return {{DType(c.attrs.ints.at(0)), out}};
}

void vjp_matmul(GradContext& c) {
  Builder b(c.graph());
  NodeId x = c.in(0), y = c.in(1), g = b.cast(c.cotangent(), b.dtype(x));
  auto product = [&](NodeId l, NodeId r, NodeId like) { return c.graph().add(Op::matmul, {l, r}, {{int64_t(b.dtype(like))}, {}, nullptr}); };
  if (c.needs(0)) c.add(0, product(g, b.transpose(y), x));
  if (c.needs(1)) c.add(1, product(b.transpose(x), g, y));
}

Cost cost_matmul(const Graph& g, NodeId id) {
  const Node& n = g[id];
  Cost cost{2.0 * double(n.type().shape.numel()) * double(g.shape(n.in[0]).back()), double(n.type().bytes())};
  for (NodeId in : n.in) cost.bytes += double(g.type(in).bytes());
  return cost;
}

namespace {

struct ConvAttrs {  // views into the ints: groups, then one entry per spatial axis; at the end the result's dtype, if it differs from the input's
  int64_t groups;
  std::span<const int64_t> stride, low, high, input_dilation, dilation;
  ConvAttrs(const Attrs& a, int spatial)
      : groups(a.ints[0]),
        stride(std::span(a.ints).subspan(1, spatial)),
        low(std::span(a.ints).subspan(1 + spatial, spatial)),
        high(std::span(a.ints).subspan(1 + 2 * spatial, spatial)),
        input_dilation(std::span(a.ints).subspan(1 + 3 * spatial, spatial)),
        dilation(std::span(a.ints).subspan(1 + 4 * spatial, spatial)) {}
};

int64_t dilated(int64_t n, int64_t d) { return n == 0 ? 0 : (n - 1) * d + 1; }

// Negative padding cuts elements off.
NodeId pad_or_cut(Builder& b, NodeId x, int axis, int64_t low, int64_t high, int64_t interior) {
  x = b.pad(x, axis, std::max<int64_t>(low, 0), std::max<int64_t>(high, 0), interior);
  int64_t n = b.shape(x)[axis];
  return b.slice(x, axis, std::max<int64_t>(-low, 0), n - std::max<int64_t>(-high, 0));
}

}  // namespace

Types infer_conv(const InferContext& c) {
  const Shape &x = c.in[0].shape, &w = c.in[1].shape;
  int spatial = x.rank() - 2;
  if (spatial < 1 || w.rank() != x.rank() || (int(c.attrs.ints.size()) != 1 + 5 * spatial && int(c.attrs.ints.size()) != 2 + 5 * spatial))
    fail(ErrorCode::shape, "[conv] input {} and weight {} need the forms [N, C, spatial…] and [O, C / groups, window…]", to_string(x), to_string(w));
  ConvAttrs a(c.attrs, spatial);
  if (a.groups < 1 || x[1] != w[1] * a.groups || w[0] % a.groups)
    fail(ErrorCode::shape, "[conv] {} channels and weight {} do not fit {} groups", x[1], to_string(w), a.groups);
  Shape out = {x[0], w[0]};
  for (int i = 0; i < spatial; ++i) {
    if (a.stride[i] < 1 || a.dilation[i] < 1 || a.input_dilation[i] < 1) fail(ErrorCode::value, "[conv] stride and dilation must be 1 or more on axis {}", i);
    int64_t space = dilated(x[2 + i], a.input_dilation[i]) + a.low[i] + a.high[i], window = dilated(w[2 + i], a.dilation[i]);
    if (window > space) fail(ErrorCode::shape, "[conv] a window of {} does not fit {} positions on axis {}; pad the input", window, space, i);
    out.push_back((space - window) / a.stride[i] + 1);
  }
  return {{int(c.attrs.ints.size()) == 2 + 5 * spatial ? DType(c.attrs.ints.back()) : c.in[0].dtype, out}};
}

// Implicit GEMM: windows are a strided view, and matmul packs any strided view.
std::vector<NodeId> decompose_conv(Graph& g, NodeId id) {
  Builder b(g);
  NodeId w = g[id].in[1], x = g.dtype(g[id].in[0]) == DType::u8 ? b.cast(g[id].in[0], g.dtype(w)) : g[id].in[0];
  int spatial = g.shape(x).rank() - 2;
  ConvAttrs a(g[id].attrs, spatial);
  Shape out = g.shape(id), ws = g.shape(w);
  int64_t groups = a.groups, batch = out[0], per_group = ws[1], outputs = ws[0] / groups, positions = 1, taps = 1;
  for (int i = 0; i < spatial; ++i) {
    x = pad_or_cut(b, x, 2 + i, a.low[i], a.high[i], a.input_dilation[i] - 1);
    positions *= out[2 + i], taps *= ws[2 + i];
  }
  for (int i = 0; i < spatial; ++i) x = b.windows(x, 2 + i, ws[2 + i], a.stride[i], a.dilation[i]);  // [N, C, out…, window…]
  Shape split = {batch, groups, per_group}, order;
  for (int i = 0; i < spatial; ++i) split.push_back(out[2 + i]);
  for (int i = 0; i < spatial; ++i) split.push_back(ws[2 + i]);
  x = b.reshape(x, split);
  order = {1, 0};  // [G, N, out…, C/G, window…]
  for (int i = 0; i < spatial; ++i) order.push_back(3 + i);
  order.push_back(2);
  for (int i = 0; i < spatial; ++i) order.push_back(3 + spatial + i);
  NodeId columns = b.reshape(b.permute(x, order), {groups, batch * positions, per_group * taps});
  NodeId weight = b.transpose(b.reshape(w, {groups, outputs, per_group * taps}));
  NodeId y = g.add(Op::matmul, {columns, weight}, {{int64_t(g.dtype(id))}, {}, nullptr});  // [G, N·out, O/G]
  y = b.permute(b.reshape(y, {groups, batch, positions, outputs}), {1, 0, 3, 2});
  return {b.reshape(y, out)};
}

void vjp_conv(GradContext& c) {
  Builder b(c.graph());
  NodeId x = c.in(0), w = c.in(1), g = b.cast(c.cotangent(), b.dtype(x));
  Shape xs = b.shape(x), ws = b.shape(w), os = b.shape(c.node());
  int spatial = xs.rank() - 2;
  Attrs attrs = c.graph()[c.node()].attrs;
  ConvAttrs a(attrs, spatial);
  std::vector<int64_t> axes;
  for (int i = 0; i < spatial; ++i) axes.push_back(2 + i);
  Shape swapped = {0, 2, 1};
  for (int i = 0; i < spatial; ++i) swapped.push_back(3 + i);
  auto grouped = [&](const Shape& s, int64_t first, int64_t second) {
    Shape r = {a.groups, first, second};
    for (int i = 0; i < spatial; ++i) r.push_back(s[2 + i]);
    return r;
  };
  if (c.needs(0)) {  // correlate the dilated gradient with the flipped weights, inputs and outputs swapped inside each group
    ConvOptions o;
    o.groups = a.groups;
    for (int i = 0; i < spatial; ++i) {
      int64_t window = dilated(ws[2 + i], a.dilation[i]), in = dilated(xs[2 + i], a.input_dilation[i]);
      int64_t low = window - 1 - a.low[i];
      o.stride.push_back(a.input_dilation[i]), o.input_dilation.push_back(a.stride[i]), o.dilation.push_back(a.dilation[i]);
      o.padding_low.push_back(low);
      o.padding_high.push_back(in + window - 1 - low - dilated(os[2 + i], a.stride[i]));
    }
    NodeId flipped = b.flip(w, axes);
    Shape back = {xs[1], ws[0] / a.groups};
    for (int i = 0; i < spatial; ++i) back.push_back(ws[2 + i]);
    NodeId turned = b.reshape(b.permute(b.reshape(flipped, grouped(ws, ws[0] / a.groups, ws[1])), swapped), back);
    c.add(0, b.conv(g, turned, o));
  }
  if (c.needs(1)) {  // correlate the input with the gradient: the batch takes the role of the channels, groups stay groups
    ConvOptions o;
    o.groups = a.groups;
    for (int i = 0; i < spatial; ++i) {
      int64_t window = dilated(ws[2 + i], a.dilation[i]), in = dilated(xs[2 + i], a.input_dilation[i]);
      o.stride.push_back(a.dilation[i]), o.input_dilation.push_back(a.input_dilation[i]), o.dilation.push_back(a.stride[i]);
      o.padding_low.push_back(a.low[i]);
      o.padding_high.push_back(window - 1 + dilated(os[2 + i], a.stride[i]) - in - a.low[i]);
    }
    Shape order = {1, 2, 0};
    for (int i = 0; i < spatial; ++i) order.push_back(3 + i);
    auto channels_of = [&](NodeId t, int64_t per_group) {  // [N, G·P, …] -> [P, G·N, …]
      Shape s = b.shape(t), split = {s[0], a.groups, per_group}, merged = {per_group, a.groups * s[0]};
      for (int i = 0; i < spatial; ++i) split.push_back(s[2 + i]), merged.push_back(s[2 + i]);
      Shape to = {2, 1, 0};
      for (int i = 0; i < spatial; ++i) to.push_back(3 + i);
      return b.reshape(b.permute(b.reshape(t, split), to), merged);
    };
    NodeId lhs = channels_of(x, ws[1]);  // [C/G, G·N, spatial…]
    Shape gs = os, split = {os[0], a.groups, os[1] / a.groups}, merged = {os[1], os[0]}, to = {1, 2, 0};
    for (int i = 0; i < spatial; ++i) split.push_back(gs[2 + i]), merged.push_back(gs[2 + i]), to.push_back(3 + i);
    NodeId rhs = b.reshape(b.permute(b.reshape(g, split), to), merged);  // [O, N, out…]
    NodeId dw = b.conv(lhs, rhs, o);                                     // [C/G, O, window…]
    Shape turn = {1, 0};
    for (int i = 0; i < spatial; ++i) turn.push_back(2 + i);
    c.add(1, b.permute(dw, turn));
  }
}

namespace {

// A number by which bytes are multiplied or divided.
struct ByteScale {
  Op op = Op::mul;
  double number = 1;
};

NodeId bytes_below(Graph& g, NodeId id, std::optional<ByteScale>& scale) {
  const Node n = g[id];
  switch (n.op) {
    case Op::cast: return g.dtype(n.in[0]) == DType::u8 ? n.in[0] : is_float(g.dtype(n.in[0])) ? bytes_below(g, n.in[0], scale) : kNone;
    case Op::mul:
    case Op::div: {
      NodeId number = n.in[1];
      while (g[number].op == Op::expand || g[number].op == Op::reshape) number = g[number].in[0];
      if (g[number].op != Op::literal || g.dtype(number) != DType::f32 || scale) return kNone;
      scale = {n.op, g[number].attrs.reals[0]};
      return bytes_below(g, n.in[0], scale);
    }
    case Op::reshape:
    case Op::permute:
    case Op::slice: {
      const NodeId below = bytes_below(g, n.in[0], scale);
      return below ? g.add(n.op, {below}, n.attrs, n.copy) : kNone;
    }
    default: return kNone;
  }
}

}  // namespace

NodeId conv_of_bytes(Graph& g, const Node& node, std::span<const NodeId> in, bool epilogue) {
  std::optional<ByteScale> scale;
  const Node n = node;
  const NodeId bytes = bytes_below(g, in[0], scale);
  if (!bytes) return kNone;
  Attrs attrs = n.attrs;
  attrs.ints.resize(size_t(1 + 5 * (n.type().shape.rank() - 2)));
  Builder b(g);
  NodeId weights = in[1];
  // Without an epilogue, scaling the sums takes a pass over them. Weights are fewer, but f16 has too few small numbers for them.
  const DType type = n.type().dtype, factor = g.dtype(weights);
  if (!epilogue && scale && factor != DType::f16 && g.shape(weights).numel() < n.type().shape.numel()) {
    weights = b.cast(b.binary(scale->op, b.cast(weights, DType::f32), scale->number), factor);
    scale.reset();
  }
  attrs.ints.push_back(int64_t(epilogue || scale ? DType::f32 : type));
  const NodeId sums = g.add(Op::conv, {bytes, weights}, std::move(attrs), n.copy);
  return b.cast(scale ? b.binary(scale->op, sums, scale->number) : sums, type);
}

Cost cost_conv(const Graph& g, NodeId id) {
  const Shape& w = g.shape(g[id].in[1]);
  double taps = double(w.numel()) / double(std::max<int64_t>(w[0], 1));
  Cost cost{2.0 * double(g.shape(id).numel()) * taps, double(g.type(id).bytes())};
  for (NodeId in : g[id].in) cost.bytes += double(g.type(in).bytes());
  return cost;
}

void samples_matmul(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::bf16, DType::f16}) {
    auto give = [&](Shape a, Shape b) { sink({{{{t, a}}, {{t, b}}}, {{int64_t(t)}, {}, nullptr}, 0}); };
    give({1, 1}, {1, 1}), give({7, 3}, {3, 5}), give({31, 33}, {33, 2}), give({1, 33}, {33, 7}), give({5, 1}, {1, 3}), give({2, 3, 7}, {2, 7, 5}),
        give({0, 3}, {3, 2}), give({3, 0}, {0, 2});
    give({2, 3, 4, 5}, {2, 3, 5, 3}), give({65, 17}, {17, 66});
  }
  sink({{{{DType::bf16, {7, 33}}}, {{DType::bf16, {33, 5}}}}, {{int64_t(DType::f32)}, {}, nullptr}, 0});
}

void samples_conv(const SampleSink& sink) {
  auto give = [&](DType t, Shape x, Shape w, std::vector<int64_t> attrs) { sink({{{{t, x}}, {{t, w}}}, {attrs, {}, nullptr}, 0}); };
  for (DType t : {DType::f32, DType::bf16}) {
    give(t, {2, 3, 11}, {4, 3, 3}, {1, 1, 0, 0, 1, 1});
    give(t, {2, 4, 11}, {6, 2, 3}, {2, 2, 1, 2, 1, 2});
    give(t, {1, 2, 7, 8}, {3, 2, 3, 2}, {1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1});
    give(t, {2, 4, 9, 7}, {4, 1, 3, 3}, {4, 2, 1, 0, 1, 2, 1, 1, 1, 1, 2});
    give(t, {1, 2, 5, 4}, {2, 2, 3, 3}, {1, 1, 1, 2, 2, 2, 2, 2, 2, 1, 1});
  }
  give(DType::bf16, {2, 5, 9}, {7, 5, 3}, {1, 1, 1, 1, 1, 1, int64_t(DType::f32)});
}

BatchFlow batch_matmul(const BatchContext& c) {
  const int rank = c.graph.shape((*c).in[0]).rank();
  const std::optional<SampleAxis>&l = c.in[0], &r = c.in[1];
  if ((l && l->axis == rank - 1) || (r && r->axis == rank - 2)) throw Coupled{"it sums over the batch axis"};
  if (l && r && (l->axis != r->axis || l->axis >= rank - 2)) throw Coupled{"it multiplies every sample with every other"};
  return {l ? l : r};
}

BatchFlow batch_conv(const BatchContext& c) {
  if (first_samples(c).axis != 0 || c.in[1]) throw Coupled{"its weights or channels come from the batch"};
  return batch_keep(c);
}

NodeId lift_matmul(const LiftContext& c) {
  Builder& b = c.builder;
  if (c.in[1].varies || c.node.type().shape.rank() != 2) return lifted(c, c.node.attrs.ints);
  const Shape s = b.shape(c.in[0].id);  // the rows of all steps times one matrix
  const NodeId rows = b.reshape(c.in[0].id, {s[0] * s[1], s[2]});
  return b.reshape(b.graph().add(Op::matmul, {rows, c.in[1].id}, c.node.attrs, c.node.copy), {s[0], s[1], c.node.type().shape[1]});
}

// Steps become samples, or, where the weights are what changes, channels of every group.
NodeId lift_conv(const LiftContext& c) {
  Builder& b = c.builder;
  const Shape out = c.node.type().shape;
  auto with = [](Shape first, const Shape& s, int from) {
    for (int i = from; i < s.rank(); ++i) first.push_back(s[i]);
    return first;
  };
  auto conv = [&](NodeId x, NodeId w) { return b.graph().add(Op::conv, {x, w}, c.node.attrs, c.node.copy); };
  const Shape x = b.shape(c.in[0].id), w = b.shape(c.in[1].id);
  if (!c.in[1].varies) return b.reshape(conv(b.reshape(c.in[0].id, with({x[0] * x[1]}, x, 2)), c.in[1].id), with({c.steps}, out, 0));
  const int64_t groups = x[1] / w[2], each = w[1] / groups;
  Shape order = {1, 0}, back = {2, 0, 1, 3};
  for (int i = 2; i <= w.rank(); ++i) order.push_back(i);
  for (int i = 4; i <= out.rank() + 1; ++i) back.push_back(i);
  const NodeId weights = b.reshape(b.permute(b.reshape(c.in[1].id, with({c.steps, groups, each}, w, 2)), order), with({groups * c.steps * each}, w, 2));
  return b.reshape(b.permute(b.reshape(conv(c.in[0].id, weights), with({out[0], groups, c.steps, each}, out, 2)), back), with({c.steps}, out, 0));
}

}  // namespace ridge::ops
