// A user's own gradient for a piece of graph.
#pragma once
#include <functional>
#include <vector>

#include "graph/graph.h"

namespace ridge {

struct CustomGradient {
  // (graph, inputs, output, cotangent) -> one gradient per input, kNone where there is none
  std::function<std::vector<NodeId>(Graph&, std::span<const NodeId>, NodeId, NodeId)> vjp;
};

}  // namespace ridge
