// 16-bit arithmetic trains like f32, the loss scale finds its level, and no scale affects what is learnt.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/registry.h"
#include "graph/scan.h"
#include "machine/features.h"
#include "threads/thread_team.h"
#include "train/small_gpt.h"

namespace ridge {
namespace {

constexpr int64_t kTrainedBatch = 16;

struct Training {
  StepModel model;
  TrainStep step;
  explicit Training(const StepOptions& options, GptConfig config = tiny_gpt()) : model(gpt_step_model(config, kTrainedBatch)), step(model, options) {
    start(step, model);
  }
  StepMetrics once(uint64_t seed, double lr = 1e-2) {
    const TokenBatch batch(kTrainedBatch, 8, 19, seed);
    return step.run(batch.data, lr);
  }
};

StepOptions with(Precision precision) {
  StepOptions o;
  o.precision = precision, o.clip = 1;
  return o;
}

double trained_loss(Precision precision) {
  Training run(with(precision));
  for (uint64_t i = 0; i < 150; ++i) run.once(i);
  const TokenBatch held_out(kTrainedBatch, 8, 19, 1000);
  const TrainStep::Losses l = run.step.evaluate(held_out.data, kTrainedBatch);
  return l.sum / l.count;
}

TEST(Precision, SixteenBitsTrainLikeThirtyTwo) {
  const double full = trained_loss(Precision::fp32);
  EXPECT_LT(full, 1.6) << "from ln 19 = 2.94";
  EXPECT_NEAR(trained_loss(Precision::bf16), full, 0.08);
  EXPECT_NEAR(trained_loss(Precision::fp16), full, 0.04);
}

// One step from the same weights: gradients differ by rounding to 8 or 11 bits.
TEST(Precision, GradientsMatchF32UpToRounding) {
  Training full(with(Precision::fp32)), brain(with(Precision::bf16)), half(with(Precision::fp16));
  const StepMetrics a = full.once(1), b = brain.once(1), c = half.once(1);
  EXPECT_NEAR(b.loss, a.loss, 4e-3 * a.loss);
  EXPECT_NEAR(c.loss, a.loss, 5e-4 * a.loss);
  EXPECT_NEAR(b.gradient_norm, a.gradient_norm, 2e-2 * a.gradient_norm);
  EXPECT_NEAR(c.gradient_norm, a.gradient_norm, 3e-3 * a.gradient_norm);
  EXPECT_EQ(a.loss_scale, 1);
  EXPECT_EQ(b.loss_scale, 1);
}

TEST(Precision, ThreadCountDoesNotChangeBits) {
  for (Precision precision : {Precision::bf16, Precision::fp16}) {
    std::vector<std::vector<float>> first;
    for (int threads : {1, 3}) {
      ThreadTeam team({.threads = threads});
      StepOptions o = with(precision);
      const std::unique_ptr<Backend> backend = cpu_backend(team);
      o.backend = backend.get(), o.micro = 5;
      Training run(o);
      for (uint64_t i = 0; i < 3; ++i) run.once(i);
      if (first.empty()) first = contents(run.step, run.model);
      EXPECT_EQ(contents(run.step, run.model), first) << name(precision);
    }
  }
}

TEST(Precision, ActivationsAreNarrow) {
  GptConfig c = tiny_gpt();
  c.width = 64, c.block = 64;
  const StepModel model = gpt_step_model(c, kTrainedBatch);
  StepOptions o = with(Precision::fp32);
  const int64_t wide = TrainStep(model, o).plan().activation_bytes;
  o.precision = Precision::bf16;
  EXPECT_LT(double(TrainStep(model, o).plan().activation_bytes), 0.8 * double(wide));
}

TEST(LossScale, OfAnySizeGivesTheSameNorm) {
  std::vector<double> norms;
  for (double scale : {16.0, 256.0, 4096.0}) {
    StepOptions o = with(Precision::fp16);
    o.loss_scale.initial = scale;
    Training run(o);
    const StepMetrics m = run.once(1);
    EXPECT_TRUE(m.applied);
    EXPECT_EQ(m.loss_scale, scale);
    norms.push_back(m.gradient_norm);
  }
  EXPECT_NEAR(norms[0], norms[2], 2e-3 * norms[2]) << "only what vanishes below f16's smallest number may differ";
  EXPECT_NEAR(norms[1], norms[2], 1e-3 * norms[2]);
}

// Far too high: halved at each step, and nothing else changes until it fits.
TEST(LossScale, IsLoweredOnOverflow) {
  StepOptions o = with(Precision::fp16);
  o.loss_scale.initial = std::exp2(40), o.loss_scale.cap = std::exp2(60);
  Training run(o);
  const auto before = contents(run.step, run.model);
  double scale = o.loss_scale.initial;
  int searched = 0;
  for (StepMetrics m = run.once(0); !m.applied; m = run.once(0)) {
    ASSERT_TRUE(m.scale_search);
    ASSERT_TRUE(std::isfinite(m.loss)) << "the loss does not know the scale";
    ASSERT_EQ(m.loss_scale, scale);
    ASSERT_EQ(run.step.state().loss_scale, scale /= 2);
    ASSERT_EQ(run.step.state().applied, 0);
    ASSERT_EQ(run.step.state().scale_age, 0);
    ASSERT_EQ(before, contents(run.step, run.model));
    ASSERT_LT(++searched, 40);
  }
  EXPECT_GT(searched, 3);
  EXPECT_EQ(run.step.state().applied, 1);
  EXPECT_NE(before, contents(run.step, run.model));
}

TEST(LossScale, DoublesAfterAnInterval) {
  StepOptions o = with(Precision::fp16);
  o.loss_scale.initial = 1024, o.loss_scale.growth_interval = 3, o.loss_scale.cap = 4096;
  Training run(o);
  std::vector<double> seen;
  std::vector<int64_t> ages;
  for (uint64_t i = 0; i < 9; ++i) seen.push_back(run.once(i).loss_scale), ages.push_back(run.step.state().scale_age);
  EXPECT_EQ(seen, (std::vector<double>{1024, 1024, 1024, 2048, 2048, 2048, 4096, 4096, 4096}));
  EXPECT_EQ(ages, (std::vector<int64_t>{1, 2, 0, 1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(run.once(9).loss_scale, 4096) << "not above its cap";
}

TEST(LossScale, IsNotLoweredByABadLoss) {
  StepOptions o = with(Precision::fp16);
  Training run(o);
  run.step.parameter(0)[0] = NAN;
  const StepMetrics m = run.once(1);
  EXPECT_FALSE(m.applied);
  EXPECT_FALSE(m.scale_search) << "a smaller scale does not mend a loss";
  EXPECT_EQ(run.step.state().loss_scale, o.loss_scale.initial);
}

// At the lowest scale there is nothing left to try: that is a real failure.
TEST(LossScale, AtItsMinimumStopsTheSearch) {
  StepModel m;
  m.parameters = {{"w", {4, 4}, 0, 0, false}};
  m.batch = {{DType::f32, {2, 4}}};
  m.loss = [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) -> Builder::SumCount {
    // A finite loss with a gradient that is not: the square root at 0.
    return {b.sum(b.unary(Op::sqrt, b.matmul(in[0], p[0]))), b.literal(DType::f32, 2)};
  };
  StepOptions o;
  o.precision = Precision::fp16, o.loss_scale.initial = 4;
  TrainStep step(m, o);
  const std::vector<float> x(8, 1.0f);
  const void* batch[] = {x.data()};
  std::vector<bool> search;
  for (int i = 0; i < 4; ++i) {
    const StepMetrics r = step.run(batch);
    EXPECT_FALSE(r.applied);
    search.push_back(r.scale_search);
  }
  EXPECT_EQ(search, (std::vector<bool>{true, true, false, false}));
  EXPECT_EQ(step.state().loss_scale, 1);
}

// The highest AVX-512 tier differs only in products of bf16 pairs: a run uses that tier only if its programs have such products.
TEST(StepTier, IsTheLowestWithTheSameBits) {
  auto tier = [](bool casts, Precision precision, bool in_loop = false) {
    StepModel m;
    m.batch = {{DType::f32, {4, 8}}};
    m.parameters = {{"w", {8, 8}, 0, 0.3, true}};
    m.loss = [=](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) -> Builder::SumCount {
      auto product = [casts](Builder& builder, NodeId x, NodeId w) {
        if (!casts) return builder.matmul(x, w);
        return builder.cast(builder.matmul(builder.cast(x, DType::bf16), builder.cast(w, DType::bf16)), DType::f32);
      };
      NodeId y = in[0];
      if (in_loop) {
        auto body = std::make_shared<ScanBody>();
        const NodeId carry = body->graph.input(b.graph().type(y), "y"), w = body->graph.input({DType::f32, {8, 8}}, "w");
        Builder inner(body->graph);
        body->carry_in = {carry}, body->constant_in = {w}, body->carry_out = {product(inner, carry, w)};
        y = scan(b.graph(), body, {&y, 1}, {}, {&p[0], 1}, 3).carry[0];
      } else {
        y = product(b, y, p[0]);
      }
      return {b.sum(b.square(y)), b.literal(DType::f32, double(b.shape(in[0])[0]))};
    };
    StepOptions o;
    o.precision = precision;
    return TrainStep(m, o).plan().choices.isa;
  };
  const std::string highest(name(isa_tier())), wide(name(has_avx512(isa_tier()) ? IsaTier::avx512 : isa_tier()));
  EXPECT_EQ(tier(false, Precision::fp32), wide);
  EXPECT_EQ(tier(false, Precision::fp16), wide);
  EXPECT_EQ(tier(false, Precision::bf16), highest);
  EXPECT_EQ(tier(true, Precision::fp32), highest);
  EXPECT_EQ(tier(false, Precision::fp32, true), wide);
  EXPECT_EQ(tier(true, Precision::fp32, true), highest);
}

}  // namespace
}  // namespace ridge
