// Reverse-mode differentiation, graph to graph: the result is more graph, so it can be differentiated again.
#pragma once
#include <span>
#include <vector>

#include "graph/graph.h"

namespace ridge {

// d(sum over i of outputs[i] · cotangents[i]) / d wrt. Where nothing flows, the gradient is zeros.
std::vector<NodeId> vector_jacobian(Graph& graph, std::span<const NodeId> outputs, std::span<const NodeId> cotangents, std::span<const NodeId> wrt);

// Of a scalar.
std::vector<NodeId> gradients(Graph& graph, NodeId loss, std::span<const NodeId> wrt);

}  // namespace ridge
