// Which kernels share a launch, and the order of all.
#pragma once
#include <unordered_set>

#include "compile/fuse.h"
#include "compile/order.h"

namespace ridge {

// Orders the plan's groups; `problem` numbers its kernels as the plan does. With `share`, groups that do the same to different
// tensors become one: all updates of a model's state, and all sums of its norm.
void arrange_launches(const Graph& graph, const std::unordered_set<NodeId>& outputs, const OrderProblem& problem, bool share, FusePlan& plan);

}  // namespace ridge
