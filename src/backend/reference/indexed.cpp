#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/reference/ops.h"
#include "base/error.h"
#include "graph/ops/class_error.h"

namespace ridge::reference {
namespace {

int64_t checked(const Node& node, int64_t index, int64_t size, int axis) {
  if (index < 0 || index >= size)
    fail(ErrorCode::value, "[{}] index {} is outside axis {} with {} elements; valid: 0 to {}", name(node.op), index, axis, size, size - 1);
  return index;
}

Array check_class(const Node& node, Operands in) {
  const int64_t classes = node.attrs.ints[0];
  for (int64_t at = 0; at < in[0]->size(); ++at)
    if (int64_t index = in[0]->i[size_t(at)]; index < 0 || index >= classes) fail(ErrorCode::value, "{}", class_error(index, at, classes));
  return zeros(node.type());
}

// Starts are clamped so that the slice fits.
Shape clamped_starts(Operands starts, const Shape& whole, const Shape& part) {
  Shape s = whole;
  for (int a = 0; a < s.rank(); ++a) s[a] = std::clamp<int64_t>(starts[size_t(a)]->i[0], 0, whole[a] - part[a]);
  return s;
}

Shape shifted(Shape index, const Shape& by) {
  for (int a = 0; a < index.rank(); ++a) index[a] += by[a];
  return index;
}

Array dynamic_slice(const Node& node, Operands in) {
  Array out = zeros(node.type());
  Shape start = clamped_starts(in.subspan(1), in[0]->type.shape, out.type.shape);
  int64_t at = 0;
  for_each_index(out.type.shape, [&](const Shape& i) { copy_element(out, at++, *in[0], position(shifted(i, start), in[0]->type.shape)); });
  return out;
}

Array dynamic_update_slice(Operands in) {
  Array out = *in[0];
  const Shape& part = in[1]->type.shape;
  Shape start = clamped_starts(in.subspan(2), out.type.shape, part);
  int64_t at = 0;
  for_each_index(part, [&](const Shape& i) { copy_element(out, position(shifted(i, start), out.type.shape), *in[1], at++); });
  return out;
}

// The index of the selected element: along `axis` it is given by the index tensor.
Shape picked(const Node& node, Shape i, const Array& index, int64_t at, const Shape& shape) {
  int axis = int(node.attrs.ints[0]);
  i[axis] = checked(node, index.i[size_t(at)], shape[axis], axis);
  return i;
}

Array gather(const Node& node, Operands in) {
  Array out = zeros(node.type());
  const Shape& shape = in[0]->type.shape;
  int64_t at = 0;
  for_each_index(out.type.shape, [&](const Shape& i) {
    copy_element(out, at, *in[0], position(picked(node, i, *in[1], at, shape), shape));
    ++at;
  });
  return out;
}

Array scatter(const Node& node, Operands in) {  // in index order, so that the last of duplicate indices wins
  Array out = *in[0];
  int64_t at = 0;
  for_each_index(in[1]->type.shape, [&](const Shape& i) {
    int64_t to = position(picked(node, i, *in[1], at, out.type.shape), out.type.shape);
    if (node.op == Op::scatter)
      copy_element(out, to, *in[2], at);
    else
      add_element(out, to, *in[2], at);
    ++at;
  });
  return out;
}

// The source of an element of take's result, which has the index tensor's axes in place of one axis of its operand.
Shape taken(const Node& node, const Shape& i, const Array& index, const Shape& shape) {
  int axis = int(node.attrs.ints[0]), many = index.type.shape.rank();
  Shape from, which;
  for (int a = 0; a < axis; ++a) from.push_back(i[a]);
  for (int a = axis; a < axis + many; ++a) which.push_back(i[a]);
  from.push_back(checked(node, index.i[size_t(position(which, index.type.shape))], shape[axis], axis));
  for (int a = axis + many; a < i.rank(); ++a) from.push_back(i[a]);
  return from;
}

Array take(const Node& node, Operands in) {
  Array out = zeros(node.type());
  const Shape& shape = in[0]->type.shape;
  int64_t at = 0;
  for_each_index(out.type.shape, [&](const Shape& i) { copy_element(out, at++, *in[0], position(taken(node, i, *in[1], shape), shape)); });
  return out;
}

Array take_grad(const Node& node, Operands in) {
  Array out = zeros(node.type());
  const Shape& shape = out.type.shape;
  int64_t at = 0;
  for_each_index(in[0]->type.shape, [&](const Shape& i) { add_element(out, position(taken(node, i, *in[1], shape), shape), *in[0], at++); });
  return out;
}

}  // namespace

Array indexed(const Node& node, Operands in) {
  switch (node.op) {
    case Op::check_class: return check_class(node, in);
    case Op::dynamic_slice: return dynamic_slice(node, in);
    case Op::dynamic_update_slice: return dynamic_update_slice(in);
    case Op::gather: return gather(node, in);
    case Op::scatter:
    case Op::scatter_add: return scatter(node, in);
    case Op::take: return take(node, in);
    case Op::take_grad: return take_grad(node, in);
    default: fail(ErrorCode::internal, "[{}] takes no indices", name(node.op));
  }
}

std::vector<Array> sort(const Node& node, Operands in) {
  const Array& x = *in[0];
  const Shape& shape = x.type.shape;
  std::vector<Array> out = {zeros(node.types[0]), zeros(node.types[1])};
  int axis = int(node.attrs.ints[0]);
  bool descending = node.attrs.ints[1] != 0;
  int64_t n = shape[axis];
  Shape outer = shape;
  outer[axis] = n ? 1 : 0;
  // Stable in both directions; NaN sorts as the greatest value.
  auto smaller = [&](int64_t a, int64_t b) {
    return x.floating() ? x.f[size_t(a)] < x.f[size_t(b)] || (std::isnan(x.f[size_t(b)]) && !std::isnan(x.f[size_t(a)])) : x.i[size_t(a)] < x.i[size_t(b)];
  };
  for_each_index(outer, [&](Shape i) {
    auto at = [&](int64_t k) {
      i[axis] = k;
      return position(i, shape);
    };
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return descending ? smaller(at(b), at(a)) : smaller(at(a), at(b)); });
    for (int64_t k = 0; k < n; ++k) {
      copy_element(out[0], at(k), x, at(order[size_t(k)]));
      out[1].i[size_t(at(k))] = order[size_t(k)];
    }
  });
  return out;
}

}  // namespace ridge::reference
