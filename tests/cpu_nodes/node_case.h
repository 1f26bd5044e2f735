// One node as a graph, run by its kernel in several ways of sharing out units, and by the reference.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "backend/cpu/node_kernels.h"
#include "graph/builder.h"
#include "support/samples.h"

namespace ridge::cpu {
inline namespace node_test {  // all tests can be one program

using reference::Array;

inline constexpr DType kAllDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64, DType::u8, DType::boolean};

// How units are shared out. The bits must not depend on it.
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

struct NodeCase {
  Graph graph;
  std::vector<NodeId> inputs;
  std::vector<Array> values;
  NodeId node = kNone;
  std::vector<bool> wanted;  // of the results; empty: all
  bool in_place = false;     // the first result lies where the first operand does
  int64_t fault_value = 0, fault_limit = -1;

  NodeId input(const Array& value) {
    // What the kernel sees is rounded to the dtype, so the reference starts from that too.
    std::vector<std::byte> bytes(size_t(value.type.bytes()) + 8);
    reference::to_bytes(value, bytes.data());
    values.push_back(reference::from_bytes(value.type, bytes.data()));
    inputs.push_back(graph.input(value.type, "x" + std::to_string(inputs.size())));
    return inputs.back();
  }
  NodeId input(DType dtype, const Shape& shape, test::Random& random, double low = -4, double high = 4) {
    if (dtype == DType::boolean) low = 0, high = 2;
    if (dtype == DType::u8) low = 0, high = 255;
    return input(test::draw({dtype, shape}, random, low, high));
  }
  NodeId index(const Shape& shape, int64_t size, test::Random& random) { return input(DType::i64, shape, random, 0, double(size)); }

  std::vector<std::vector<std::byte>> run(Sharing sharing) {
    std::unique_ptr<Kernel> kernel = make_node_kernel(graph, node);
    std::vector<Guarded> memory;
    std::vector<std::byte*> bases;
    std::vector<Ref> refs;
    std::vector<Type> types;
    for (NodeId id : graph[node].in) types.push_back(graph.type(id));
    const size_t operands = types.size();
    for (const Type& t : graph[node].types) types.push_back(t);
    for (const Type& t : types) memory.emplace_back(t.bytes());
    for (size_t i = 0; i < operands; ++i) {
      const size_t which = size_t(std::find(inputs.begin(), inputs.end(), graph[node].in[i]) - inputs.begin());
      reference::to_bytes(values[which], memory[i].data());
    }
    for (size_t i = 0; i < types.size(); ++i) {
      const bool result = i >= operands;
      refs.push_back(result && !wanted.empty() && !wanted[i - operands] ? Ref{} : Ref{int32_t(i), 0});
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

  // The results, after checking that every way to share out units gives the same bits.
  std::vector<Array> results() {
    const auto first = run(Sharing::all_at_once);
    for (Sharing sharing : {Sharing::one_by_one, Sharing::backwards, Sharing::shuffled, Sharing::threads})
      EXPECT_EQ(run(sharing), first) << "sharing " << int(sharing) << ": " << to_string(graph, std::vector{node});
    std::vector<Array> arrays;
    for (size_t i = 0; i < first.size(); ++i) arrays.push_back(first[i].empty() ? Array{} : reference::from_bytes(graph[node].types[i], first[i].data()));
    return arrays;
  }

  std::vector<Array> expected(bool magnitudes = false) {
    test::Values v;
    for (size_t i = 0; i < inputs.size(); ++i) {
      v[inputs[i]] = values[i];
      if (magnitudes)
        for (double& x : v[inputs[i]].f) x = std::fabs(x);
    }
    std::vector<NodeId> roots = {node};
    for (size_t i = 1; i < graph[node].types.size(); ++i) roots.push_back(Builder(graph).get(node, int(i)));
    return reference::evaluate(graph, roots, v);
  }

  // Integers and moves are exact; a sum of `length` terms errs by its roundings in f32 and one in the dtype.
  void check(int64_t length) {
    SCOPED_TRACE(to_string(graph, std::vector{node}));
    const std::vector<Array> got = results(), want = expected(), size = expected(true);
    EXPECT_EQ(fault_limit, -1);
    for (size_t r = 0; r < want.size(); ++r) {
      if (!wanted.empty() && !wanted[r]) continue;
      if (want[r].size() == 0) continue;
      ASSERT_EQ(got[r].type, want[r].type);
      const DType t = want[r].type.dtype;
      const double stored = t == DType::bf16 ? 0x1p-8 : t == DType::f16 ? 0x1p-11 : 0, term = t == DType::f64 ? 0x1p-53 : 0x1p-24;
      const double least = t == DType::f16 ? 0x1p-25 : 0;
      for (int64_t i = 0; i < want[r].size(); ++i) {
        const double g = got[r].at(i), w = want[r].at(i);
        if (length == 0 || !want[r].floating()) {
          if (std::isnan(w) && std::isnan(g)) continue;
          ASSERT_EQ(g, w) << "result " << r << " element " << i;
        } else {
          ASSERT_LE(std::fabs(g - w), size[r].at(i) * (stored * 1.01 + term * double(length)) + least) << "result " << r << " element " << i;
        }
      }
    }
  }
};

}  // namespace node_test
}  // namespace ridge::cpu
