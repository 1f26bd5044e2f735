// Settings become a model, and the model trains.
#include "tasks/gpt/task.h"

#include <gtest/gtest.h>

#include <cmath>

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

// The sizes of nanoGPT and GPT-2, the latter with their parameter counts.
TEST(GptTask, PresetsMatchTheirModels) {
  struct {
    const char* preset;
    int64_t layers, heads, width, block, batch;
    double dropout;
    int64_t parameters;  // with GPT-2's vocabulary and biases; 0: not compared
  } const kRows[] = {{"shakespeare-cpu", 4, 4, 128, 64, 12, 0, 0},          {"shakespeare-char", 6, 6, 384, 256, 64, 0.2, 0},
                     {"gpt2", 12, 12, 768, 1024, 0, 0, 124'439'808},        {"gpt2-medium", 24, 16, 1024, 1024, 0, 0, 354'823'168},
                     {"gpt2-large", 36, 20, 1280, 1024, 0, 0, 774'030'080}, {"gpt2-xl", 48, 25, 1600, 1024, 0, 0, 1'557'611'200}};
  for (const auto& row : kRows) {
    SCOPED_TRACE(row.preset);
    const config::Resolved s = settings({std::string("preset=") + row.preset});
    GptConfig c = gpt_config(s, row.parameters ? 50257 : 65);
    EXPECT_EQ(std::vector<int64_t>({c.layers, c.heads, c.width, c.block}), std::vector<int64_t>({row.layers, row.heads, row.width, row.block}));
    EXPECT_DOUBLE_EQ(c.dropout, row.dropout);
    EXPECT_TRUE(c.tied && c.norm == GptConfig::Norm::layer && c.position == GptConfig::Position::learned && c.mlp == GptConfig::Mlp::gelu);
    EXPECT_EQ(c.padded_vocab, row.parameters ? 50304 : 128);
    if (row.batch) {
      EXPECT_EQ(required_size(s, "batch"), row.batch);
    }
    if (!row.parameters) continue;
    c.bias = true;
    int64_t parameters = 0;
    for (const Parameter& p : gpt_stored_parameters(c)) parameters += p.shape.numel();
    EXPECT_EQ(parameters, row.parameters);
  }
  EXPECT_NO_THROW(gpt_config(settings({"preset=tiny"}), 65));
}

// Initialized as in nanoGPT: standard deviation 0.02, divided by sqrt(2 · layers) for projections into the residual stream; and which parameters decay.
TEST(GptTask, InitialWeightsMatchNanoGpt) {
  GptConfig c = gpt_config(settings({"preset=shakespeare-char", "bias=true"}), 65);
  const std::vector<Parameter> all = gpt_parameters(c);
  for (size_t i = 0; i < all.size(); ++i) {
    const Parameter& p = all[i];
    std::vector<float> values(size_t(p.shape.numel()));
    initialize(p, 5, uint32_t(i), values);
    values.resize(size_t(used_shape(p).numel()));
    double sum = 0, squares = 0;
    for (float v : values) sum += v, squares += double(v) * v;
    const double n = double(values.size()), mean = sum / n, deviation = std::sqrt(squares / n - mean * mean);
    const bool matrix = p.shape.rank() == 2, norm = p.name.find("ln_") != std::string::npos;
    EXPECT_EQ(p.decay, matrix) << p.name;
    if (matrix) {
      const double expected = p.name.find("c_proj") != std::string::npos ? 0.02 / std::sqrt(2.0 * 6) : 0.02;
      EXPECT_NEAR(deviation, expected, 5 * expected / std::sqrt(2 * n)) << p.name;
      EXPECT_NEAR(mean, 0, 5 * expected / std::sqrt(n)) << p.name;
    } else {
      EXPECT_EQ(mean, norm && p.name.ends_with("weight") ? 1 : 0) << p.name;
      EXPECT_NEAR(deviation, 0, 1e-12) << p.name;
    }
  }
}

TEST(GptTask, SettingsOverrideThePreset) {
  const GptConfig c = gpt_config(settings({"preset=tiny", "layers=3", "norm=rms", "pos=rope", "mlp=swiglu", "kv_heads=1", "bias=true"}), 17);
  EXPECT_EQ(c.layers, 3);
  EXPECT_EQ(c.kv_heads, 1);
  EXPECT_TRUE(c.bias);
  EXPECT_TRUE(c.norm == GptConfig::Norm::rms && c.position == GptConfig::Position::rope && c.mlp == GptConfig::Mlp::swiglu);
}

TEST(GptTask, IsDescribedInWords) {
  const GptConfig one = gpt_config(settings({"preset=tiny", "layers=1", "heads=1", "width=16", "block=8"}), 17);
  EXPECT_EQ(model_text(one), "1 layer, 1 head, 16 wide, block 8");
  EXPECT_EQ(model_identity(one), "1 layers, 1 heads, 16 wide, block 8") << "as earlier builds stored it";
  EXPECT_EQ(parameters_text(1), "1 parameter");
  EXPECT_EQ(parameters_text(4321), "4,321 parameters");
  EXPECT_EQ(parameters_text(10'650'000), "10.65 M parameters");
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
    // Doubling every speed halves the time, and no kernel is free.
    const double least = step.min_seconds(1e9, 1e9);
    EXPECT_GT(least, 0);
    EXPECT_NEAR(step.min_seconds(2e9, 2e9), least / 2, 1e-9 * least);
    EXPECT_LT(step.min_seconds(1e30, 1e9), least * (1 + 1e-9));
  }
}

}  // namespace
}  // namespace ridge
