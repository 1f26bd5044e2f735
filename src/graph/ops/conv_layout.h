// Which axis of images is next to each other in memory between convolutions.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "graph/graph.h"

namespace ridge::ops {

// Where a convolution [N, C, H, W] is faster with channels last, whatever computes its images elementwise does so in the order [N, H, W, C], and its result is
// stored in this order: as a permute (kSeparateKernel) of the convolution, which may write it itself. Parameters keep their order. Returns the new roots.
std::vector<NodeId> keep_channels_last(Graph& graph, std::span<const NodeId> roots, const std::function<bool(const Graph&, NodeId)>& faster);

}  // namespace ridge::ops
