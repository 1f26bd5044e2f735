// Shared by the backends' kernels for single nodes: collapsed shapes, and selection by op.
#pragma once
#include <span>

#include "base/error.h"
#include "graph/graph.h"

namespace ridge {

inline int64_t product(const Shape& s, int first, int last) {
  int64_t n = 1;
  for (int i = first; i < last; ++i) n *= s[i];
  return n;
}

// A shape viewed from one of its axes: [outer, axis, inner].
struct AxisView {
  int64_t outer = 1, size = 1, inner = 1;
  AxisView() = default;
  AxisView(const Shape& s, int axis) : outer(product(s, 0, axis)), size(s[axis]), inner(product(s, axis + 1, s.rank())) {}
};

// A backend's function that creates the kernels of an op that runs alone.
template <class Make>
struct NodeMaker {
  Op op;
  Make* make;
};
template <class Make>
Make& maker_of(std::span<const NodeMaker<Make>> makers, Op op) {
  for (const NodeMaker<Make>& maker : makers)
    if (maker.op == op) return *maker.make;
  fail(ErrorCode::internal, "[{}] has no kernel of its own", name(op));
}

}  // namespace ridge
