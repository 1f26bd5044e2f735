// Rewrites that change no value: fewer nodes, and shapes of graph that the fuser likes.
#pragma once
#include <vector>

#include "graph/graph.h"

namespace ridge {

std::vector<NodeId> simplify(Graph& graph, std::span<const NodeId> outputs);

}  // namespace ridge
