// Whether a batch may be split: every sample must go its own way until the losses are added up.
#pragma once
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ridge {

// Inputs whose first axis counts samples, and the sum and count of losses made from them. Returns the first operation that mixes
// samples, with its shapes and why; empty when there is none.
std::string find_coupling(const Graph& graph, std::span<const NodeId> batch_inputs, std::span<const NodeId> losses);

}  // namespace ridge
