// Mixed precision for any model: products read and write 16-bit numbers, everything else stays f32.
#pragma once
#include <vector>

#include "graph/graph.h"

namespace ridge {

// Runs before gradients are taken. Operands of matmul, conv and attention are cast to `compute` where they are produced, so that the narrow
// form is what gets stored; results are widened where they are read. Norms, softmax, losses, sums and loops over time are unchanged.
std::vector<NodeId> autocast(Graph& graph, std::span<const NodeId> roots, DType compute);

// The f32 gradient of a parameter. Its product already sums in f32, so the result is not rounded to 16 bits in between.
NodeId keep_wide(Graph& graph, NodeId gradient);

}  // namespace ridge
