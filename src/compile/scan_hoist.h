// Moves work out of a loop over time that need not run step by step.
#pragma once
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ridge {

struct HoistedScans {
  std::vector<NodeId> roots;
  std::vector<std::string> notes;  // one line per scan: what was moved where
};

// For every scan that `roots` depend on, including scans inside scans:
// - products of values known before the loop starts (x_t · W; in backward, everything that is recomputed) become one product for all
//   steps, which the loop reads step by step;
// - products that no later step needs (dW, dx, a readout) become one product after the loop, of values that the loop outputs;
// - loop-invariant values are computed once;
// - unused results, carries and operands are dropped.
// A minimum cut over bytes decides which values cross the loop boundary. Nothing is moved out of bodies marked `segment`; only the unused
// parts are dropped, and loops inside them are processed.
// `conv_reads_bytes`: convolutions read bytes and scale their weights instead, which is done once.
HoistedScans hoist_scans(Graph& graph, std::span<const NodeId> roots, bool conv_reads_bytes = false);

}  // namespace ridge
