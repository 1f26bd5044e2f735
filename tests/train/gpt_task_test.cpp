// Settings become a model, and a model trains.
#include "train/gpt_task.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ridge {
namespace {

config::Resolved settings(std::vector<std::string> words) {
  config::Sources sources;
  sources.working_folder.reset();
  sources.words = std::move(words);
  return config::resolve(sources);
}

TEST(GptTask, TakesItsSizesFromThePreset) {
  const config::Resolved s = settings({"preset=shakespeare-char"});
  const GptConfig c = gpt_config(s, 65);
  EXPECT_EQ(std::vector<int64_t>({c.vocab, c.block, c.layers, c.heads, c.width}), std::vector<int64_t>({65, 256, 6, 6, 384}));
  EXPECT_DOUBLE_EQ(c.dropout, 0.2);
  EXPECT_FALSE(c.bias);
  const StepOptions o = gpt_step_options(s);
  EXPECT_DOUBLE_EQ(o.optimizer.lr, 1e-3);
  EXPECT_DOUBLE_EQ(o.optimizer.beta2, 0.99);
  EXPECT_DOUBLE_EQ(o.optimizer.decay, 0.1);
  EXPECT_DOUBLE_EQ(o.clip, 1);
}

TEST(GptTask, TakesWhatIsAskedForBeforeThePreset) {
  const GptConfig c = gpt_config(settings({"preset=tiny", "layers=3", "norm=rms", "pos=rope", "mlp=swiglu", "kv_heads=1", "bias=true"}), 17);
  EXPECT_EQ(c.layers, 3);
  EXPECT_EQ(c.kv_heads, 1);
  EXPECT_TRUE(c.bias);
  EXPECT_TRUE(c.norm == GptConfig::Norm::rms && c.position == GptConfig::Position::rope && c.mlp == GptConfig::Mlp::swiglu);
}

TEST(GptTask, TrainsInEveryForm) {
  for (const char* form : {"norm=layer", "norm=rms", "pos=rope", "mlp=swiglu", "kv_heads=1", "bias=true", "dropout=0.1"}) {
    const config::Resolved s = settings({"preset=tiny", "block=8", "width=16", form});
    const GptConfig c = gpt_config(s, 11);
    const StepModel model = gpt_step_model(c, 4);
    TrainStep step(model, gpt_step_options(s));
    for (size_t i = 0; i < model.parameters.size(); ++i) initialize(model.parameters[i], 1, uint32_t(i), step.parameter(i));
    std::vector<int64_t> tokens(32), targets(32);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int64_t(i * 7 % 11), targets[i] = int64_t((i + 1) * 7 % 11);
    const void* batch[] = {tokens.data(), targets.data()};
    const double first = step.run(batch).loss;
    double last = first;
    for (int i = 0; i < 60; ++i) last = step.run(batch, 1e-2).loss;
    EXPECT_LT(last, 0.5 * first) << form;
    // Twice the speed of everything is half of the time, and no kernel is free.
    const double least = step.least_seconds(1e9, 1e9);
    EXPECT_GT(least, 0);
    EXPECT_NEAR(step.least_seconds(2e9, 2e9), least / 2, 1e-9 * least);
    EXPECT_LT(step.least_seconds(1e30, 1e9), least * (1 + 1e-9));
  }
}

}  // namespace
}  // namespace ridge
