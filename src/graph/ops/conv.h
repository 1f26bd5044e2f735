// A convolution whose kernel reads bytes.
#pragma once
#include <span>

#include "graph/graph.h"

namespace ridge::ops {

// The convolution `node`, whose operands are `in`, where in[0] is computed from bytes by casts, movement and at most one product with, or quotient by, a
// number: the same sums over the bytes, which are then scaled; without an epilogue, the weights are scaled instead where that is less work. kNone: in[0] is not
// such a value.
NodeId conv_of_bytes(Graph& graph, const Node& node, std::span<const NodeId> in, bool epilogue);

}  // namespace ridge::ops
