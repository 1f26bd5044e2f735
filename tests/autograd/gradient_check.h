// Checks gradients against central differences of the exact reference.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>

#include "autograd/gradients.h"
#include "graph/rewrite.h"
#include "support/samples.h"

namespace ridge::test {

// Checks d(sum of outputs · cotangents) / d wrt in two ways: along random directions over all of wrt together, which catches any wrong element, and element by
// element for a fixed number of them, which locates it. Returns the gradient nodes.
inline std::vector<NodeId> expect_gradients(Graph& graph, std::span<const NodeId> outputs, std::span<const NodeId> wrt, Values& values,
                                            const std::string& label, uint64_t seed = 7, std::vector<NodeId>* cotangents_made = nullptr) {
  constexpr double kStep = 1e-5, kTolerance = 2e-6;
  constexpr int kDirections = 3, kElements = 48;
  Random random(seed);
  std::vector<NodeId> cotangents;
  for (NodeId o : outputs) {
    NodeId c = graph.input(graph.type(o), "cotangent");
    values[c] = draw(graph.type(o), random, -1, 1);
    cotangents.push_back(c);
  }
  std::vector<NodeId> grads = vector_jacobian(graph, outputs, cotangents, wrt);
  std::vector<reference::Array> got = reference::evaluate(graph, grads, values);
  std::vector<NodeId> plain = decompose(graph, outputs, [](NodeId) { return true; });

  auto total = [&](const Values& at) {
    std::vector<reference::Array> out = reference::evaluate(graph, plain, at);
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i)
      for (size_t k = 0; k < out[i].f.size(); ++k) sum += out[i].f[k] * values[cotangents[i]].f[k];
    return sum;
  };
  // Slope along a direction, given as one list of numbers per wrt node.
  auto slope = [&](const std::vector<std::vector<double>>& direction) {
    Values up = values, down = values;
    for (size_t w = 0; w < wrt.size(); ++w)
      for (size_t k = 0; k < direction[w].size(); ++k) {
        up[wrt[w]].f[k] += kStep * direction[w][k];
        down[wrt[w]].f[k] -= kStep * direction[w][k];
      }
    return (total(up) - total(down)) / (2 * kStep);
  };
  std::vector<std::vector<double>> none;
  size_t elements = 0;
  for (size_t w = 0; w < wrt.size(); ++w) {
    EXPECT_EQ(to_string(got[w].type), to_string(graph.type(wrt[w]))) << label;
    none.emplace_back(got[w].f.size(), 0.0);
    elements += got[w].f.size();
  }
  if (elements == 0) return grads;
  for (int d = 0; d < kDirections; ++d) {
    auto direction = none;
    double expected = 0, scale = 1;
    for (size_t w = 0; w < wrt.size(); ++w)
      for (size_t k = 0; k < direction[w].size(); ++k) {
        direction[w][k] = random.uniform(-1, 1);
        expected += direction[w][k] * got[w].f[k];
        scale += std::fabs(direction[w][k] * got[w].f[k]);
      }
    EXPECT_NEAR(expected, slope(direction), kTolerance * scale) << label << ", direction " << d;
  }
  for (size_t w = 0; w < wrt.size(); ++w) {
    size_t n = got[w].f.size(), stride = std::max<size_t>(1, n * wrt.size() / kElements);
    for (size_t k = 0; k < n; k += stride) {
      auto direction = none;
      direction[w][k] = 1;
      EXPECT_NEAR(got[w].f[k], slope(direction), kTolerance * (1 + std::fabs(got[w].f[k]))) << label << ", operand " << w << ", element " << k;
    }
  }
  if (cotangents_made) *cotangents_made = cotangents;
  return grads;
}

// Checks second-order gradients, with respect to the same nodes and to the first cotangents.
inline void expect_second_gradients(Graph& graph, std::span<const NodeId> outputs, std::span<const NodeId> wrt, Values& values, const std::string& label,
                                    uint64_t seed = 7) {
  std::vector<NodeId> cotangents;
  std::vector<NodeId> grads = expect_gradients(graph, outputs, wrt, values, label, seed, &cotangents);
  std::vector<NodeId> all(wrt.begin(), wrt.end());
  all.insert(all.end(), cotangents.begin(), cotangents.end());
  expect_gradients(graph, grads, all, values, label + ", second derivative", seed + 1);
}

}  // namespace ridge::test
