// Work that a loop over time need not do step by step, moved out of it.
#pragma once
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ridge {

struct HoistedScans {
  std::vector<NodeId> roots;
  std::vector<std::string> notes;  // one line a scan: what was moved where
};

// Of every scan that `roots` depend on, also of scans inside scans:
// - products of what is known before the loop starts (x_t · W; in backward all that is made again) become one product for all
//   steps, read step by step;
// - products that no later step needs (dW, dx, a readout) become one product after the loop, of values that the loop puts out;
// - what is the same in every step is computed once;
// - results, carries and operands that nobody needs are dropped.
// What crosses the border is a minimum cut over bytes. Bodies marked `segment` are only cleaned inside.
HoistedScans hoist_scans(Graph& graph, std::span<const NodeId> roots);

}  // namespace ridge
