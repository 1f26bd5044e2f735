// Finds the weight matrices of a network's hidden layers, which Muon updates.
#pragma once
#include <span>
#include <vector>

#include "graph/graph.h"

namespace ridge {

// For each parameter (an input of the graph): whether it multiplies activations, as a matrix or as the kernel of a convolution, and what it yields reaches
// another product with weights. That excludes vectors, tables (also those that a head shares), parameters of single connections, masked weights, and output
// heads. Products inside loops over time count, and what the next step reads is reached.
std::vector<char> hidden_matrices(const Graph& graph, NodeId loss, std::span<const NodeId> parameters);

}  // namespace ridge
