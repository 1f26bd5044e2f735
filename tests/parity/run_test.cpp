// A hundred steps of the trainers' step, against PyTorch. Weights and batches come from a formula (also in tools/make_fixtures.py), so that the fixture holds
// only what must agree.
#include <gtest/gtest.h>

#include <cmath>

#include "parity/parity.h"
#include "tasks/gpt/task.h"

namespace ridge::parity {
namespace {

constexpr int64_t kBatch = 4;

uint32_t drawn(uint32_t stream, uint32_t index) {
  uint32_t x = index * 2654435761u + stream * 2246822519u + 12345u;
  x = (x ^ (x >> 16)) * 2246822519u;
  x = (x ^ (x >> 13)) * 3266489917u;
  return x ^ (x >> 16);
}

GptConfig four_layers() {
  GptConfig c;
  c.vocab = 65, c.block = 16, c.layers = 4, c.heads = 4, c.width = 32;
  c.padded_vocab = 128;
  return c;
}

void set_weights(TrainStep& step, const std::vector<Parameter>& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::span<float> values = step.parameter(i);
    const size_t used = size_t(used_shape(parameters[i]).numel());
    for (size_t k = 0; k < values.size(); ++k) {
      const bool matrix = parameters[i].shape.rank() == 2;
      values[k] = k >= used ? 0 : matrix ? float((double(drawn(uint32_t(i), uint32_t(k)) >> 8) / 16777216 - 0.5) * 0.25) : 1;
    }
  }
}

struct Tokens {
  std::vector<int64_t> in, out;
  Tokens(int64_t step, int64_t block, int64_t vocab) {
    for (int64_t b = 0; b < kBatch; ++b) {
      int64_t token = 0;
      for (int64_t t = 0; t <= block; ++t) {
        const int64_t draw = drawn(uint32_t(1000 + step), uint32_t(b * (block + 1) + t));
        token = t == 0 ? draw % vocab : draw % 8 == 0 ? draw / 8 % vocab : (3 * token + 7) % vocab;
        if (t < block) in.push_back(token);
        if (t > 0) out.push_back(token);
      }
    }
  }
};

// In f32 the losses must stay within 1e-3 of PyTorch's; in fact the two f32 runs and the f64 run are much closer.
TEST(Run, HundredStepsOfAGpt) {
  Fixture f("gpt_run");
  const Array rates = f("rates"), losses = f("losses"), losses_f32 = f("losses_f32"), norms = f("norms"), lengths = f("lengths_end");
  const GptConfig c = four_layers();
  const StepModel model = gpt_step_model(c, kBatch);
  ASSERT_EQ(lengths.size(), int64_t(model.parameters.size()));
  for (int64_t micro : {4, 3}) {
    StepOptions o;
    o.optimizer.beta2 = 0.99, o.optimizer.decay = 0.1, o.clip = 1, o.micro = micro;
    TrainStep step(model, o);
    set_weights(step, model.parameters);
    for (int64_t i = 0; i < losses.size(); ++i) {
      const Tokens tokens(i, c.block, c.vocab);
      const void* batch[] = {tokens.in.data(), tokens.out.data()};
      const StepMetrics m = step.run(batch, rates.at(i));
      ASSERT_TRUE(m.applied);
      EXPECT_NEAR(m.loss, losses.at(i), 1e-4 * losses.at(i)) << "step " << i << ", micro-batches of " << micro;
      EXPECT_NEAR(m.loss, losses_f32.at(i), 1e-4 * losses_f32.at(i)) << "step " << i << ", micro-batches of " << micro;
      EXPECT_NEAR(m.gradient_norm, norms.at(i), 1e-3 * norms.at(i)) << "step " << i << ", micro-batches of " << micro;
    }
    for (size_t i = 0; i < model.parameters.size(); ++i) {
      double squares = 0;
      for (float v : step.parameter(i)) squares += double(v) * double(v);
      EXPECT_NEAR(std::sqrt(squares), lengths.at(int64_t(i)), 1e-4 * lengths.at(int64_t(i))) << model.parameters[i].name;
    }
  }
}

}  // namespace
}  // namespace ridge::parity
