#include "compile/order.h"

#include <algorithm>
#include <tuple>

namespace ridge {

namespace {

// Followers of each kernel, each once.
std::vector<std::vector<size_t>> followers(const OrderProblem& p) {
  std::vector<std::vector<size_t>> later(p.kernels);
  for (auto [a, b] : p.edges) later[a].push_back(b);
  for (auto& list : later) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  return later;
}

std::vector<size_t> predecessors(const std::vector<std::vector<size_t>>& later) {
  std::vector<size_t> waits(later.size(), 0);
  for (const auto& list : later)
    for (size_t u : list) ++waits[u];
  return waits;
}

std::vector<size_t> longest_ways(const std::vector<std::vector<size_t>>& later) {
  std::vector<size_t> way(later.size(), 0), topological, open = predecessors(later);
  for (size_t i = 0; i < later.size(); ++i)
    if (!open[i]) topological.push_back(i);
  for (size_t at = 0; at < topological.size(); ++at)
    for (size_t u : later[topological[at]])
      if (--open[u] == 0) topological.push_back(u);
  for (auto it = topological.rbegin(); it != topological.rend(); ++it)
    for (size_t u : later[*it]) way[*it] = std::max(way[*it], way[u] + 1);
  return way;
}

// Those that read a value, each once.
std::vector<size_t> readers_of(const OrderProblem::Value& value) {
  std::vector<size_t> readers = value.readers;
  std::sort(readers.begin(), readers.end());
  readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
  return readers;
}

}  // namespace

std::vector<size_t> way_to_end(const OrderProblem& p) { return longest_ways(followers(p)); }

int64_t peak_bytes(const OrderProblem& p, const std::vector<size_t>& order) {
  std::vector<size_t> at(p.kernels, 0);
  for (size_t i = 0; i < order.size(); ++i) at[order[i]] = i;
  std::vector<int64_t> change(order.size() + 1, 0);
  for (const OrderProblem::Value& v : p.values) {
    size_t last = at[v.maker];
    for (size_t r : v.readers) last = std::max(last, at[r]);
    change[at[v.maker]] += v.bytes, change[last + 1] -= v.bytes;
  }
  int64_t live = 0, peak = 0;
  for (int64_t c : change) peak = std::max(peak, live += c);
  return peak;
}

std::vector<size_t> order_kernels(const OrderProblem& p) {
  size_t n = p.kernels;
  std::vector<std::vector<size_t>> later = followers(p), makes(n), reads(n);
  std::vector<size_t> waits = predecessors(later), way = longest_ways(later), left(p.values.size());
  for (size_t v = 0; v < p.values.size(); ++v) {
    std::vector<size_t> readers = readers_of(p.values[v]);
    makes[p.values[v].maker].push_back(v);
    for (size_t r : readers) reads[r].push_back(v);
    left[v] = readers.size();
  }
  std::vector<size_t> ready, order;
  for (size_t i = 0; i < n; ++i)
    if (!waits[i]) ready.push_back(i);
  while (!ready.empty()) {
    size_t best = 0;
    int64_t best_growth = 0;
    for (size_t k = 0; k < ready.size(); ++k) {
      int64_t growth = 0;
      for (size_t v : makes[ready[k]]) growth += p.values[v].bytes;
      for (size_t v : reads[ready[k]])
        if (left[v] == 1) growth -= p.values[v].bytes;
      // Growth first among those that do not grow, then the longest way, then the graph's own order.
      auto key = [&](size_t i, int64_t g) { return std::tuple(g > 0, g > 0 ? int64_t(0) : g, -int64_t(way[i]), i); };
      if (k == 0 || key(ready[k], growth) < key(ready[best], best_growth)) best = k, best_growth = growth;
    }
    size_t i = ready[best];
    ready.erase(ready.begin() + long(best));
    order.push_back(i);
    for (size_t v : reads[i]) --left[v];
    for (size_t u : later[i])
      if (--waits[u] == 0) ready.push_back(u);
  }
  return order;
}

}  // namespace ridge
