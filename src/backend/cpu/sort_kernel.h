// Stable sorting along one axis.
#pragma once
#include <memory>

#include "graph/graph.h"
#include "threads/task.h"

namespace ridge::cpu {

// Operands for bind: x, values, indices (i64); either result may be absent. NaN sorts as the greatest value. All NaNs are equal, and so are zeros of either
// sign.
std::unique_ptr<Kernel> make_sort(const Graph& graph, NodeId node);

}  // namespace ridge::cpu
