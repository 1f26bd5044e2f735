// The operations of the reference by group: each computes one result from a node's attributes and its operands' values.
#pragma once
#include "backend/reference/evaluate.h"

namespace ridge::reference {

using Operands = std::span<const Array* const>;

Array elementwise(const Node& node, Operands in);
Array source(const Node& node, Operands in);    // literal, iota, random
Array movement(const Node& node, Operands in);  // reshape … concat, fold
Array indexed(const Node& node, Operands in);   // check_class, dynamic slices, gather, scatter, take
std::vector<Array> sort(const Node& node, Operands in);
Array reduce(const Node& node, Operands in);  // and cumulative sums
Array matmul(const Node& node, Operands in);

// Calls visit(index) for every index of a shape, last axis fastest.
template <class Visit>
void for_each_index(const Shape& shape, Visit visit) {
  Shape index = Shape::filled(shape.rank(), 0);
  for (int64_t left = shape.numel(); left > 0; --left) {
    visit(static_cast<const Shape&>(index));
    for (int axis = shape.rank() - 1; axis >= 0 && ++index[axis] == shape[axis]; --axis) index[axis] = 0;
  }
}

// The row-major offset of an index.
inline int64_t position(const Shape& index, const Shape& shape) {
  int64_t at = 0;
  for (int i = 0; i < shape.rank(); ++i) at = at * shape[i] + index[i];
  return at;
}

inline void copy_element(Array& to, int64_t to_at, const Array& from, int64_t from_at) {
  if (to.floating())
    to.f[size_t(to_at)] = from.f[size_t(from_at)];
  else
    to.i[size_t(to_at)] = from.i[size_t(from_at)];
}

inline void add_element(Array& to, int64_t to_at, const Array& from, int64_t from_at) {
  if (to.floating())
    to.f[size_t(to_at)] += from.f[size_t(from_at)];
  else
    to.i[size_t(to_at)] = wrap_to(to.type.dtype, int64_t(uint64_t(to.i[size_t(to_at)]) + uint64_t(from.i[size_t(from_at)])));
}

}  // namespace ridge::reference
