// Decides which nodes run together in one kernel.
#pragma once
#include <string>
#include <unordered_set>
#include <vector>

#include "compile/lower.h"
#include "compile/order.h"
#include "graph/graph.h"
#include "graph/ops/table.h"

namespace ridge {

// One kernel. A tile kernel has one spec, or several independent ones in one launch; a matmul (or a conv that takes an epilogue) has the spec
// of its epilogue; any other node runs alone.
struct Group {
  enum class Kind { tile, matmul, node } kind = Kind::tile;
  NodeId node = kNone;           // the matmul or the single node
  std::vector<GroupSpec> specs;  // tile: at least one; matmul: one (members empty without an epilogue); node: none
};

struct FusePlan {
  std::vector<Group> groups;            // in any order until arrange_launches()
  OrderProblem problem;                 // the constraints on the order; kernels are numbered like the groups
  bool merged = false;                  // nodes were merged; otherwise each node is a group
  std::unordered_set<NodeId> copies;    // movement nodes and literals that get their own memory
  std::unordered_set<NodeId> repeated;  // cheap nodes without memory: every kernel that reads one recomputes it
  std::vector<std::string> refusals;
  std::vector<size_t> circular;  // entries of `state` that cannot be updated in place in any order
  int64_t planning_work = 0;     // nodes and groups examined while deciding about merges: the cost of planning
};

// Whether `id` has memory: all nodes do, except literals and movement nodes outside `copies`, and `repeated` nodes.
bool has_memory(const Graph& graph, NodeId id, const FusePlan& plan);

// Visits the nodes with memory that `id` is computed from, looking through views and nodes that have no memory.
template <class Fn>
void each_source(const Graph& graph, const FusePlan& plan, NodeId id, const Fn& fn) {
  const Node& n = graph[id];
  const bool through = (is_view(n.op) || n.op == Op::literal) && !plan.copies.count(id);
  if (!through && !plan.repeated.count(id)) return fn(id);
  for (NodeId in : n.in) each_source(graph, plan, in, fn);
}

// `state` pairs (input, output) share memory, so kernels that read the old value run before the new one is written. `forward` are the roots
// of the forward part, if there is one. `conv_epilogues`: the kernels of convolutions take epilogues.
FusePlan fuse(const Graph& graph, std::span<const NodeId> outputs, bool merge, std::span<const NodeId> inputs = {},
              std::span<const std::pair<int, int>> state = {}, std::span<const NodeId> forward = {}, bool conv_epilogues = false);

}  // namespace ridge
