// Computes nodes of a scan body for all steps in one operation, as nodes of the graph that contains the scan.
#pragma once
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/builder.h"
#include "graph/ops/table.h"

namespace ridge {

// Whether a body node that varies by step can be computed for all steps in one operation. `varies`: per body node.
bool can_lift(const Graph& body, NodeId id, const std::vector<char>& varies);

class OverTime {
 public:
  OverTime(Graph& outer, const Graph& body, int64_t steps) : b_(outer), body_(body), steps_(steps) {}

  // Map the body's inputs (and values that only the loop can compute) to nodes outside.
  void once(NodeId body_node, NodeId value) { known_[body_node] = {value, false}; }
  void each(NodeId body_node, NodeId stacked) { known_[body_node] = {stacked, true}, given_.insert(body_node); }

  NodeId value(NodeId body_node);    // of a node that is the same in every step
  NodeId stacked(NodeId body_node);  // [steps, …]
  // The sum over all steps. Sums are pushed into products, which become one contraction over time and their own inner axis.
  NodeId total(NodeId body_node);

 private:
  using Lifted = LiftContext::Operand;
  Lifted lift(NodeId id);
  bool varies(NodeId id);
  NodeId product_over_time(const Node& n);

  Builder b_;
  const Graph& body_;
  int64_t steps_;
  std::unordered_map<NodeId, Lifted> known_;
  std::unordered_set<NodeId> given_;
  std::unordered_map<NodeId, bool> varies_;
};

}  // namespace ridge
