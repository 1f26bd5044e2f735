// What a step computes for every sample by itself, as one loop that a GPU can run as one kernel.
#pragma once
#include <span>
#include <vector>

#include "graph/graph.h"

namespace ridge {

// Moves values whose first axis is the samples, each computed from its own sample and from what is the same for all, into a loop of one step: layers, losses
// and the gradients of activations, but not sums over the samples, such as the gradients of weights. Returns the new roots; the old ones if there are fewer
// than two products to join. batch: the inputs that hold the samples.
std::vector<NodeId> join_rows(Graph& graph, std::span<const NodeId> roots, std::span<const NodeId> batch);

}  // namespace ridge
