// Decides which kernels share a launch, and the order of all kernels.
#pragma once
#include "compile/fuse.h"

namespace ridge {

// Orders the plan's groups so that the groups of operands come first. If nodes were merged, groups that do the same to different tensors
// are merged too: all updates of a model's state, and all sums of its norm.
void arrange_launches(const Graph& graph, std::span<const NodeId> outputs, FusePlan& plan);

}  // namespace ridge
