// A step in which anything is not finite, wherever it comes from, stores nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "step/step_programs.h"
#include "support/errors.h"
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
  Optimizer::Kind kind;
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

// Injected into any element of the data, at any step, and also into the last sample of a split batch.
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

// A finite loss with a gradient that is not finite.
TEST_P(NonFinite, GradientStoresNothing) {
  StepModel model = regression();
  const auto plain = model.loss;
  model.loss = [plain](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands& r) {
    Builder::SumCount l = plain(b, p, in, r);
    const NodeId root = b.unary(Op::sqrt, b.mul(in[1], p[2]));  // at 0: zero, with an infinite slope
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

TEST_P(NonFinite, ParametersDoNotSpread) {
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

// Divided by an infinite count, loss and gradients are zero, hence finite; but the weights would still decay.
TEST_P(NonFinite, CountStoresNothing) {
  for (const double count : {double(NAN), double(kInfinite)}) {
    StepModel model = regression();
    const auto plain = model.loss;
    model.loss = [plain, count](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands& r) {
      return Builder::SumCount{plain(b, p, in, r).sum, b.sum(b.add(b.mul(in[1], 0.0), count))};  // counted per sample, as splitting requires
    };
    TrainStep step(model, options());
    start(step, model);
    const auto before = contents(step, model);
    EXPECT_FALSE(step.run(Samples(1).both).applied);
    EXPECT_EQ(before, contents(step, model));
  }
}

TEST_P(NonFinite, RatesAreRejected) {
  const StepModel model = regression();
  TrainStep step(model, options());
  start(step, model);
  const auto before = contents(step, model);
  for (const double bad : {double(NAN), double(kInfinite), -1e-3, 1e300}) {
    const auto error = test::error_of([&] { step.run(Samples(1).both, bad); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::value);
    EXPECT_EQ(step.pending(), 0);
    EXPECT_EQ(before, contents(step, model));
  }
  EXPECT_TRUE(step.run(Samples(1).both, 0).applied);
  EXPECT_TRUE(step.run(Samples(1).both, 1e-3).applied);
}

// The program's own flag, independent of the source of the numbers: each scalar that the update reads, one after another, whole and in parts.
TEST_P(NonFinite, ScalarsAreChecked) {
  const StepModel model = regression();
  const StepOptions o = options();
  const StepPrograms programs(model, o);
  const std::unique_ptr<Executable> gradient_check = programs.gradient_check(nullptr), update = programs.update(nullptr);
  std::vector<std::vector<float>> held;  // parameters, moments
  std::vector<const void*> gradients;
  const std::vector<float> ones(35, 1.0f);
  for (int copy = 0; copy <= programs.moments(0); ++copy)
    for (const Parameter& p : model.parameters) held.emplace_back(size_t(p.shape.numel()), copy ? 0.25f : 0.5f);
  for (size_t i = 0; i < model.parameters.size(); ++i) gradients.push_back(ones.data());
  auto judged = [&](float lr, float sum, float count, float scale, bool whole) {
    int64_t applied = 7, age = 0, next_applied = 0, next_age = 0;
    float loss = 0, norm = 0, factor = 0, next_scale = 0;
    uint8_t good = 9, lowered = 0;
    std::vector<const void*> in;
    std::vector<void*> out;
    if (whole)
      for (auto& values : held) in.push_back(values.data()), out.push_back(values.data());
    in.insert(in.end(), gradients.begin(), gradients.end());
    in.insert(in.end(), {&applied, &lr, &sum, &count});
    out.insert(out.end(), {&next_applied, &loss, &norm, &good});
    if (!whole) out.push_back(&factor);
    if (programs.scaled()) in.insert(in.end(), {&scale, &age}), out.insert(out.end(), {&next_scale, &next_age, &lowered});
    (whole ? *update : *gradient_check).run(in, out);
    EXPECT_EQ(next_applied, good ? 8 : 7);
    return good != 0;
  };
  for (const bool whole : {false, true}) {
    const auto before = held;
    for (const float bad : {NAN, kInfinite, -kInfinite}) {
      EXPECT_FALSE(judged(bad, 6, 6, 64, whole)) << "lr " << bad;
      EXPECT_FALSE(judged(1e-3f, bad, 6, 64, whole)) << "sum " << bad;
      EXPECT_FALSE(judged(1e-3f, 6, bad, 64, whole)) << "count " << bad;
      EXPECT_EQ(judged(1e-3f, 6, 6, bad, false), !programs.scaled()) << "scale " << bad;
    }
    EXPECT_EQ(held, before);
    EXPECT_TRUE(judged(1e-3f, 6, 6, 64, whole));
    EXPECT_EQ(held != before, whole);
  }
}

TEST(OptimizerSettings, ThatMakeWeightsNonFiniteAreRejected) {
  const StepModel model = regression();
  using Kind = Optimizer::Kind;
  auto refused = [&](const char* what, Kind kind, double StepOptions::*own, double Optimizer::*of_optimizer, std::initializer_list<double> values) {
    for (const double value : values) {
      StepOptions o;
      o.optimizer.kind = kind;
      (own ? o.*own : o.optimizer.*of_optimizer) = value;
      const auto error = test::error_of([&] { TrainStep(model, o); });
      ASSERT_TRUE(error) << what << " " << value;
      EXPECT_EQ(error->code(), ErrorCode::value);
      EXPECT_TRUE(test::has(error, std::string("[step] ") + what + " is ")) << error->what();
    }
  };
  const double inf = kInfinite, nan = NAN;
  refused("lr", Kind::adamw, nullptr, &Optimizer::lr, {nan, inf, -inf, -1e-3, 1e39});
  refused("decay", Kind::sgd, nullptr, &Optimizer::decay, {nan, inf, -0.1});
  refused("clip", Kind::adam, &StepOptions::clip, nullptr, {nan, inf, -1});
  refused("momentum", Kind::sgd, nullptr, &Optimizer::momentum, {nan, 1, -0.5, inf});
  refused("beta1", Kind::adamw, nullptr, &Optimizer::beta1, {nan, 1, 1.5, -0.1});
  refused("beta2", Kind::adam, nullptr, &Optimizer::beta2, {nan, 1, -0.1});
  refused("eps", Kind::adamw, nullptr, &Optimizer::eps, {nan, 0, -1e-8, 1e-60, inf});
  StepOptions o;
  o.optimizer.beta1 = 0, o.optimizer.beta2 = 0, o.optimizer.lr = 0;
  EXPECT_FALSE(test::error_of([&] { TrainStep(model, o); }));
}

INSTANTIATE_TEST_SUITE_P(Forms, NonFinite,
                         ::testing::Values(Form{Optimizer::Kind::adamw, 0, 0, 1, Precision::fp32}, Form{Optimizer::Kind::adamw, 0, 4, 1, Precision::fp32},
                                           Form{Optimizer::Kind::adam, 0, 1, 0, Precision::fp32}, Form{Optimizer::Kind::sgd, 0, 0, 0, Precision::fp32},
                                           Form{Optimizer::Kind::sgd, 0.9, 4, 1, Precision::bf16}, Form{Optimizer::Kind::adamw, 0, 4, 1, Precision::fp16}));

}  // namespace
}  // namespace ridge
