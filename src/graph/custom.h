// A user-defined gradient for part of a graph.
#pragma once
#include <functional>
#include <vector>

#include "graph/graph.h"

namespace ridge {

struct CustomGradient {
  // (graph, inputs, output, cotangent) -> one gradient per input, kNone for no gradient
  std::function<std::vector<NodeId>(Graph&, std::span<const NodeId>, NodeId, NodeId)> vjp;
};

}  // namespace ridge
