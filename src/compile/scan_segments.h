// Loops over time cut into stretches, so that backward keeps the carry of every stretch and not of every step.
#pragma once
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ridge {

// About the square root of the number of steps, where carries of stretches and of one stretch's steps together are fewest; a divisor
// of it where there is one nearby.
int64_t segment_length(int64_t steps);

struct SegmentedScans {
  std::vector<NodeId> roots;
  std::vector<std::string> notes;  // one line a scan
};

// Before gradients are taken: a scan of T steps becomes a scan over T / k stretches whose body is a scan of k steps, and one more scan
// for the rest. The gradient of the outer scan runs a stretch again from its first carry.
SegmentedScans segment_scans(Graph& graph, std::span<const NodeId> roots);

}  // namespace ridge
