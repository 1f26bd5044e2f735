// Splits loops over time into stretches, so that backward keeps the carry of every stretch instead of every step.
#pragma once
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ridge {

// About the square root of the number of steps, which minimizes the number of stretch carries plus step carries within one stretch; a
// nearby divisor of the number of steps if there is one.
int64_t segment_length(int64_t steps);

struct SegmentedScans {
  std::vector<NodeId> roots;
  std::vector<std::string> notes;  // one line per scan
};

// Runs before gradients are taken. A scan of T steps becomes a scan over T / k stretches whose body is a scan of k steps, plus one scan for
// the remainder. The gradient of the outer scan reruns each stretch from its first carry.
SegmentedScans segment_scans(Graph& graph, std::span<const NodeId> roots);

}  // namespace ridge
