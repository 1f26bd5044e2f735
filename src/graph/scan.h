// A loop over time as one node: a body with carried state, per-step inputs and outputs.
#pragma once
#include <memory>
#include <vector>

#include "graph/graph.h"

namespace ridge {

// One step. Its inputs are the carries, one step of each sequence, and what stays the same for all steps.
struct ScanBody {
  Graph graph;
  std::vector<NodeId> carry_in, sequence_in, constant_in;
  std::vector<NodeId> carry_out, step_out;  // of the carries' types; outputs are stacked over time
  bool segment = false;                     // a step is a stretch of steps, made to save memory: nothing is moved out of it
  NodeId index = kNone;                     // the sequence that counts the steps, for draws (graph/draws.h); kNone: nothing counts by it
};
std::vector<NodeId> results_of(const ScanBody& body);  // carries, then outputs of the step

struct ScanResult {
  std::vector<NodeId> carry;    // after the last step
  std::vector<NodeId> outputs;  // [steps, …]
  std::vector<NodeId> entered;  // [steps, …]: the carries as they entered each step
};

// Operands: carries, sequences [steps, …], constants. With reverse the last step runs first; results keep their places in time.
// A scan's results are: final carries, stacked outputs, and the carries as they entered each step (what backward needs). `copy`: see Node.
// A body that draws random numbers gets the time index as one more sequence, so that each step draws its own (graph/draws.h).
ScanResult scan(Graph& graph, std::shared_ptr<const ScanBody> body, std::span<const NodeId> carry, std::span<const NodeId> sequences,
                std::span<const NodeId> constants, int64_t steps, bool reverse = false, uint16_t copy = 0);

struct ScanView {  // a scan node taken apart
  const ScanBody& body;
  std::span<const NodeId> carry, sequences, constants;
  int64_t steps;
  bool reverse;
};
ScanView scan_view(const Node& node);

}  // namespace ridge
