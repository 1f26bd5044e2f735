// Runs one node's kernel with several ways of distributing its units.
#pragma once
#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "backend/cpu/node_kernels.h"
#include "support/node_laws.h"

namespace ridge::cpu {
inline namespace node_test {  // lets all tests be linked into one program

using reference::Array;

// How units are distributed. The result bits must not depend on it.
enum class Sharing { all_at_once, one_by_one, backwards, shuffled, threads };

// Memory with a guard on both sides.
class Guarded {
 public:
  explicit Guarded(int64_t bytes) : bytes_(bytes), memory_(size_t(bytes + 3 * kGuard), kMark) {
    start_ = kGuard + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
  }
  std::byte* data() { return memory_.data() + start_; }
  int64_t bytes() const { return bytes_; }
  bool intact() const {
    auto marked = [](auto first, auto last) { return std::all_of(first, last, [](std::byte b) { return b == kMark; }); };
    return marked(memory_.begin(), memory_.begin() + start_) && marked(memory_.begin() + start_ + bytes_, memory_.end());
  }

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr std::byte kMark{0xa5};
  int64_t bytes_, start_;
  std::vector<std::byte> memory_;
};

struct NodeCase : test::NodeCase {
  std::vector<std::vector<std::byte>> run(Sharing sharing) {
    std::unique_ptr<Kernel> kernel = make_node_kernel(graph, node);
    std::vector<Guarded> memory;
    std::vector<std::byte*> bases;
    std::vector<Ref> refs;
    const std::vector<Type> types = this->types();
    const size_t operands = graph[node].in.size();
    for (const Type& t : types) memory.emplace_back(t.bytes());
    for (size_t i = 0; i < operands; ++i) reference::to_bytes(operand(i), memory[i].data());
    for (size_t i = 0; i < types.size(); ++i) {
      refs.push_back(i >= operands && !is_wanted(i - operands) ? Ref{} : Ref{int32_t(i), 0});
    }
    if (in_place) refs[operands] = refs[0];
    memory.emplace_back(kernel->workspace_bytes());
    for (Guarded& m : memory) bases.push_back(m.data());
    constexpr int kThreads = 3;
    std::vector<Guarded> scratch;
    for (int i = 0; i < kThreads; ++i) scratch.emplace_back(kernel->scratch_bytes());
    std::vector<Task> tasks;
    kernel->bind(refs, {int32_t(types.size()), 0}, tasks);
    Fault fault;
    auto worker = [&](int id) { return Worker{id, bases.data(), scratch[size_t(id)].data(), &fault}; };
    test::Random random(7);
    for (const Task& t : tasks) {
      EXPECT_GT(t.units, 0);
      EXPECT_GT(t.unit_ns, 0);
      Worker w = worker(0);
      std::vector<int64_t> order(size_t(t.units));
      std::iota(order.begin(), order.end(), 0);
      if (sharing == Sharing::backwards) std::reverse(order.begin(), order.end());
      if (sharing == Sharing::shuffled)
        for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[size_t(random.below(int64_t(i)))]);
      if (sharing == Sharing::all_at_once) {
        t.run(t.args, 0, t.units, w);
      } else if (sharing == Sharing::threads) {
        std::vector<std::jthread> team;
        for (int id = 0; id < kThreads; ++id)
          team.emplace_back([&, id] {
            Worker mine = worker(id);
            t.run(t.args, t.units * id / kThreads, t.units * (id + 1) / kThreads, mine);
          });
      } else {
        for (int64_t unit : order) t.run(t.args, unit, unit + 1, w);
      }
    }
    for (const Guarded& m : memory) EXPECT_TRUE(m.intact());
    for (const Guarded& m : scratch) EXPECT_TRUE(m.intact());
    fault_limit = fault.raised ? fault.limit : -1, fault_value = fault.value;
    std::vector<std::vector<std::byte>> results;
    for (size_t i = operands; i < types.size(); ++i) {
      Guarded& m = memory[in_place && i == operands ? 0 : i];
      results.emplace_back(m.data(), m.data() + (refs[i] ? m.bytes() : 0));
    }
    return results;
  }

  // The results, after checking that every distribution of units gives the same bits.
  std::vector<Array> results() override {
    const auto first = run(Sharing::all_at_once);
    for (Sharing sharing : {Sharing::one_by_one, Sharing::backwards, Sharing::shuffled, Sharing::threads})
      EXPECT_EQ(run(sharing), first) << "sharing " << int(sharing) << ": " << to_string(graph, std::vector{node});
    std::vector<Array> arrays;
    for (size_t i = 0; i < first.size(); ++i) arrays.push_back(first[i].empty() ? Array{} : reference::from_bytes(graph[node].types[i], first[i].data()));
    return arrays;
  }
};

}  // namespace node_test
}  // namespace ridge::cpu
