#include "compile/order.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace ridge {

namespace {

// The followers of each kernel, without duplicates.
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

std::vector<size_t> longest_paths(const std::vector<std::vector<size_t>>& later) {
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

// The readers of a value, without duplicates.
std::vector<size_t> readers_of(const OrderProblem::Value& value) {
  std::vector<size_t> readers = value.readers;
  std::sort(readers.begin(), readers.end());
  readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
  return readers;
}

}  // namespace

std::vector<size_t> critical_path(const OrderProblem& p) { return longest_paths(followers(p)); }

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
  std::vector<std::vector<size_t>> later = followers(p), reads(n), readers(p.values.size());
  std::vector<size_t> waits = predecessors(later), way = longest_paths(later), left(p.values.size());
  std::vector<int64_t> growth(n, 0);  // change in live bytes if the kernel ran now
  for (size_t v = 0; v < p.values.size(); ++v) {
    readers[v] = readers_of(p.values[v]);
    growth[p.values[v].maker] += p.values[v].bytes;
    for (size_t r : readers[v]) reads[r].push_back(v);
    left[v] = readers[v].size();
    if (left[v] == 1) growth[readers[v][0]] -= p.values[v].bytes;
  }
  // First the kernels that do not increase live memory, by how much they free; then the longest critical path; then the graph's order.
  auto key = [&](size_t i) { return std::tuple(growth[i] > 0, growth[i] > 0 ? int64_t(0) : growth[i], -int64_t(way[i]), i); };
  std::set<decltype(key(0))> ready;
  std::vector<size_t> order;
  std::vector<char> done(n, 0);
  for (size_t i = 0; i < n; ++i)
    if (!waits[i]) ready.insert(key(i));
  while (!ready.empty()) {
    const size_t i = std::get<3>(*ready.begin());
    ready.erase(ready.begin());
    order.push_back(i), done[i] = 1;
    for (size_t v : reads[i])
      if (--left[v] == 1) {  // its last reader will free it
        const size_t last = *std::find_if(readers[v].begin(), readers[v].end(), [&](size_t r) { return !done[r]; });
        const bool waiting = ready.erase(key(last)) > 0;
        growth[last] -= p.values[v].bytes;
        if (waiting) ready.insert(key(last));
      }
    for (size_t u : later[i])
      if (--waits[u] == 0) ready.insert(key(u));
  }
  return order;
}

}  // namespace ridge
