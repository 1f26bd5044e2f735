#include "base/error.h"
#include "graph/builder.h"
#include "graph/ops/rows.h"

namespace ridge::ops {
namespace {

void check_index(const InferContext& c, const Type& index) {
  if (index.dtype != DType::i64) fail(ErrorCode::dtype, "[{}] indices must be i64, got {}", name(c.op), to_string(index));
}

void check_starts(const InferContext& c, size_t first, int rank) {
  if (int(c.in.size() - first) != rank) fail(ErrorCode::value, "[{}] {} starts for {} axes", name(c.op), c.in.size() - first, rank);
  for (size_t i = first; i < c.in.size(); ++i)
    if (c.in[i].dtype != DType::i64 || c.in[i].shape.rank() != 0)
      fail(ErrorCode::dtype, "[{}] starts must be i64 scalars, got {}", name(c.op), to_string(c.in[i]));
}

}  // namespace

// 0 if the index is one of attrs.ints[0] classes; otherwise the run fails. Added to a loss, it checks the targets without changing the
// gradient.
Types infer_check_class(const InferContext& c) {
  if (!is_integer(c.in[0].dtype)) fail(ErrorCode::dtype, "[check_class] classes must be integers, got {}", to_string(c.in[0]));
  return {{DType::f32, c.in[0].shape}};
}

Types infer_dynamic_slice(const InferContext& c) {
  Shape sizes(c.attrs.ints);
  const Shape& s = c.in[0].shape;
  check_starts(c, 1, s.rank());
  bool fits = sizes.rank() == s.rank();
  for (int i = 0; fits && i < s.rank(); ++i) fits = sizes[i] >= 0 && sizes[i] <= s[i];
  if (!fits) fail(ErrorCode::shape, "[dynamic_slice] sizes {} do not fit {}", to_string(sizes), to_string(s));
  return {{c.in[0].dtype, sizes}};
}

Types infer_dynamic_update_slice(const InferContext& c) {
  const Shape &s = c.in[0].shape, &u = c.in[1].shape;
  check_starts(c, 2, s.rank());
  bool fits = u.rank() == s.rank() && c.in[0].dtype == c.in[1].dtype;
  for (int i = 0; fits && i < s.rank(); ++i) fits = u[i] <= s[i];
  if (!fits) fail(ErrorCode::shape, "[dynamic_update_slice] {} does not fit into {}", to_string(c.in[1]), to_string(c.in[0]));
  return {c.in[0]};
}

Types infer_gather(const InferContext& c) {
  check_index(c, c.in[1]);
  const Shape &s = c.in[0].shape, &index = c.in[1].shape;
  int axis = int(c.attrs.ints.at(0));
  bool fits = s.rank() == index.rank() && s.rank() > 0;
  for (int i = 0; fits && i < s.rank(); ++i) fits = i == axis || index[i] <= s[i];
  if (!fits) fail(ErrorCode::shape, "[gather] indices {} do not fit {} along axis {}", to_string(index), to_string(s), axis);
  return {{c.in[0].dtype, index}};
}

Types infer_scatter(const InferContext& c) {
  check_index(c, c.in[1]);
  const Shape &s = c.in[0].shape, &index = c.in[1].shape;
  int axis = int(c.attrs.ints.at(0));
  bool fits = s.rank() == index.rank() && c.in[2].shape == index && c.in[2].dtype == c.in[0].dtype && s.rank() > 0;
  for (int i = 0; fits && i < s.rank(); ++i) fits = i == axis || index[i] <= s[i];
  if (!fits)
    fail(ErrorCode::shape, "[{}] source {} and indices {} do not fit {} along axis {}", name(c.op), to_string(c.in[2]), to_string(c.in[1]), to_string(c.in[0]),
         axis);
  return {c.in[0]};
}

Types infer_take(const InferContext& c) {
  check_index(c, c.in[1]);
  int axis = normal_axis(c.attrs.ints.at(0), c.in[0].shape.rank(), "take");
  Shape out;
  for (int i = 0; i < axis; ++i) out.push_back(c.in[0].shape[i]);
  for (int64_t d : c.in[1].shape) out.push_back(d);
  for (int i = axis + 1; i < c.in[0].shape.rank(); ++i) out.push_back(c.in[0].shape[i]);
  return {{c.in[0].dtype, out}};
}

// in: gradient of take's result, indices; attrs: axis, size of that axis
Types infer_take_grad(const InferContext& c) {
  check_index(c, c.in[1]);
  int axis = int(c.attrs.ints.at(0)), gone = c.in[1].shape.rank();
  Shape out;
  for (int i = 0; i < axis; ++i) out.push_back(c.in[0].shape[i]);
  out.push_back(c.attrs.ints.at(1));
  for (int i = axis + gone; i < c.in[0].shape.rank(); ++i) out.push_back(c.in[0].shape[i]);
  return {{c.in[0].dtype, out}};
}

Types infer_sort(const InferContext& c) {
  normal_axis(c.attrs.ints.at(0), c.in[0].shape.rank(), "sort");
  return {c.in[0], {DType::i64, c.in[0].shape}};
}

void vjp_dynamic_slice(GradContext& c) {
  Builder b(c.graph());
  std::vector<NodeId> starts(c.graph()[c.node()].in.begin() + 1, c.graph()[c.node()].in.end());
  c.add(0, b.dynamic_update_slice(b.like(c.in(0), 0), c.cotangent(), starts));
}

void vjp_dynamic_update_slice(GradContext& c) {
  Builder b(c.graph());
  std::vector<NodeId> starts(c.graph()[c.node()].in.begin() + 2, c.graph()[c.node()].in.end());
  if (c.needs(0)) c.add(0, b.dynamic_update_slice(c.cotangent(), b.like(c.in(1), 0), starts));
  if (c.needs(1)) c.add(1, b.dynamic_slice(c.cotangent(), starts, b.shape(c.in(1))));
}

void vjp_gather(GradContext& c) {
  Builder b(c.graph());
  c.add(0, b.scatter_add(b.like(c.in(0), 0), c.in(1), c.cotangent(), int(c.graph()[c.node()].attrs.ints[0])));
}

void vjp_scatter(GradContext& c) {
  Builder b(c.graph());
  int axis = int(c.graph()[c.node()].attrs.ints[0]);
  if (c.needs(0)) c.add(0, b.scatter(c.cotangent(), c.in(1), b.like(c.in(2), 0), axis));
  if (c.needs(2)) {  // for duplicate indices only the last one was written, so only it gets the gradient
    NodeId order = b.iota(b.shape(c.in(1)), axis);
    NodeId winner = b.gather(b.scatter(b.full(b.shape(c.in(0)), DType::i64, -1), c.in(1), order, axis), c.in(1), axis);
    NodeId g = b.gather(c.cotangent(), c.in(1), axis);
    c.add(2, b.select(b.binary(Op::equal, winner, order), g, b.like(g, 0)));
  }
}

void vjp_scatter_add(GradContext& c) {
  Builder b(c.graph());
  if (c.needs(0)) c.add(0, c.cotangent());
  if (c.needs(2)) c.add(2, b.gather(c.cotangent(), c.in(1), int(c.graph()[c.node()].attrs.ints[0])));
}

void vjp_take(GradContext& c) {
  int64_t axis = c.graph()[c.node()].attrs.ints[0];
  c.add(0, c.graph().add(Op::take_grad, {c.cotangent(), c.in(1)}, {{axis, c.graph().shape(c.in(0))[int(axis)]}, {}, nullptr}));
}

void vjp_take_grad(GradContext& c) { c.add(0, Builder(c.graph()).take(c.cotangent(), c.in(1), int(c.graph()[c.node()].attrs.ints[0]))); }

void vjp_sort(GradContext& c) {
  if (!c.cotangent(0)) return;
  Builder b(c.graph());
  c.add(0, b.scatter_add(b.like(c.in(0), 0), b.get(c.node(), 1), c.cotangent(0), int(c.graph()[c.node()].attrs.ints[0])));
}

namespace {

Sample::Operand index_operand(Shape shape, double size) { return {{DType::i64, shape}, 0, size, false}; }

}  // namespace

void samples_check_class(const SampleSink& sink) {
  for (DType t : {DType::i64, DType::i32, DType::u8})
    for (const Shape& s : {Shape{}, Shape{7}, Shape{0}, Shape{3, 33}, Shape{5, 1, 31}}) sink({{{{t, s}, 0, 9}}, {{9}, {}, nullptr}, 0});
}

void samples_dynamic_slice(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::bf16, DType::i64}) {
    sink({{{{t, {33}}}, index_operand({}, 40)}, {{7}, {}, nullptr}, 0});
    sink({{{{t, {3, 31}}}, index_operand({}, 2), index_operand({}, 20)}, {{2, 5}, {}, nullptr}, 0});
  }
}

void samples_dynamic_update_slice(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::bf16, DType::i64}) {
    sink({{{{t, {33}}}, {{t, {7}}}, index_operand({}, 40)}, {}, 0});
    sink({{{{t, {3, 31}}}, {{t, {2, 5}}}, index_operand({}, 2), index_operand({}, 20)}, {}, 0});
  }
}

void samples_gather(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::bf16, DType::i64}) {
    sink({{{{t, {7}}}, index_operand({31}, 7)}, {{0}, {}, nullptr}, 0});
    sink({{{{t, {3, 33}}}, index_operand({3, 5}, 33)}, {{1}, {}, nullptr}, 0});
    sink({{{{t, {5, 3, 2}}}, index_operand({4, 3, 2}, 5)}, {{0}, {}, nullptr}, 0});
  }
}

void samples_scatter(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::bf16, DType::i64}) {
    sink({{{{t, {7}}}, index_operand({31}, 7), {{t, {31}}}}, {{0}, {}, nullptr}, 0});
    sink({{{{t, {3, 33}}}, index_operand({3, 5}, 33), {{t, {3, 5}}}}, {{1}, {}, nullptr}, 0});
    sink({{{{t, {5, 3}}}, index_operand({7, 2}, 5), {{t, {7, 2}}}}, {{0}, {}, nullptr}, 0});
  }
}

void samples_take(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::bf16, DType::i64}) {
    sink({{{{t, {7, 33}}}, index_operand({2, 5}, 7)}, {{0}, {}, nullptr}, 0});
    sink({{{{t, {3, 7, 2}}}, index_operand({31}, 7)}, {{1}, {}, nullptr}, 0});
    sink({{{{t, {3, 7}}}, index_operand({}, 7)}, {{1}, {}, nullptr}, 0});
  }
}

void samples_take_grad(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::bf16}) {
    sink({{{{t, {2, 5, 33}}}, index_operand({2, 5}, 7)}, {{0, 7}, {}, nullptr}, 0});
    sink({{{{t, {3, 31, 2}}}, index_operand({31}, 7)}, {{1, 7}, {}, nullptr}, 0});
    sink({{{{t, {0, 3}}}, index_operand({0}, 7)}, {{0, 7}, {}, nullptr}, 0});
  }
}

void samples_sort(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::bf16, DType::i32, DType::i64}) {
    sink({{{{t, {33}}, -9, 9}}, {{0, 0}, {}, nullptr}, 0});
    sink({{{{t, {3, 31}}, -9, 9}}, {{1, 1}, {}, nullptr}, 0});
    sink({{{{t, {7, 5}}, -9, 9}}, {{0, 1}, {}, nullptr}, 0});
  }
}

BatchFlow batch_gather(const BatchContext& c) {
  if ((*c).attrs.ints[0] == first_samples(c).axis) throw Coupled{"it indexes along the batch axis"};
  return batch_same(c);
}

BatchFlow batch_take(const BatchContext& c) {
  const int axis = int((*c).attrs.ints[0]);
  if (c.in[0] && (c.in[1] || c.in[0]->axis == axis)) throw Coupled{"it indexes a tensor made from the batch"};
  if (c.in[0]) {  // the axes of the index replace the indexed axis
    const int moved = c.in[0]->axis < axis ? 0 : c.graph.shape((*c).in[1]).rank() - 1;
    return {SampleAxis{c.in[0]->axis + moved, c.in[0]->inner, c.in[0]->count}};
  }
  return {SampleAxis{int((*c).attrs.ints[0]) + c.in[1]->axis, c.in[1]->inner, c.in[1]->count}};
}

// The axes of a varying index replace the indexed axis, so the time axis must move to the front.
NodeId lift_take(const LiftContext& c) {
  Builder& b = c.builder;
  const int axis = int(c.node.attrs.ints[0]);
  if (c.in[0].varies) return b.graph().add(c.node.op, {c.in[0].id, c.in[1].id}, {{axis + 1}, {}, nullptr}, c.node.copy);
  const NodeId y = b.graph().add(c.node.op, {c.in[0].id, c.in[1].id}, c.node.attrs, c.node.copy);
  Shape order = {axis};
  for (int a = 0; a < b.shape(y).rank(); ++a)
    if (a != axis) order.push_back(a);
  return b.permute(y, order);
}

}  // namespace ridge::ops
