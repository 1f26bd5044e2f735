#include "compile/min_cut.h"

#include <algorithm>
#include <queue>

namespace ridge {

void FlowNetwork::edge(int from, int to, int64_t capacity) {
  out_[size_t(from)].push_back(int(edges_.size())), edges_.push_back({to, capacity});
  out_[size_t(to)].push_back(int(edges_.size())), edges_.push_back({from, 0});
}

void FlowNetwork::solve(int source, int sink) {
  while (levels(source, sink)) {
    next_.assign(out_.size(), 0);
    while (push(source, sink, kInfinite) > 0) {
    }
  }
  // Nodes that can still reach the sink are behind the cut.
  reaches_.assign(out_.size(), 0);
  std::vector<int> stack = {sink};
  reaches_[size_t(sink)] = 1;
  while (!stack.empty()) {
    int n = stack.back();
    stack.pop_back();
    for (int e : out_[size_t(n)]) {
      int from = edges_[size_t(e)].to;
      if (edges_[size_t(e ^ 1)].left > 0 && !reaches_[size_t(from)]) reaches_[size_t(from)] = 1, stack.push_back(from);
    }
  }
}

bool FlowNetwork::levels(int source, int sink) {
  level_.assign(out_.size(), -1);
  std::queue<int> queue;
  level_[size_t(source)] = 0, queue.push(source);
  while (!queue.empty()) {
    int n = queue.front();
    queue.pop();
    for (int e : out_[size_t(n)])
      if (edges_[size_t(e)].left > 0 && level_[size_t(edges_[size_t(e)].to)] < 0)
        level_[size_t(edges_[size_t(e)].to)] = level_[size_t(n)] + 1, queue.push(edges_[size_t(e)].to);
  }
  return level_[size_t(sink)] >= 0;
}

int64_t FlowNetwork::push(int n, int sink, int64_t flow) {
  if (n == sink) return flow;
  for (size_t& i = next_[size_t(n)]; i < out_[size_t(n)].size(); ++i) {
    int e = out_[size_t(n)][i], to = edges_[size_t(e)].to;
    if (edges_[size_t(e)].left <= 0 || level_[size_t(to)] != level_[size_t(n)] + 1) continue;
    if (int64_t got = push(to, sink, std::min(flow, edges_[size_t(e)].left)); got > 0) {
      edges_[size_t(e)].left -= got, edges_[size_t(e ^ 1)].left += got;
      return got;
    }
  }
  return 0;
}

}  // namespace ridge
