// Rewrites that change no value: fewer nodes, and shapes of graph that the fuser likes.
#pragma once
#include <vector>

#include "graph/graph.h"

namespace ridge {

// What later passes count on, always done: no markers (stop_gradient, custom), no reductions over single elements; no convolutions, unless a
// backend has kernels for those that are left.
std::vector<NodeId> canonicalize(Graph& graph, std::span<const NodeId> outputs, bool convolutions = false);

std::vector<NodeId> simplify(Graph& graph, std::span<const NodeId> outputs);

}  // namespace ridge
