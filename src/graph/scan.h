// A loop over time as one node: a body with carried state, per-step inputs and outputs.
#pragma once
#include <memory>
#include <vector>

#include "graph/graph.h"

namespace ridge {

// One step. Its inputs are the carries, one step of each sequence, and the constants.
struct ScanBody {
  Graph graph;
  std::vector<NodeId> carry_in, sequence_in, constant_in;
  std::vector<NodeId> carry_out, step_out;  // carry_out has the types of the carries; step_out is stacked over time
  bool segment = false;                     // each step is itself a stretch of steps, made to save memory: nothing may be hoisted out of it
  NodeId index = kNone;                     // the sequence that numbers the steps for draws (graph/draws.h); kNone: no draw depends on the step
};
std::vector<NodeId> results_of(const ScanBody& body);  // carries, then per-step outputs

struct ScanResult {
  std::vector<NodeId> carry;    // after the last step
  std::vector<NodeId> outputs;  // [steps, …]
  std::vector<NodeId> entered;  // [steps, …]: the carries at the start of each step
};

// Operands: carries, sequences [steps, …], constants. With `reverse` the last step runs first; results keep their position in time. A
// scan's results are the final carries, the stacked outputs, and the carries at the start of each step (needed by backward). `copy`: see
// Node. If the body draws random numbers, it gets the time index as an extra sequence, so that every step draws different numbers
// (graph/draws.h).
ScanResult scan(Graph& graph, std::shared_ptr<const ScanBody> body, std::span<const NodeId> carry, std::span<const NodeId> sequences,
                std::span<const NodeId> constants, int64_t steps, bool reverse = false, uint16_t copy = 0);

struct ScanView {  // the parts of a scan node
  const ScanBody& body;
  std::span<const NodeId> carry, sequences, constants;
  int64_t steps;
  bool reverse;
};
ScanView scan_view(const Node& node);

}  // namespace ridge
