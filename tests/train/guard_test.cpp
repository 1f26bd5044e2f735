// Whatever is not finite, wherever it comes from: a step with it stores nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "train/small_gpt.h"

namespace ridge {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();

StepModel regression() {
  StepModel m;
  m.parameters = {{"up", {5, 7}, 0, 0.5, true}, {"down", {7, 3}, 0, 0.5, true}, {"bias", {3}, 0, 0, false}};
  m.batch = {{DType::f32, {6, 5}}, {DType::f32, {6, 3}}};
  m.loss = [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) -> Builder::SumCount {
    const NodeId y = b.add(b.matmul(b.unary(Op::tanh, b.matmul(in[0], p[0])), p[1]), p[2]);
    return {b.sum(b.square(b.sub(y, in[1]))), b.literal(DType::f32, double(b.shape(in[1])[0]))};
  };
  return m;
}

struct Samples {
  std::vector<float> x, y;
  std::vector<const void*> both;
  explicit Samples(uint64_t seed) {
    for (uint64_t i = 0; i < 30; ++i) x.push_back(uniform_from(random_word({seed, 0, 1}, i)) - 0.5f);
    for (uint64_t i = 0; i < 18; ++i) y.push_back(uniform_from(random_word({seed, 0, 2}, i)));
    both = {x.data(), y.data()};
  }
  Samples(const Samples&) = delete;
};

struct Form {
  OptimizerOptions::Kind kind;
  double momentum;
  int64_t micro;
  double clip;
  Precision precision;
};

class NonFinite : public ::testing::TestWithParam<Form> {
 protected:
  StepOptions options() const {
    StepOptions o;
    o.optimizer.kind = GetParam().kind, o.optimizer.momentum = GetParam().momentum, o.optimizer.decay = 0.1;
    o.micro = GetParam().micro, o.clip = GetParam().clip, o.precision = GetParam().precision;
    o.loss_scale.initial = 64;
    return o;
  }
};

// Injected into any element of the data, at any step, and into the last sample of a split batch too.
TEST_P(NonFinite, DataStoresNothing) {
  const StepModel model = regression();
  TrainStep step(model, options());
  start(step, model);
  Samples good(1);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(step.run(good.both).applied);
  for (float bad : {NAN, kInfinite, -kInfinite})
    for (size_t at : {size_t(0), size_t(14), size_t(29)}) {
      Samples data(2);
      data.x[at] = bad, data.y[at % 18] = bad;
      const auto before = contents(step, model);
      const StepState state = step.state();
      const StepMetrics m = step.run(data.both);
      EXPECT_FALSE(m.applied);
      EXPECT_FALSE(m.scale_search);
      EXPECT_EQ(before, contents(step, model));
      EXPECT_EQ(step.state().applied, state.applied);
      EXPECT_EQ(step.state().attempted, state.attempted + 1);
    }
  EXPECT_TRUE(step.run(good.both).applied) << "and the next good step goes on";
}

// A loss that is finite with a gradient that is not.
TEST_P(NonFinite, GradientStoresNothing) {
  StepModel model = regression();
  const auto plain = model.loss;
  model.loss = [plain](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands& r) {
    Builder::SumCount l = plain(b, p, in, r);
    const NodeId root = b.unary(Op::sqrt, b.mul(in[1], p[2]));  // of 0: zero, with an infinite slope
    return Builder::SumCount{b.add(l.sum, b.sum(root)), l.count};
  };
  TrainStep step(model, options());
  start(step, model);
  Samples data(1);
  const auto before = contents(step, model);
  for (int i = 0; i < 3; ++i) {
    const StepMetrics m = step.run(data.both);
    EXPECT_TRUE(std::isfinite(m.loss));
    EXPECT_FALSE(m.applied);
    EXPECT_EQ(before, contents(step, model));
  }
  EXPECT_EQ(step.state().applied, 0);
}

TEST_P(NonFinite, ParameterIsNotSpread) {
  const StepModel model = regression();
  TrainStep step(model, options());
  start(step, model);
  Samples data(1);
  ASSERT_TRUE(step.run(data.both).applied);
  step.parameter(1)[4] = NAN;
  const auto before = contents(step, model);
  EXPECT_FALSE(step.run(data.both).applied);
  const auto after = contents(step, model);
  for (size_t i = 0; i < before.size(); ++i)
    for (size_t k = 0; k < before[i].size(); ++k)
      EXPECT_TRUE(before[i][k] == after[i][k] || (std::isnan(before[i][k]) && std::isnan(after[i][k]))) << i << " " << k;
}

INSTANTIATE_TEST_SUITE_P(
    Forms, NonFinite,
    ::testing::Values(Form{OptimizerOptions::Kind::adamw, 0, 0, 1, Precision::fp32}, Form{OptimizerOptions::Kind::adamw, 0, 4, 1, Precision::fp32},
                      Form{OptimizerOptions::Kind::adam, 0, 1, 0, Precision::fp32}, Form{OptimizerOptions::Kind::sgd, 0, 0, 0, Precision::fp32},
                      Form{OptimizerOptions::Kind::sgd, 0.9, 4, 1, Precision::bf16}, Form{OptimizerOptions::Kind::adamw, 0, 4, 1, Precision::fp16}));

}  // namespace
}  // namespace ridge
