// Compares two traces of the same losses with different numbers of samples, node by node: what grows with the samples, and what else differs.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "step/batch_axis.h"

namespace ridge {

class BatchSizes {
 public:
  // `rule`: the comparison of `a` with another trace; the sizes of `b` must follow it.
  BatchSizes(const BatchTrace& a, const BatchTrace& b, const BatchSizes* rule = nullptr);

  const std::string& difference() const { return difference_; }  // the first differing number, attribute or size; empty: none
  int64_t samples() const { return a_.samples; }
  std::vector<int> grown_axes(const Graph& graph, NodeId id) const;           // of a node of the first trace, including nodes inside loops
  bool counts_samples(size_t ratio) const { return counts_samples_[ratio]; }  // its count is a constant proportional to the samples
  std::string describe(const Type& type) const;                               // the type as text, with "batch" for the number of samples

 private:
  struct Partners {                // indexed by node of a graph of the first trace
    std::vector<NodeId> node;      // kNone: not compared
    const Graph* graph = nullptr;  // the matching graph of the second trace
  };
  void compare(const Graph& a, const Graph& b, const std::vector<std::pair<NodeId, NodeId>>& roots, const std::vector<NodeId>& bases);
  void compare_loops(const Node& a, const Node& b, const std::vector<char>& counts);
  std::string compare_nodes(const Graph& a, NodeId id, const Node& b) const;
  Shape predicted(const Graph& a, NodeId id) const;
  NodeId without_views(const Graph& a, NodeId id, bool first) const;

  const BatchTrace &a_, &b_;
  const BatchSizes* rule_;
  std::unordered_map<const Graph*, Partners> partners_;
  std::string difference_;
  std::vector<bool> counts_samples_;  // by ratio
};

}  // namespace ridge
