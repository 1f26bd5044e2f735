#include "compile/order.h"

#include <algorithm>
#include <tuple>

namespace ridge {

std::vector<size_t> order_kernels(const OrderProblem& p) {
  size_t n = p.kernels;
  std::vector<std::vector<size_t>> later(n), makes(n), reads(n);
  std::vector<size_t> waits(n, 0), way(n, 0), left(p.values.size());
  auto edges = p.edges;
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  for (auto [a, b] : edges) later[a].push_back(b), ++waits[b];
  for (size_t v = 0; v < p.values.size(); ++v) {
    std::vector<size_t> readers = p.values[v].readers;
    std::sort(readers.begin(), readers.end());
    readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
    makes[p.values[v].maker].push_back(v);
    for (size_t r : readers) reads[r].push_back(v);
    left[v] = readers.size();
  }
  // Longest way to the end, over any topological order.
  std::vector<size_t> topological, open = waits;
  for (size_t i = 0; i < n; ++i)
    if (!open[i]) topological.push_back(i);
  for (size_t at = 0; at < topological.size(); ++at)
    for (size_t u : later[topological[at]])
      if (--open[u] == 0) topological.push_back(u);
  for (auto it = topological.rbegin(); it != topological.rend(); ++it)
    for (size_t u : later[*it]) way[*it] = std::max(way[*it], way[u] + 1);

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
