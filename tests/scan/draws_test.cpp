// Random numbers inside loops over time depend on the time index, however the loop is computed.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "compile/scan_hoist.h"
#include "compile/scan_segments.h"
#include "graph/draws.h"
#include "ops/harness.h"
#include "ridge/ridge.h"
#include "scan/bodies.h"
#include "scan/draw_loops.h"

namespace ridge::test {
namespace {

class LoopDraws : public ::testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(LoopDraws, MatchTheDefinition) {
  auto [nested, reverse] = GetParam();
  constexpr int64_t base = 30;
  DrawLoop loop = make_draw_loop(LoopForm::scan, nested, reverse, base), hand = make_draw_loop(LoopForm::by_hand, nested, reverse, base);
  const int64_t steps = nested ? kDrawSteps * kDrawInner : kDrawSteps, each = kDrawBatch * kDrawWidth;
  auto with_gradients = [](DrawLoop& l, std::vector<NodeId> roots) {
    Builder b(l.graph);
    const NodeId floats[] = {roots[0], roots[2]};
    const std::vector<NodeId> grads = gradients(l.graph, mixed_loss(b, floats), l.wrt);
    roots.insert(roots.end(), grads.begin(), grads.end());
    return roots;
  };
  const std::vector<NodeId> expected = with_gradients(hand, hand.results);
  const std::vector<reference::Array> want = reference::evaluate(hand.graph, expected, hand.values);
  for (int64_t t = 0; t < steps; ++t)
    for (int64_t k = 0; k < each; ++k)
      ASSERT_EQ(int32_t(want[1].i[size_t(t * each + k)]), int32_t(philox({77, 4, 11}, (uint64_t(t) << 32) + uint64_t(base + k) / 4)[size_t(base + k) % 4]));

  const std::vector<NodeId> cut = segment_scans(loop.graph, loop.results).roots;
  for (const std::vector<NodeId>& results : {loop.results, cut}) {
    const std::vector<NodeId> roots = with_gradients(loop, results), moved = hoist_scans(loop.graph, roots).roots;
    for (const std::vector<NodeId>& form : {roots, moved}) {
      const std::vector<reference::Array> got = reference::evaluate(loop.graph, form, loop.values);
      EXPECT_EQ(got[1].i, want[1].i);
      for (size_t i : {0, 2, 3, 4}) EXPECT_TRUE(close(got[i], want[i], {1e-9, 1e-9})) << "result " << i;
    }
    for (const char* passes : {"", "-scan_hoist", "-fuse,-simplify,-scan_hoist,-plan"}) {
      const std::vector<Bytes> ran = run_compiled(loop.graph, loop.inputs, roots, loop.values, passes, 2);
      EXPECT_EQ(reference::from_bytes(want[1].type, ran[1].data()).i, want[1].i) << passes;
      for (size_t i : {0, 2, 3, 4}) EXPECT_TRUE(close(reference::from_bytes(want[i].type, ran[i].data()), want[i], {2e-5, 2e-5})) << passes << ", result " << i;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Loops, LoopDraws, ::testing::Combine(::testing::Bool(), ::testing::Bool()));

// A body with one draw of this shape.
std::shared_ptr<ScanBody> drawing_body(const Shape& shape) {
  auto body = std::make_shared<ScanBody>();
  Builder b(body->graph);
  NodeId zero = b.literal(DType::i64, 0);
  body->carry_in = {body->graph.input({DType::f32, {}}, "h")};
  body->carry_out = {b.add(body->carry_in[0], b.sum(b.uniform(shape, {zero, zero, zero, 1})))};
  return body;
}

TEST(LoopDraws, RejectUncountableDraws) {
  Graph g;
  NodeId h = g.input({DType::f32, {}}, "h");
  EXPECT_NO_THROW(scan(g, drawing_body({int64_t(1) << 34}), {&h, 1}, {}, {}, 3));
  try {
    scan(g, drawing_body({(int64_t(1) << 34) + 1}), {&h, 1}, {}, {}, 3);
    ADD_FAILURE() << "a draw of more elements than a step has was taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(e.what()).find("random_uniform draws 17179869185 numbers"), std::string::npos) << e.what();
  }
  EXPECT_NO_THROW(scan(g, drawing_body({1}), {&h, 1}, {}, {}, int64_t(1) << 29));
  EXPECT_THROW(scan(g, drawing_body({1}), {&h, 1}, {}, {}, (int64_t(1) << 29) + 1), Error);
  auto outer = std::make_shared<ScanBody>();
  outer->carry_in = {outer->graph.input({DType::f32, {}}, "h")};
  outer->carry_out = scan(outer->graph, drawing_body({1}), outer->carry_in, {}, {}, 1 << 20).carry;
  EXPECT_NO_THROW(scan(g, outer, {&h, 1}, {}, {}, 1 << 9));
  EXPECT_THROW(scan(g, outer, {&h, 1}, {}, {}, (1 << 9) + 1), Error);
}

TEST(LoopDraws, BodiesWithoutDrawsAreUnchanged) {
  Loop loop = make_loop(cells()[0], {});
  for (NodeId id : topological(loop.graph, loop.results))
    EXPECT_TRUE(loop.graph[id].op != Op::scan || loop.graph[id].in.size() == 1 + 1 + 2) << "carry, x and two weights";
}

std::vector<float> floats(const Tensor& t) {
  Tensor f = cast(t, DType::f32);
  const auto* p = static_cast<const float*>(f.data());
  return {p, p + f.size()};
}

// The rows of a [T, …] tensor.
std::vector<std::vector<float>> rows(const Tensor& t) {
  const std::vector<float> all = floats(t);
  const size_t each = all.size() / size_t(t.shape()[0]);
  std::vector<std::vector<float>> out;
  for (size_t i = 0; i < all.size(); i += each) out.emplace_back(all.begin() + long(i), all.begin() + long(i + each));
  return out;
}

TEST(TensorLoopDraws, EveryRandomFunctionDiffersInEveryStep) {
  const std::pair<const char*, std::function<Tensor()>> functions[] = {
      {"uniform",
       [] {
         return uniform({4, 8});
       }},
      {"normal",
       [] {
         return normal({4, 8});
       }},
      {"bernoulli",
       [] {
         return bernoulli({4, 8}, 0.5);
       }},
      {"dropout",
       [] {
         return dropout(full({4, 8}, 1), 0.5);
       }},
      {"categorical",
       [] {
         return categorical(full({32, 4}, 0));
       }},
      {"permutation", [] { return permutation(16); }},
      {"attention",
       [] {
         const Tensor ones = full({1, 2, 8, 4}, 1);
         AttentionArgs args;
         args.dropout = 0.5;
         return attention(ones, ones, ones, args);
       }},
  };
  for (const auto& [what, fn] : functions)
    for (bool reverse : {false, true}) {
      auto step = [&fn = fn](const std::vector<Tensor>& carry, const std::vector<Tensor>& x) { return ScanOutput{{carry[0] + x[0]}, {fn()}}; };
      seed(3);
      const auto drawn = rows(scan(step, {Tensor(0.0)}, {full({6}, 1)}, {}, reverse).outputs[0]);
      for (size_t t = 0; t < drawn.size(); ++t)
        for (size_t u = 0; u < t; ++u) EXPECT_NE(drawn[t], drawn[u]) << what << " at steps " << u << " and " << t;
      seed(3);
      EXPECT_EQ(drawn[0], floats(fn())) << what << ": the first step draws what is drawn without a loop";
      seed(3);
      EXPECT_EQ(drawn, rows(scan(step, {Tensor(0.0)}, {full({6}, 1)}, {}, !reverse).outputs[0]))
          << what << ": numbers belong to a time, whichever way the loop runs";
    }
}

TEST(TensorLoopDraws, DrawsOutsideAreTheSameInEveryStep) {
  seed(4);
  const Tensor mask = uniform({5});
  auto out = scan(
      [&](const std::vector<Tensor>& c, const std::vector<Tensor>& x) {
        return ScanOutput{{c[0] + x[0]}, {mask, mask + uniform({5})}};
      },
      {Tensor(0.0)}, {full({4}, 1)});
  const auto fixed = rows(out.outputs[0]), both = rows(out.outputs[1]);
  for (size_t t = 1; t < 4; ++t) {
    EXPECT_EQ(fixed[t], fixed[0]);
    EXPECT_NE(both[t], both[0]);
  }
}

// seed() restarts the stream numbers at 1: earlier draws have the same numbers as the step's.
TEST(TensorLoopDraws, DrawsBeforeASeedAreTheSameInEveryStep) {
  for (uint64_t second : {4, 5}) {
    seed(4);
    const Tensor weights = uniform({5});
    seed(second);
    auto out = scan(
        [&](const std::vector<Tensor>& c, const std::vector<Tensor>& x) {
          return ScanOutput{{c[0] + x[0]}, {weights, uniform({5})}};
        },
        {Tensor(0.0)}, {full({4}, 1)});
    const auto fixed = rows(out.outputs[0]), drawn = rows(out.outputs[1]);
    for (size_t t = 0; t < 4; ++t) {
      EXPECT_EQ(fixed[t], weights.to_floats());
      EXPECT_EQ(drawn[t] == drawn[0], t == 0);
    }
  }
}

TEST(TensorLoopDraws, NestedLoopsDifferInEveryStepOfBoth) {
  seed(5);
  auto inner = [](const std::vector<Tensor>& c, const std::vector<Tensor>& x) { return ScanOutput{{c[0] + x[0]}, {uniform({8})}}; };
  auto outer = [&](const std::vector<Tensor>& c, const std::vector<Tensor>& x) {
    return ScanOutput{{c[0] + x[0]}, {scan(inner, {Tensor(0.0)}, {full({3}, 1)}).outputs[0]}};
  };
  const Tensor drawn = scan(outer, {Tensor(0.0)}, {full({4}, 1)}).outputs[0];
  const auto all = rows(reshape(drawn, {12, 8}));
  for (size_t t = 0; t < all.size(); ++t) {
    for (size_t k = 0; k < 8; ++k) EXPECT_EQ(all[t][k], uniform_from(random_word({5, 0, 1}, (uint64_t(t) << 34) + k))) << t;
    for (size_t u = 0; u < t; ++u) EXPECT_NE(all[t], all[u]);
  }
}

TEST(TensorLoopDraws, StepsAreIndependent) {
  seed(6);
  constexpr int64_t kSteps = 12, kEach = 4096;
  const auto drawn = rows(scan(
                              [](const std::vector<Tensor>& c, const std::vector<Tensor>& x) {
                                return ScanOutput{{c[0] + x[0]}, {uniform({kEach})}};
                              },
                              {Tensor(0.0)}, {full({kSteps}, 1)})
                              .outputs[0]);
  for (size_t t = 0; t < drawn.size(); ++t)
    for (size_t u = 0; u <= t; ++u) {
      double sum = 0;
      for (size_t k = 0; k < size_t(kEach); ++k) sum += (double(drawn[t][k]) - 0.5) * (double(drawn[u][k]) - 0.5);
      // Five standard deviations of a mean of products of uniform numbers.
      EXPECT_NEAR(12 * sum / double(kEach), t == u ? 1 : 0, 5 / std::sqrt(double(kEach))) << u << " and " << t;
    }
}

TEST(TensorLoopDraws, RejectASeedInsideTheLoop) {
  for (int draws : {0, 1, 4}) {
    auto step = [draws](const std::vector<Tensor>& c, const std::vector<Tensor>& x) {
      seed(1);
      for (int i = 0; i < draws; ++i) uniform({2});
      return ScanOutput{{c[0] + x[0]}, {uniform({2})}};
    };
    seed(1), uniform({1}), uniform({1});
    EXPECT_THROW(scan(step, {Tensor(0.0)}, {full({4}, 1)}), Error) << draws;
  }
}

}  // namespace
}  // namespace ridge::test
