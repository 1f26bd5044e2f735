// Two traces of the same losses for different numbers of samples, compared node by node: what grows with the samples, and what else differs.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "step/batch_axis.h"

namespace ridge {

class BatchSizes {
 public:
  // `rule`: what `a` and another trace say about sizes, which those of `b` must follow.
  BatchSizes(const BatchTrace& a, const BatchTrace& b, const BatchSizes* rule = nullptr);

  const std::string& difference() const { return difference_; }  // a number, an attribute or a size that is another one; empty: none
  int64_t samples() const { return a_.samples; }
  std::vector<int> grown_axes(const Graph& graph, NodeId id) const;           // of a node of the first trace, also inside its loops
  bool counts_samples(size_t ratio) const { return counts_samples_[ratio]; }  // its count is a number, in proportion to the samples
  std::string told(const Type& type) const;                                   // the samples' number is "batch"

 private:
  struct Partners {                // by node of a graph of the first trace
    std::vector<NodeId> node;      // kNone: not compared
    const Graph* graph = nullptr;  // of the second trace
  };
  void compare(const Graph& a, const Graph& b, std::vector<std::pair<NodeId, NodeId>> roots, const std::vector<NodeId>& bases);
  void compare_loops(const Node& a, const Node& b, const std::vector<char>& counts);
  std::string compare_nodes(const Graph& a, NodeId id, const Node& b) const;
  Shape predicted(const Graph& a, NodeId id) const;
  NodeId without_views(const Graph& a, NodeId id, bool first) const;

  const BatchTrace &a_, &b_;
  const BatchSizes* rule_;
  std::unordered_map<const Graph*, Partners> partners_;
  std::string difference_;
  std::vector<bool> counts_samples_;  // of each ratio
};

}  // namespace ridge
