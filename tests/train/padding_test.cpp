// The embedding's padding rows exist in memory only, never in a loss, a gradient or an initial value.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "train/small_gpt.h"

namespace ridge {
namespace {

constexpr int64_t kPaddedBatch = 6;

GptConfig padded(GptConfig c, int64_t rows) {
  c.padded_vocab = rows;
  return c;
}

class Padding : public ::testing::TestWithParam<bool> {
 protected:
  GptConfig config() const {
    GptConfig c = tiny_gpt();
    c.tied = GetParam();
    return c;
  }
};

TEST_P(Padding, ChangesNoLossAndNoGradient) {
  const GptConfig plain = config();
  const StepModel a = gpt_step_model(plain, kPaddedBatch), b = gpt_step_model(padded(plain, 64), kPaddedBatch);
  StepOptions o;
  o.clip = 1, o.optimizer.decay = 0.1;
  TrainStep x(a, o), y(b, o);
  start(x, a), start(y, b);
  const TokenBatch batch(kPaddedBatch, plain.block, plain.vocab, 1);
  for (int step = 0; step < 3; ++step) {
    const StepMetrics m = x.run(batch.data), n = y.run(batch.data);
    EXPECT_NEAR(m.loss, n.loss, 1e-6 * m.loss);
    EXPECT_NEAR(m.gradient_norm, n.gradient_norm, 1e-5 * m.gradient_norm);
  }
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    EXPECT_EQ(used_shape(b.parameters[i]), a.parameters[i].shape);
    const std::span<float> p = x.parameter(i), q = y.parameter(i), g = x.gradient(i), h = y.gradient(i);
    double scale = 0;
    for (float v : g) scale = std::max(scale, double(std::abs(v)));
    for (size_t k = 0; k < p.size(); ++k) {
      ASSERT_NEAR(g[k], h[k], 2e-5 * scale + 1e-7) << a.parameters[i].name << " " << k;
      ASSERT_NEAR(p[k], q[k], 3e-3) << "three steps of at most the rate";
    }
    for (size_t k = p.size(); k < q.size(); ++k) {
      ASSERT_EQ(q[k], 0) << "padding is not trained";
      ASSERT_EQ(h[k], 0);
      ASSERT_EQ(y.moment(i, 1)[k], 0);
    }
  }
}

TEST_P(Padding, DoesNotChangeTheFirstValues) {
  const std::vector<Parameter> a = gpt_parameters(config()), b = gpt_parameters(padded(config(), 128));
  for (size_t i = 0; i < a.size(); ++i) {
    std::vector<float> x(size_t(a[i].shape.numel())), y(size_t(b[i].shape.numel()));
    initialize(a[i], 7, uint32_t(i), x), initialize(b[i], 7, uint32_t(i), y);
    y.resize(x.size());
    EXPECT_EQ(x, y) << a[i].name;
  }
}

TEST_P(Padding, IsHarmlessWithAnyContent) {
  const GptConfig c = padded(config(), 64);
  const StepModel model = gpt_step_model(c, kPaddedBatch);
  TrainStep step(model, {});
  start(step, model);
  const TokenBatch batch(kPaddedBatch, c.block, c.vocab, 1);
  const double before = step.evaluate(batch.data, kPaddedBatch).sum;
  for (size_t i = 0; i < model.parameters.size(); ++i)
    if (const int64_t used = used_shape(model.parameters[i]).numel(); used < model.parameters[i].shape.numel())
      for (float& v : step.parameter(i).subspan(size_t(used))) v = 1e30f;
  EXPECT_EQ(step.evaluate(batch.data, kPaddedBatch).sum, before);
}

TEST_P(Padding, IsNeverAToken) {
  const GptConfig c = padded(config(), 64);
  const StepModel model = gpt_step_model(c, kPaddedBatch);
  TrainStep step(model, {});
  start(step, model);
  TokenBatch batch(kPaddedBatch, c.block, c.vocab, 1);
  batch.in[3] = c.vocab;
  EXPECT_THROW(step.run(batch.data), Error);
  batch.in[3] = 0, batch.out[5] = c.vocab;
  EXPECT_THROW(step.run(batch.data), Error);
}

INSTANTIATE_TEST_SUITE_P(Heads, Padding, ::testing::Bool(), [](auto& info) { return info.param ? "tied" : "apart"; });

TEST(Padding, CostsNoKernel) {
  GptConfig c = tiny_gpt(65);
  const int plain = TrainStep(gpt_step_model(c, kPaddedBatch), {}).plan().kernels;
  EXPECT_EQ(TrainStep(gpt_step_model(padded(c, 128), kPaddedBatch), {}).plan().kernels, plain);
}

TEST(Padding, BelowTheVocabularyIsRejected) { EXPECT_THROW(gpt_parameters(padded(tiny_gpt(65), 64)), Error); }

}  // namespace
}  // namespace ridge
