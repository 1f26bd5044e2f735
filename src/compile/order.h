// The order in which kernels run: operands first, and among the kernels that are ready, the one that keeps the least memory live.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ridge {

struct OrderProblem {
  size_t kernels = 0;
  std::vector<std::pair<size_t, size_t>> edges;  // (earlier, later)
  struct Value {
    int64_t bytes;
    size_t maker;
    std::vector<size_t> readers;
  };
  std::vector<Value> values;  // only values that live from their producer to their last reader
};

// Kernels that free at least as much as they allocate run as soon as they are ready; of the others, the one with the longest critical path
// runs first, so that recomputed values come as late as possible. The result has fewer than `kernels` entries when there is a cycle.
std::vector<size_t> order_kernels(const OrderProblem& problem);

// The length of the longest chain of kernels that must run after each kernel. It decreases along every edge.
std::vector<size_t> critical_path(const OrderProblem& problem);

// The most bytes that are live at the same time in this order.
int64_t peak_bytes(const OrderProblem& problem, const std::vector<size_t>& order);

}  // namespace ridge
