// Minimum cuts: the cheapest set of values that separates their producers from their readers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace ridge {

class FlowNetwork {  // Dinic's maximum flow
 public:
  static constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max() / 4;

  explicit FlowNetwork(size_t nodes) : out_(nodes) {}
  void edge(int from, int to, int64_t capacity);
  void solve(int source, int sink);

  // After solve(): the minimum cut nearest to the sink, and the one nearest to the source.
  bool before_last_cut(int node) const { return !reaches_[size_t(node)]; }
  bool before_first_cut(int node) const { return level_[size_t(node)] >= 0; }

 private:
  struct Edge {
    int to;
    int64_t left;
  };
  bool levels(int source, int sink);
  int64_t push(int node, int sink, int64_t flow);

  std::vector<std::vector<int>> out_;
  std::vector<Edge> edges_;
  std::vector<int> level_;
  std::vector<char> reaches_;
  std::vector<size_t> next_;
};

}  // namespace ridge
