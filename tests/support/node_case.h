// One node as a graph: its operands with values, the reference result, and the tolerance for a kernel's results.
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "graph/builder.h"
#include "support/samples.h"

namespace ridge::test {

inline constexpr DType kAllDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64, DType::u8, DType::boolean};

struct NodeCase {
  Graph graph;
  std::vector<NodeId> inputs;
  std::vector<reference::Array> values;
  NodeId node = kNone;
  std::vector<bool> wanted;  // per result; empty: all
  bool in_place = false;     // the first result shares the first operand's memory
  int64_t fault_value = 0, fault_limit = -1;

  virtual ~NodeCase() = default;
  static bool runs(DType, int64_t = 0) { return true; }
  virtual std::vector<reference::Array> results() = 0;  // from the kernel under test

  NodeId input(const reference::Array& value) {
    // The kernel sees values rounded to the dtype, so the reference starts from the same ones.
    std::vector<std::byte> bytes(size_t(value.type.bytes()) + 8);
    reference::to_bytes(value, bytes.data());
    values.push_back(reference::from_bytes(value.type, bytes.data()));
    inputs.push_back(graph.input(value.type, "x" + std::to_string(inputs.size())));
    return inputs.back();
  }
  NodeId input(DType dtype, const Shape& shape, Random& random, double low = -4, double high = 4) {
    if (dtype == DType::boolean) low = 0, high = 2;
    if (dtype == DType::u8) low = 0, high = 255;
    return input(draw({dtype, shape}, random, low, high));
  }
  NodeId index(const Shape& shape, int64_t size, Random& random) { return input(DType::i64, shape, random, 0, double(size)); }

  // Operands, then results.
  std::vector<Type> types() const {
    std::vector<Type> all;
    for (NodeId id : graph[node].in) all.push_back(graph.type(id));
    for (const Type& t : graph[node].types) all.push_back(t);
    return all;
  }
  const reference::Array& operand(size_t i) const { return values[size_t(std::find(inputs.begin(), inputs.end(), graph[node].in[i]) - inputs.begin())]; }
  bool is_wanted(size_t result) const { return wanted.empty() || wanted[result]; }

  std::vector<reference::Array> expected(bool magnitudes = false) {
    Values v;
    for (size_t i = 0; i < inputs.size(); ++i) {
      v[inputs[i]] = values[i];
      if (magnitudes)
        for (double& x : v[inputs[i]].f) x = std::fabs(x);
    }
    std::vector<NodeId> roots = {node};
    for (size_t i = 1; i < graph[node].types.size(); ++i) roots.push_back(Builder(graph).get(node, int(i)));
    return reference::evaluate(graph, roots, v);
  }

  // Integers and moves are exact; a sum of `length` terms has f32 rounding errors plus one rounding to the dtype.
  void check(int64_t length) {
    SCOPED_TRACE(to_string(graph, std::vector{node}));
    const std::vector<reference::Array> got = results(), want = expected(), size = expected(true);
    EXPECT_EQ(fault_limit, -1);
    for (size_t r = 0; r < want.size(); ++r) {
      if (!is_wanted(r) || want[r].size() == 0) continue;
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

}  // namespace ridge::test
