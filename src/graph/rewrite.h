// Rebuilds part of a graph node by node: the mechanism behind decomposition, simplification and recomputation.
#pragma once
#include <functional>
#include <unordered_map>

#include "graph/graph.h"

namespace ridge {

// Visits every node that `roots` depend on, operands first. `visit` gets a node and its new operands and returns a replacement for each of
// the node's outputs, or an empty vector to keep the node (with its new operands). Returns the new roots.
using RewriteFn = std::function<std::vector<NodeId>(NodeId id, std::span<const NodeId> in)>;
std::vector<NodeId> rewrite(Graph& graph, std::span<const NodeId> roots, const RewriteFn& visit);
std::vector<NodeId> all_results(Graph& graph, NodeId node);  // a return value for `visit`: one node per output

// Replaces macro ops for which `wanted` holds by their decompositions, until none is left.
std::vector<NodeId> decompose(Graph& graph, std::span<const NodeId> roots, const std::function<bool(NodeId)>& wanted);

}  // namespace ridge
