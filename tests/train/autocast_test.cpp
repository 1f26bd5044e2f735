// Mixed precision as a graph rewrite: only products become narrow, and nothing is cast twice.
#include "compile/autocast.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/gradients.h"
#include "graph/ops/table.h"
#include "graph/scan.h"
#include "train/small_gpt.h"

namespace ridge {
namespace {

struct Traced {
  Graph g;
  std::vector<NodeId> parameters, losses;
  explicit Traced(const GptConfig& c) {
    Builder b(g);
    for (const Parameter& p : gpt_parameters(c)) parameters.push_back(g.input({DType::f32, p.shape}, p.name));
    const NodeId tokens = g.input({DType::i64, {3, c.block}}, "tokens"), targets = g.input({DType::i64, {3, c.block}}, "targets");
    const Builder::SumCount l = gpt_losses(b, c, parameters, tokens, targets);
    const NodeId roots[] = {l.sum, l.count};
    losses = autocast(g, roots, DType::bf16);
  }
};

TEST(Autocast, NarrowsProductsAndNothingElse) {
  Traced t(tiny_gpt());
  int products = 0;
  for (NodeId id : topological(t.g, t.losses)) {
    const Node& n = t.g[id];
    const bool product = n.op == Op::matmul || n.op == Op::attention;
    products += product;
    if (product) {
      EXPECT_EQ(n.type().dtype, DType::bf16) << name(n.op);
    }
    if (is_reduction(n.op) || (is_elementwise(n.op) && n.op != Op::cast)) {
      EXPECT_NE(n.type().dtype, DType::bf16) << name(n.op);
    }
  }
  EXPECT_EQ(products, 2 * 5 + 1);
  EXPECT_EQ(t.g.dtype(t.losses[0]), DType::f32);
}

// A weight is cast once, no matter how many products and views use it; a product's result is not widened and narrowed again before the next product.
TEST(Autocast, CastsEachTensorOnce) {
  Traced t(tiny_gpt());
  std::vector<NodeId> narrowed;
  for (NodeId id : topological(t.g, t.losses)) {
    const Node& n = t.g[id];
    if (n.op != Op::cast || n.type().dtype != DType::bf16) continue;
    narrowed.push_back(n.in[0]);
    EXPECT_FALSE(is_view(t.g[n.in[0]].op)) << "the cast belongs before the view";
    EXPECT_FALSE(t.g[n.in[0]].op == Op::cast && t.g.dtype(t.g[n.in[0]].in[0]) == DType::bf16) << "it was narrow already";
  }
  std::sort(narrowed.begin(), narrowed.end());
  EXPECT_EQ(std::unique(narrowed.begin(), narrowed.end()), narrowed.end());
  // In each layer four weights and the outputs of two norms and the activation; then the last norm and the embedding.
  EXPECT_EQ(narrowed.size(), size_t(2 * (4 + 3) + 2));
}

TEST(Autocast, GradientsOfWeightsAreNotRounded) {
  Traced t(tiny_gpt());
  for (NodeId d : gradients(t.g, t.losses[0], t.parameters)) {
    const NodeId wide = keep_wide(t.g, d);
    EXPECT_EQ(t.g.type(wide), t.g.type(d));
    EXPECT_FALSE(t.g[wide].op == Op::cast) << to_string(t.g.type(d));
  }
}

// A convolution's weight, and a weight that is multiplied with each sample separately.
TEST(Autocast, GradientsOfSharedWeightsAreNotRounded) {
  Graph g;
  Builder b(g);
  const NodeId x = g.input({DType::f32, {4, 3, 6, 6}}, "x"), w = g.input({DType::f32, {5, 3, 3, 3}}, "w"), u = g.input({DType::f32, {16, 2}}, "u");
  const NodeId rows = b.reshape(b.unary(Op::tanh, b.conv(x, w)), {4, 5, 16}), each = b.expand(b.reshape(u, {1, 16, 2}), {4, 16, 2});
  const NodeId root = b.sum(b.square(g.add(Op::matmul, {rows, each}, {{int64_t(DType::f32)}, {}, nullptr})));
  const NodeId loss = autocast(g, {&root, 1}, DType::bf16)[0], parameters[] = {w, u};
  for (NodeId d : gradients(g, loss, parameters)) {
    const NodeId wide = keep_wide(g, d);
    EXPECT_EQ(g.type(wide), g.type(d));
    for (NodeId at = wide;; at = g[at].in[0]) {
      ASSERT_NE(g[at].op, Op::cast) << "rounded before it is summed";
      if (g[at].op == Op::matmul || g[at].op == Op::conv) {
        EXPECT_EQ(g.dtype(at), DType::f32);
        break;
      }
    }
  }
}

// Convolutions, loops over time, and a model without any product.
StepModel other_model(int kind) {
  StepModel m;
  m.batch = {{DType::f32, {4, 3, 6, 6}}};
  m.parameters = {{"w", {5, 3, 3, 3}, 0, 0.3, true}, {"u", {5, 5}, 0, 0.3, true}};
  m.loss = [kind](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) -> Builder::SumCount {
    const int64_t samples = b.shape(in[0])[0], space[] = {2, 3};
    const NodeId count = b.literal(DType::f32, double(samples));
    if (kind == 0) return {b.add(b.sum(b.square(b.mul(in[0], b.mean(b.square(p[0]))))), b.mul(b.sum(in[0]), b.mean(p[1]))), count};
    NodeId h = b.mean(b.unary(Op::tanh, b.conv(in[0], p[0])), space);  // [N, 5]
    if (kind == 2) {
      auto body = std::make_shared<ScanBody>();
      const NodeId carry = body->graph.input({DType::f32, {samples, 5}}, "h"), u = body->graph.input({DType::f32, {5, 5}}, "u");
      Builder inner(body->graph);
      body->carry_in = {carry}, body->constant_in = {u};
      body->carry_out = {inner.unary(Op::tanh, inner.matmul(carry, u))};
      h = scan(b.graph(), body, {&h, 1}, {}, {&p[1], 1}, 4).carry[0];
    }
    return {b.sum(b.square(b.matmul(h, p[1]))), count};
  };
  return m;
}

TEST(Autocast, WorksForOtherModels) {
  std::vector<float> x(4 * 3 * 36);
  for (size_t i = 0; i < x.size(); ++i) x[i] = uniform_from(random_word({5, 0, 0}, i)) - 0.5f;
  const void* batch[] = {x.data()};
  for (int kind : {0, 1, 2}) {
    const StepModel model = other_model(kind);
    std::vector<StepMetrics> seen;
    for (Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
      StepOptions o;
      o.precision = precision, o.micro = 3, o.loss_scale.initial = 256;
      TrainStep step(model, o);
      start(step, model);
      seen.push_back(step.run(batch));
      EXPECT_TRUE(seen.back().applied);
    }
    for (int i : {1, 2}) {
      EXPECT_NEAR(seen[size_t(i)].loss, seen[0].loss, 0.02 * std::abs(seen[0].loss)) << "model " << kind;
      EXPECT_NEAR(seen[size_t(i)].gradient_norm, seen[0].gradient_norm, 0.03 * seen[0].gradient_norm) << "model " << kind;
    }
  }
}

}  // namespace
}  // namespace ridge
