// Laws of a training step: however a batch is split and whatever is recomputed, losses and gradients agree up to rounding.
#include "step/train_step.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "support/gpt_step.h"

namespace ridge {
namespace {

constexpr int64_t kBatch = 48;

GptConfig small_gpt(double dropout) {
  GptConfig c;
  c.vocab = 19, c.block = 8, c.layers = 2, c.heads = 2, c.width = 16, c.bias = true, c.dropout = dropout;
  return c;
}

struct TwoSteps {
  double loss, norm;
  std::vector<std::vector<float>> gradients, parameters;
  StepPlan plan;
};

TwoSteps run(const GptConfig& c, StepOptions o, int steps = 2) {
  StepModel m = test::gpt_step_model(c, kBatch);
  o.clip = 1, o.seed = 5, o.optimizer.decay = 0.1;
  TrainStep step(m, o);
  for (size_t i = 0; i < m.parameters.size(); ++i) initialize(m.parameters[i], 3, uint32_t(i), step.parameter(i));
  const test::GptTokens tokens(c, kBatch);
  const void* batch[] = {tokens.in.data(), tokens.out.data()};
  TwoSteps out{};
  for (int i = 0; i < steps; ++i) {
    StepMetrics r = step.run(batch);
    EXPECT_TRUE(r.applied);
    out.loss = r.loss, out.norm = r.gradient_norm;
  }
  for (size_t i = 0; i < m.parameters.size(); ++i) {
    auto g = step.gradient(i), p = step.parameter(i);
    out.gradients.emplace_back(g.begin(), g.end()), out.parameters.emplace_back(p.begin(), p.end());
  }
  out.plan = step.plan();
  return out;
}

// Sums of the same numbers in another order: a few hundred f32 terms.
void expect_same(const TwoSteps& a, const TwoSteps& b) {
  EXPECT_NEAR(a.loss, b.loss, 2e-6 * std::abs(a.loss));
  EXPECT_NEAR(a.norm, b.norm, 1e-5 * std::abs(a.norm));
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    double scale = 0;
    for (float v : a.gradients[i]) scale = std::max(scale, double(std::abs(v)));
    for (size_t k = 0; k < a.gradients[i].size(); ++k)
      ASSERT_NEAR(a.gradients[i][k], b.gradients[i][k], 2e-5 * scale + 1e-6) << "parameter " << i << " element " << k;
  }
}

class Split : public ::testing::TestWithParam<std::tuple<int64_t, double>> {};

TEST_P(Split, ChangesNothing) {
  auto [micro, dropout] = GetParam();
  GptConfig c = small_gpt(dropout);
  StepOptions o;
  o.optimizer.kind = Optimizer::Kind::sgd, o.optimizer.lr = 0.1;  // Adam would turn rounding errors of near-zero gradients into full steps
  TwoSteps whole = run(c, o);
  o.micro = micro;
  TwoSteps split = run(c, o);
  EXPECT_EQ(split.plan.repeats, kBatch / micro);
  EXPECT_EQ(split.plan.remainder, kBatch % micro);
  expect_same(whole, split);
}
INSTANTIATE_TEST_SUITE_P(Sizes, Split, ::testing::Combine(::testing::Values(16, 5, 1, 47), ::testing::Values(0.0, 0.2)));

class Recomputes : public ::testing::TestWithParam<Recompute> {};

TEST_P(Recomputes, ChangesNothing) {
  GptConfig c = small_gpt(0.1);
  StepOptions o;
  o.recompute = GetParam();
  expect_same(run(c, {}), run(c, o));
}
INSTANTIATE_TEST_SUITE_P(Levels, Recomputes, ::testing::Values(Recompute::free, Recompute::elementwise, Recompute::attention, Recompute::layers),
                         [](auto& info) { return std::string(name(info.param)); });

TEST(Budget, HigherLevelsKeepLess) {
  GptConfig c = small_gpt(0);
  c.layers = 8;
  int64_t before = std::numeric_limits<int64_t>::max();
  for (Recompute level : {Recompute::free, Recompute::layers}) {
    StepOptions o;
    o.recompute = level;
    int64_t bytes = run(c, o, 1).plan.activation_bytes;
    EXPECT_LT(bytes, before) << name(level);
    before = bytes;
  }
}

TEST(Budget, SplitsUntilTheStepFits) {
  GptConfig c = small_gpt(0);
  TwoSteps whole = run(c, {}, 1);  // only one step: Adam turns rounding errors of near-zero gradients into full steps
  StepOptions o;
  o.memory = whole.plan.planned_bytes - whole.plan.activation_bytes / 2;
  TwoSteps fitted = run(c, o, 1);
  EXPECT_LE(fitted.plan.planned_bytes, o.memory);
  EXPECT_TRUE(fitted.plan.micro < kBatch || fitted.plan.recompute != Recompute::free);
  expect_same(whole, fitted);
}

TEST(Budget, ErrorsQuoteABudgetThatFits) {
  StepOptions o;
  o.memory = 1024;
  try {
    TrainStep step(test::gpt_step_model(small_gpt(0), kBatch), o);
    FAIL() << "1 KiB cannot be enough";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::memory);
    EXPECT_NE(std::string(e.what()).find("smallest budget that works"), std::string::npos) << e.what();
  }
}

StepModel batch_norm_model() {
  StepModel m;
  m.parameters = {{"weight", {4}, 1, 0, false}};
  m.batch = {{DType::f32, {8, 4}}};
  m.loss = [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) -> Builder::SumCount {
    NodeId y = b.batch_norm(in[0], p[0], kNone, kNone, kNone, true).out;
    return {b.sum(b.square(y)), b.literal(DType::f32, 8)};
  };
  return m;
}

TEST(Coupling, BatchNormPreventsASplit) {
  StepOptions o;
  o.micro = 4;
  try {
    TrainStep step(batch_norm_model(), o);
    FAIL() << "a batch norm must not be split";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(e.what()).find("batch norm"), std::string::npos) << e.what();
  }
}

// Every sample is picked from at the same places, as in sums over lists of synapses: before, after and next to the batch axis.
TEST(Coupling, PickingFromEachSampleCanBeSplit) {
  auto trained = [](int64_t micro) {
    StepModel m;
    m.parameters = {{"w", {5}, 1, 0, false}};
    m.batch = {{DType::f32, {8, 5}}, {DType::f32, {8}}};
    m.loss = [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) -> Builder::SumCount {
      const NodeId x = b.mul(in[0], p[0]), places = b.reshape(b.sub(b.literal(DType::i64, 4), b.iota({4}, 0)), {2, 2});
      const NodeId after = b.take(x, places, 1), before = b.take(b.permute(x, {1, 0}), places, 0);  // [8, 2, 2], [2, 2, 8]
      const NodeId both = b.mul(b.square(after), b.permute(before, {2, 0, 1}));
      return {b.sum(b.square(both)), b.sum(in[1])};
    };
    StepOptions o;
    o.micro = micro;
    TrainStep step(m, o);
    std::vector<float> x(40), ones(8, 1);
    for (size_t i = 0; i < x.size(); ++i) x[i] = uniform_from(random_word({9, 0, 0}, i));
    const float start[] = {0.5f, 1, 1.5f, 2, 2.5f};
    std::copy(start, start + 5, step.parameter(0).begin());
    const void* batch[] = {x.data(), ones.data()};
    const double loss = step.run(batch).loss;
    std::vector<double> out{loss};
    for (float w : step.parameter(0)) out.push_back(w);
    return out;
  };
  const std::vector<double> whole = trained(8), split = trained(2);
  ASSERT_GT(whole[0], 0.1);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(split[i], whole[i], 1e-5 * whole[0]) << i;
}

TEST(Coupling, BatchNormTrainsWhole) {
  TrainStep step(batch_norm_model(), {});
  std::vector<float> x(32);
  for (size_t i = 0; i < x.size(); ++i) x[i] = uniform_from(random_word({9, 0, 0}, i));
  for (float& w : step.parameter(0)) w = 1;
  const void* batch[] = {x.data()};
  EXPECT_NEAR(step.run(batch).loss, 4, 0.1);  // four unit variances per sample
}

TEST(Guard, ANonFiniteStepChangesNothing) {
  StepModel m;
  m.parameters = {{"w", {3}, 0, 0, false}};
  m.batch = {{DType::f32, {2, 3}}};
  m.loss = [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) -> Builder::SumCount {
    return {b.sum(b.mul(in[0], p[0])), b.literal(DType::f32, 2)};
  };
  TrainStep step(m, {});
  for (float& w : step.parameter(0)) w = 0.5f;
  std::vector<float> good = {1, 2, 3, 4, 5, 6}, bad = {1, 2, NAN, 4, 5, 6};
  const void* g[] = {good.data()};
  const void* b[] = {bad.data()};
  EXPECT_TRUE(step.run(g).applied);
  std::vector<float> before(step.parameter(0).begin(), step.parameter(0).end()), first(step.moment(0, 0).begin(), step.moment(0, 0).end());
  EXPECT_FALSE(step.run(b).applied);
  EXPECT_EQ(before, std::vector<float>(step.parameter(0).begin(), step.parameter(0).end()));
  EXPECT_EQ(first, std::vector<float>(step.moment(0, 0).begin(), step.moment(0, 0).end()));
  EXPECT_TRUE(step.run(g).applied);
}

}  // namespace
}  // namespace ridge
