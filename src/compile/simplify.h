// Rewrites that change no value: fewer nodes, and shapes of graph that the fuser likes.
#pragma once
#include <vector>

#include "graph/graph.h"

namespace ridge {

// What later passes count on, always done: no markers (stop_gradient, custom), no convolutions, no reductions over single elements.
std::vector<NodeId> canonicalize(Graph& graph, std::span<const NodeId> outputs);

std::vector<NodeId> simplify(Graph& graph, std::span<const NodeId> outputs);

}  // namespace ridge
