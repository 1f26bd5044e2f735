// Mixed precision for any model: products take and give 16-bit numbers, everything else stays f32.
#pragma once
#include <vector>

#include "graph/graph.h"

namespace ridge {

// Before gradients are taken. Operands of matmul, conv and attention are cast to `compute` where they are made, so that what is stored for
// them is the narrow form; their results are widened where they are read. Norms, softmax, losses, sums and loops over time stay as they are.
std::vector<NodeId> autocast(Graph& graph, std::span<const NodeId> roots, DType compute);

// The gradient of a parameter, whose product sums in f32 already: its result is not rounded to 16 bits on the way.
NodeId keep_wide(Graph& graph, NodeId gradient);

}  // namespace ridge
