// Reverse-mode differentiation, graph to graph: the result is an ordinary graph, so it can be differentiated again.
#pragma once
#include <span>
#include <vector>

#include "graph/graph.h"

namespace ridge {

// d(sum over i of outputs[i] · cotangents[i]) / d wrt. The gradient is zeros for nodes that the outputs do not depend on.
std::vector<NodeId> vector_jacobian(Graph& graph, std::span<const NodeId> outputs, std::span<const NodeId> cotangents, std::span<const NodeId> wrt);

// The gradients of a scalar.
std::vector<NodeId> gradients(Graph& graph, NodeId loss, std::span<const NodeId> wrt);

}  // namespace ridge
