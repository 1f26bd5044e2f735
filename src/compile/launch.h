// Which kernels share a launch, and the order of all.
#pragma once
#include "compile/fuse.h"

namespace ridge {

// Orders the plan's groups: operands' groups come first. Where nodes were merged, groups that do the same to different tensors become one
// too: all updates of a model's state, and all sums of its norm.
void arrange_launches(const Graph& graph, std::span<const NodeId> outputs, FusePlan& plan);

}  // namespace ridge
