#include <algorithm>
#include <array>

#include "base/error.h"
#include "graph/builder.h"
#include "graph/ops/rows.h"

namespace ridge::ops {
namespace {

std::span<const int64_t> part(const Attrs& a, int rank, int which) { return std::span(a.ints).subspan(size_t(rank * which), rank); }

}  // namespace

Types infer_reshape(const InferContext& c) {
  Shape to(c.attrs.ints);
  if (to.numel() != c.in[0].shape.numel())
    fail(ErrorCode::shape, "[reshape] {} has {} elements, {} has {}", to_string(c.in[0].shape), c.in[0].shape.numel(), to_string(to), to.numel());
  return {{c.in[0].dtype, to}};
}

Types infer_permute(const InferContext& c) {
  const Shape& s = c.in[0].shape;
  if (int(c.attrs.ints.size()) != s.rank()) fail(ErrorCode::axis, "[permute] {} axes named for {}", c.attrs.ints.size(), to_string(s));
  Shape out;
  unsigned seen = 0;
  for (int64_t a : c.attrs.ints) {
    if (a < 0 || a >= s.rank() || (seen >> a & 1))
      fail(ErrorCode::axis, "[permute] axes {} are not a permutation of 0 … {}", to_string(Shape(c.attrs.ints)), s.rank() - 1);
    seen |= 1u << a;
    out.push_back(s[int(a)]);
  }
  return {{c.in[0].dtype, out}};
}

Types infer_expand(const InferContext& c) {
  Shape to(c.attrs.ints);
  const Shape& s = c.in[0].shape;
  bool fits = to.rank() == s.rank();
  for (int i = 0; fits && i < s.rank(); ++i) fits = s[i] == to[i] || s[i] == 1;
  if (!fits) fail(ErrorCode::shape, "[expand] {} does not broadcast to {}", to_string(s), to_string(to));
  return {{c.in[0].dtype, to}};
}

Types infer_slice(const InferContext& c) {
  const Shape& s = c.in[0].shape;
  auto start = part(c.attrs, s.rank(), 0), stop = part(c.attrs, s.rank(), 1), step = part(c.attrs, s.rank(), 2);
  Shape out;
  for (int i = 0; i < s.rank(); ++i) {
    if (start[i] < 0 || stop[i] > s[i] || start[i] > stop[i] || step[i] < 1)
      fail(ErrorCode::value, "[slice] {}:{}:{} is outside axis {} of {}", start[i], stop[i], step[i], i, to_string(s));
    out.push_back((stop[i] - start[i] + step[i] - 1) / step[i]);
  }
  return {{c.in[0].dtype, out}};
}

Types infer_flip(const InferContext& c) {
  for (int64_t a : c.attrs.ints) normal_axis(a, c.in[0].shape.rank(), "flip");
  return {c.in[0]};
}

Types infer_windows(const InferContext& c) {
  Shape s = c.in[0].shape;
  int64_t axis = c.attrs.ints.at(0), size = c.attrs.ints.at(1), stride = c.attrs.ints.at(2), dilation = c.attrs.ints.at(3);
  if (size < 1 || stride < 1 || dilation < 1) fail(ErrorCode::value, "[windows] size {}, stride {} and dilation {} must be 1 or more", size, stride, dilation);
  int64_t span = (size - 1) * dilation + 1;
  if (span > s[int(axis)])
    fail(ErrorCode::shape, "[windows] a window of {} (dilation {}) does not fit axis {} of {}; pad it", size, dilation, axis, to_string(s));
  s[int(axis)] = (s[int(axis)] - span) / stride + 1;
  s.push_back(size);
  return {{c.in[0].dtype, s}};
}

Types infer_fold(const InferContext& c) {
  Shape s = c.in[0].shape;
  s.erase(s.rank() - 1);
  s[int(c.attrs.ints.at(0))] = c.attrs.ints.at(4);
  return {{c.in[0].dtype, s}};
}

Types infer_pad(const InferContext& c) {
  Shape s = c.in[0].shape;
  auto low = part(c.attrs, s.rank(), 0), high = part(c.attrs, s.rank(), 1), interior = part(c.attrs, s.rank(), 2);
  for (int i = 0; i < s.rank(); ++i) {
    if (low[i] < 0 || high[i] < 0 || interior[i] < 0)
      fail(ErrorCode::value, "[pad] {}, {}, {} on axis {}: must not be negative; use slice to cut", low[i], high[i], interior[i], i);
    s[i] = low[i] + high[i] + s[i] + std::max<int64_t>(s[i] - 1, 0) * interior[i];
  }
  return {{c.in[0].dtype, s}};
}

Types infer_concat(const InferContext& c) {
  Shape out = c.in[0].shape;
  int axis = normal_axis(c.attrs.ints.at(0), out.rank(), "concat");
  for (size_t i = 1; i < c.in.size(); ++i) {
    Shape s = c.in[i].shape;
    bool fits = s.rank() == out.rank() && c.in[i].dtype == c.in[0].dtype;
    for (int d = 0; fits && d < s.rank(); ++d) fits = d == axis || s[d] == out[d];
    if (!fits) fail(ErrorCode::shape, "[concat] {} and {} differ in more than axis {}", to_string(c.in[0]), to_string(c.in[i]), axis);
    out[axis] += s[axis];
  }
  return {{c.in[0].dtype, out}};
}

void vjp_reshape(GradContext& c) { c.add(0, Builder(c.graph()).reshape(c.cotangent(), c.graph().shape(c.in(0)))); }

void vjp_permute(GradContext& c) {
  const std::vector<int64_t>& axes = c.graph()[c.node()].attrs.ints;
  Shape inverse = Shape::filled(int(axes.size()), 0);
  for (size_t i = 0; i < axes.size(); ++i) inverse[int(axes[i])] = int64_t(i);
  c.add(0, Builder(c.graph()).permute(c.cotangent(), inverse));
}

void vjp_expand(GradContext& c) {
  const Shape &from = c.graph().shape(c.in(0)), &to = c.graph().shape(c.node());
  std::vector<int64_t> axes;
  for (int i = 0; i < to.rank(); ++i)
    if (from[i] != to[i]) axes.push_back(i);
  c.add(0, Builder(c.graph()).sum(c.cotangent(), axes, true));
}

void vjp_slice(GradContext& c) {
  const Shape& s = c.graph().shape(c.in(0));
  int rank = s.rank();
  const Shape& out = c.graph().shape(c.node());
  if (out.numel() == 0) return;
  const Attrs& a = c.graph()[c.node()].attrs;
  std::vector<int64_t> pads(rank * 3);
  for (int i = 0; i < rank; ++i) {
    int64_t start = a.ints[i], step = a.ints[2 * rank + i];
    pads[i] = start, pads[2 * rank + i] = step - 1;
    pads[rank + i] = s[i] - start - ((out[i] - 1) * step + 1);
  }
  c.add(0, c.graph().add(Op::pad, {c.cotangent()}, {std::move(pads), {0}, nullptr}));
}

void vjp_flip(GradContext& c) { c.add(0, c.graph().add(Op::flip, {c.cotangent()}, c.graph()[c.node()].attrs)); }

void vjp_windows(GradContext& c) {
  Attrs a = c.graph()[c.node()].attrs;
  a.ints.push_back(c.graph().shape(c.in(0))[int(a.ints[0])]);
  c.add(0, c.graph().add(Op::fold, {c.cotangent()}, std::move(a)));
}

void vjp_fold(GradContext& c) {
  Attrs a = c.graph()[c.node()].attrs;
  a.ints.pop_back();
  c.add(0, c.graph().add(Op::windows, {c.cotangent()}, std::move(a)));
}

void vjp_pad(GradContext& c) {
  const Shape& s = c.graph().shape(c.in(0));
  int rank = s.rank();
  if (s.numel() == 0) return;
  const Attrs& a = c.graph()[c.node()].attrs;
  std::vector<int64_t> cut(rank * 3);
  for (int i = 0; i < rank; ++i) {
    cut[i] = a.ints[i], cut[2 * rank + i] = a.ints[2 * rank + i] + 1;
    cut[rank + i] = a.ints[i] + (s[i] - 1) * cut[2 * rank + i] + 1;
  }
  c.add(0, c.graph().add(Op::slice, {c.cotangent()}, {std::move(cut), {}, nullptr}));
}

void vjp_concat(GradContext& c) {
  Builder b(c.graph());
  int axis = int(c.graph()[c.node()].attrs.ints[0]);
  int64_t at = 0;
  for (int i = 0; i < int(c.graph()[c.node()].in.size()); ++i) {
    int64_t n = c.graph().shape(c.in(i))[axis];
    if (c.needs(i)) c.add(i, b.slice(c.cotangent(), axis, at, at + n));
    at += n;
  }
}

namespace {

void with_types(const SampleSink& sink, const Shape& shape, std::vector<int64_t> attrs, std::vector<double> reals = {}) {
  for (DType t : {DType::f32, DType::bf16, DType::i32, DType::i64, DType::boolean}) {
    bool b = t == DType::boolean;
    sink({{{{t, shape}, b ? 0.0 : -9, b ? 2.0 : 9}}, {attrs, reals, nullptr}, 0});
  }
}

}  // namespace

void samples_reshape(const SampleSink& sink) {
  with_types(sink, {6, 35}, {2, 3, 5, 7});
  with_types(sink, {2, 3, 5, 7}, {6, 35});
  with_types(sink, {12}, {3, 1, 4});
  with_types(sink, {1}, {});
  with_types(sink, {0, 3}, {3, 0});
}

void samples_permute(const SampleSink& sink) {
  with_types(sink, {31, 33}, {1, 0});
  with_types(sink, {2, 3, 7}, {2, 0, 1});
  with_types(sink, {3, 2, 5, 4}, {0, 2, 1, 3});
  with_types(sink, {0, 3}, {1, 0});
}

void samples_expand(const SampleSink& sink) {
  with_types(sink, {1}, {7});
  with_types(sink, {1, 33}, {3, 33});
  with_types(sink, {31, 1}, {31, 3});
  with_types(sink, {2, 1, 5}, {2, 3, 5});
  with_types(sink, {1, 3}, {0, 3});
}

void samples_slice(const SampleSink& sink) {
  with_types(sink, {33}, {1, 32, 3});
  with_types(sink, {7, 31}, {2, 0, 7, 31, 2, 5});
  with_types(sink, {3, 5}, {1, 1, 1, 4, 1, 1});
  with_types(sink, {2, 3, 5}, {0, 1, 0, 2, 3, 5, 1, 1, 2});
}

void samples_flip(const SampleSink& sink) {
  with_types(sink, {33}, {0});
  with_types(sink, {3, 7}, {1});
  with_types(sink, {3, 7, 2}, {0, 2});
}

void samples_windows(const SampleSink& sink) {
  with_types(sink, {33}, {0, 3, 1, 1});
  with_types(sink, {2, 31}, {1, 3, 2, 2});
  with_types(sink, {9, 5}, {0, 4, 3, 1});
}

void samples_fold(const SampleSink& sink) {
  with_types(sink, {31, 3}, {0, 3, 1, 1, 33});
  with_types(sink, {2, 14, 3}, {1, 3, 2, 2, 31});
  with_types(sink, {2, 5, 4}, {0, 4, 3, 1, 9});
}

void samples_pad(const SampleSink& sink) {
  with_types(sink, {7}, {2, 3, 0}, {0});
  with_types(sink, {3, 5}, {0, 1, 2, 0, 0, 0}, {1});
  with_types(sink, {3, 5}, {1, 0, 0, 2, 1, 3}, {0});
  with_types(sink, {0, 2}, {1, 1, 1, 1, 0, 0}, {1});
}

void samples_concat(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::bf16, DType::i64}) {
    sink({{{{t, {3, 7}}}, {{t, {5, 7}}}}, {{0}, {}, nullptr}, 0});
    sink({{{{t, {3, 7}}}, {{t, {3, 1}}}, {{t, {3, 31}}}}, {{1}, {}, nullptr}, 0});
    sink({{{{t, {2, 0, 3}}}, {{t, {2, 4, 3}}}}, {{1}, {}, nullptr}, 0});
  }
}

namespace {

bool has_axis(std::span<const int64_t> axes, int axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); }

// For a node whose attributes are three lists with one entry per axis: start, stop, step, or low, high, interior.
std::array<int64_t, 3> range_of(const Node& n, int axis) {
  const size_t rank = n.attrs.ints.size() / 3, a = size_t(axis);
  return {n.attrs.ints[a], n.attrs.ints[rank + a], n.attrs.ints[2 * rank + a]};
}

}  // namespace

BatchFlow batch_reshape(const BatchContext& c) {
  const SampleAxis b = first_samples(c);
  const int64_t step = contiguous_strides(c.graph.shape((*c).in[0]))[b.axis] * b.inner;  // elements per sample
  const Shape &to = (*c).type().shape, strides = contiguous_strides(to);
  for (int a = 0; a < to.rank(); ++a)
    if (strides[a] <= step && step % strides[a] == 0 && strides[a] * to[a] == step * b.count) return {SampleAxis{a, step / strides[a], b.count}};
  throw Coupled{"it splits samples"};
}

BatchFlow batch_permute(const BatchContext& c) {
  const SampleAxis b = first_samples(c);
  const std::vector<int64_t>& axes = (*c).attrs.ints;
  return {SampleAxis{int(std::find(axes.begin(), axes.end(), b.axis) - axes.begin()), b.inner, b.count}};
}

BatchFlow batch_keep(const BatchContext& c) { return {first_samples(c)}; }

BatchFlow batch_slice(const BatchContext& c) {
  const SampleAxis b = first_samples(c);
  if (range_of(*c, b.axis) != std::array<int64_t, 3>{0, c.graph.shape((*c).in[0])[b.axis], 1}) throw Coupled{"it cuts the batch axis"};
  return {b};
}

BatchFlow batch_pad(const BatchContext& c) {
  const SampleAxis b = first_samples(c);
  if (range_of(*c, b.axis) != std::array<int64_t, 3>{0, 0, 0}) throw Coupled{"it pads the batch axis"};
  return {b};
}

BatchFlow batch_axis(const BatchContext& c) {
  if ((*c).attrs.ints[0] == first_samples(c).axis) throw Coupled{"it works along the batch axis"};
  return batch_same(c);
}

BatchFlow batch_axes(const BatchContext& c) {
  if (has_axis((*c).attrs.ints, first_samples(c).axis)) throw Coupled{"it works along the batch axis"};
  return batch_same(c);
}

NodeId lift_shape(const LiftContext& c) {
  std::vector<int64_t> ints = c.node.attrs.ints;
  ints.insert(ints.begin(), c.steps);
  return lifted(c, std::move(ints));
}

NodeId lift_permute(const LiftContext& c) {
  std::vector<int64_t> ints = {0};
  for (int64_t a : c.node.attrs.ints) ints.push_back(a + 1);
  return lifted(c, std::move(ints));
}

NodeId lift_ranges(const LiftContext& c) {
  std::vector<int64_t> ints = c.node.attrs.ints;
  const bool slice = c.node.op == Op::slice;
  const int64_t whole[3] = {0, slice ? c.steps : 0, slice ? 1 : 0};
  const size_t rank = ints.size() / 3;
  for (size_t i = 3; i-- > 0;) ints.insert(ints.begin() + long(i * rank), whole[i]);
  return lifted(c, std::move(ints));
}

NodeId lift_axis(const LiftContext& c) {
  std::vector<int64_t> ints = c.node.attrs.ints;
  ++ints[0];
  return lifted(c, std::move(ints));
}

NodeId lift_axes(const LiftContext& c) {
  std::vector<int64_t> ints = c.node.attrs.ints;
  for (int64_t& a : ints) ++a;
  return lifted(c, std::move(ints));
}

NodeId lifted(const LiftContext& c, std::vector<int64_t> ints) {
  std::vector<NodeId> in;
  for (size_t i = 0; i < c.in.size(); ++i) in.push_back(c.stacked(i));
  return c.builder.graph().add(c.node.op, in, {std::move(ints), c.node.attrs.reals, c.node.attrs.body}, c.node.copy);
}

}  // namespace ridge::ops
