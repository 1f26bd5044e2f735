// Loops split into segments give the same values and gradients, and keep fewer carries.
#include "compile/scan_segments.h"

#include <gtest/gtest.h>

#include "compile/scan_hoist.h"
#include "ops/harness.h"
#include "scan/bodies.h"

namespace ridge::test {
namespace {

TEST(SegmentLength, IsNearTheSquareRootAndDividesWhereItCan) {
  EXPECT_EQ(segment_length(100), 10);
  EXPECT_EQ(segment_length(96), 8);
  EXPECT_EQ(segment_length(64), 8);
  EXPECT_EQ(segment_length(31), 6);
  for (int64_t steps = 4; steps < 3000; ++steps) {
    int64_t k = segment_length(steps);
    EXPECT_LE(steps / k + k, 3 * int64_t(std::sqrt(double(steps))) + 3) << steps;
    EXPECT_GE(k, 2);
  }
}

class Segmented : public ::testing::TestWithParam<std::tuple<int64_t, int>> {};

TEST_P(Segmented, ChangesNoValue) {
  auto [steps, variant] = GetParam();
  for (const Cell& cell : cells()) {
    LoopSize size;
    size.steps = steps, size.reverse = variant & 1, size.reset = variant & 2;
    Loop loop = make_loop(cell, size);
    Builder b(loop.graph);
    std::vector<NodeId> plain = loop.results, cut = segment_scans(loop.graph, plain).roots;
    for (auto* roots : {&plain, &cut}) {
      std::vector<NodeId> grads = gradients(loop.graph, mixed_loss(b, *roots), loop.wrt);
      roots->insert(roots->end(), grads.begin(), grads.end());
    }
    std::vector<reference::Array> want = reference::evaluate(loop.graph, plain, loop.values), got = reference::evaluate(loop.graph, cut, loop.values);
    std::vector<Bytes> ran = run_compiled(loop.graph, loop.inputs, cut, loop.values, "", 2);
    // Hoisting products out of the segments' own loops loses nothing.
    HoistedScans moved = hoist_scans(loop.graph, cut);
    std::vector<reference::Array> both = reference::evaluate(loop.graph, moved.roots, loop.values);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(close(got[i], want[i], {1e-9, 1e-9})) << cell.name << ", result " << i;
      EXPECT_TRUE(close(both[i], want[i], {1e-9, 1e-9})) << cell.name << " moved, result " << i;
      double largest = 1, length = double(1 + steps) * double(size.batch + size.inputs + size.width);
      for (double v : want[i].f) largest = std::max(largest, std::fabs(v));
      EXPECT_TRUE(close(reference::from_bytes(want[i].type, ran[i].data()), want[i], {0, 4 * 0x1p-23 * length * largest})) << cell.name << " run, result " << i;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Loops, Segmented, ::testing::Combine(::testing::Values(0, 1, 3, 4, 7, 12, 31), ::testing::Values(0, 1, 2, 3)));

TEST(Segmented, SkipsLoopsWithoutRoomForAnAxis) {
  const Shape step = {2, 1, 1, 1, 1, 1, 1}, all = {9, 2, 1, 1, 1, 1, 1, 1};
  for (bool out : {false, true}) {
    auto body = std::make_shared<ScanBody>();
    Builder inner(body->graph);
    body->carry_in = {body->graph.input({DType::f32, step}, "h")};
    body->sequence_in = {body->graph.input({DType::f32, out ? Shape{2} : step}, "x")};
    NodeId h = inner.unary(Op::tanh, inner.add(body->carry_in[0], inner.reshape(body->sequence_in[0], step)));
    body->carry_out = {h};
    if (out) body->step_out = {h};
    Graph g;
    NodeId first = g.input({DType::f32, step}, "h"), x = g.input({DType::f32, out ? Shape{9, 2} : all}, "x");
    ScanResult r = scan(g, body, {&first, 1}, {&x, 1}, {}, 9);
    std::vector<NodeId> roots = out ? r.outputs : r.carry;
    EXPECT_TRUE(segment_scans(g, roots).notes.empty());
  }
}

TEST(Segmented, SkipsLoopsWhoseCarriesAreAllRead) {
  Loop loop = make_loop(cells()[0], {});
  Builder b(loop.graph);
  std::vector<NodeId> grads = gradients(loop.graph, mixed_loss(b, loop.results), loop.wrt);
  EXPECT_EQ(segment_scans(loop.graph, grads).notes.size(), 1u) << "the backward loop only: the forward one gives it every carry";
}

TEST(Segmented, SecondDerivatives) {
  LoopSize size{.steps = 5, .batch = 2, .inputs = 2, .width = 2};
  Loop loop = make_loop(cells()[1], size);
  Builder b(loop.graph);
  std::vector<std::vector<reference::Array>> seen;
  for (bool cut : {false, true}) {
    std::vector<NodeId> results = cut ? segment_scans(loop.graph, loop.results).roots : loop.results;
    std::vector<NodeId> first = gradients(loop.graph, mixed_loss(b, results), loop.wrt);
    seen.push_back(reference::evaluate(loop.graph, gradients(loop.graph, mixed_loss(b, first), loop.wrt), loop.values));
  }
  for (size_t i = 0; i < seen[0].size(); ++i) EXPECT_TRUE(close(seen[1][i], seen[0][i], {1e-9, 1e-9})) << i;
}

}  // namespace
}  // namespace ridge::test
