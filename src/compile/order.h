// In which order kernels run: operands first, and among those that may run, the one that keeps the least alive.
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
  std::vector<Value> values;  // those that live only between their maker and their last reader
};

// Kernels that free at least as much as they allocate run at once; of the others the one with the longest way to the end, so
// that recomputed values come as late as they can. Fewer than `kernels` entries when there is a circle.
std::vector<size_t> order_kernels(const OrderProblem& problem);

// The number of kernels that must run after each, one behind the other. It falls along every edge.
std::vector<size_t> way_to_end(const OrderProblem& problem);

// The most that values take at once in this order.
int64_t peak_bytes(const OrderProblem& problem, const std::vector<size_t>& order);

}  // namespace ridge
