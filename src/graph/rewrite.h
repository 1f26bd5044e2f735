// Rebuilding a piece of graph node by node: the one mechanism behind decomposition, simplification and recomputation.
#pragma once
#include <functional>
#include <unordered_map>

#include "graph/graph.h"

namespace ridge {

// Visits what `roots` depend on, operands first. `visit` gets a node and its new operands and returns what stands for each of
// the node's outputs, or nothing to keep the node as it is (with its new operands). Returns the new roots.
using RewriteFn = std::function<std::vector<NodeId>(NodeId id, std::span<const NodeId> in)>;
std::vector<NodeId> rewrite(Graph& graph, std::span<const NodeId> roots, const RewriteFn& visit);
std::vector<NodeId> all_results(Graph& graph, NodeId node);  // for `visit` to return: one node per output

// Macro ops for which `wanted` holds, replaced by their decompositions, until none is left.
std::vector<NodeId> decompose(Graph& graph, std::span<const NodeId> roots, const std::function<bool(NodeId)>& wanted);

}  // namespace ridge
