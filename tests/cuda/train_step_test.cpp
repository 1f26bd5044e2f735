// Whole training steps on the simulated GPU: every precision, old and new chips, with and without cuBLASLt, split batches, dropout and recomputation match the
// CPU, with the same bits in whatever order threads and blocks run.
#include "step/train_step.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/cuda/backend.h"
#include "profile/step_profile.h"
#include "ridge/profiler.h"
#include "support/cuda_device.h"
#include "support/gpt_step.h"

namespace ridge::cuda {
namespace {

constexpr int64_t kBatch = 5;

struct Variant {
  const char* name;
  Precision precision = Precision::fp32;
  std::string capability = "8.6";
  bool cublas_lt = true;
  int64_t micro = 0;
  double dropout = 0;
  Recompute recompute = Recompute::free;
  GptConfig::Norm norm = GptConfig::Norm::layer;
  GptConfig::Mlp mlp = GptConfig::Mlp::gelu;
  GptConfig::Position position = GptConfig::Position::learned;
};
void PrintTo(const Variant& v, std::ostream* out) { *out << v.name; }

GptConfig model_of(const Variant& v) {
  GptConfig c;
  c.vocab = 21, c.block = 12, c.layers = 2, c.heads = 2, c.width = 32, c.bias = true, c.dropout = v.dropout;
  c.norm = v.norm, c.mlp = v.mlp, c.position = v.position;
  return c;
}

struct Outcome {
  std::vector<double> losses, norms, gradients;
  std::vector<std::vector<float>> parameters;
  double evaluated = 0;
  bool operator==(const Outcome&) const = default;
};

Outcome run(const Variant& v, Backend& backend) {
  const StepModel m = test::gpt_step_model(model_of(v), kBatch);
  StepOptions o;
  o.precision = backend.host_memory() && v.precision == Precision::tf32 ? Precision::fp32 : v.precision;  // the CPU has no tf32
  o.backend = &backend, o.micro = v.micro, o.recompute = v.recompute;
  o.clip = 1, o.seed = 5, o.optimizer.decay = 0.1, o.optimizer.lr = 1e-2, o.loss_scale.initial = 1024;
  TrainStep step(m, o);
  for (size_t i = 0; i < m.parameters.size(); ++i) step.fill_parameter(i, [&](std::span<float> to) { initialize(m.parameters[i], 3, uint32_t(i), to); });
  const test::GptTokens tokens(model_of(v), kBatch);
  const void* batch[] = {tokens.in.data(), tokens.out.data()};
  Outcome outcome;
  Profiler profiler;
  for (int i = 0; i < 3; ++i) {
    i == 1 ? profiler.begin_step(Profiler::Record::values) : profiler.end_step();
    const StepMetrics r = step.run(batch);
    EXPECT_TRUE(r.applied);
    outcome.losses.push_back(r.loss), outcome.norms.push_back(r.gradient_norm);
  }
  for (const ValueRange& range : profiler.profile().ranges) EXPECT_EQ(range.bad, 0) << range.tensor;
  for (const Parameter& p : m.parameters)
    for (const GradientNorm& g : profiler.profile().gradients)
      if (g.parameter == p.name) outcome.gradients.push_back(g.norm);
  const TrainStep::Losses losses = step.evaluate(batch, kBatch - 1);
  outcome.evaluated = losses.sum / losses.count;
  for (size_t i = 0; i < m.parameters.size(); ++i) {
    outcome.parameters.emplace_back(size_t(m.parameters[i].shape.numel()));
    step.read(TrainStep::Held::parameter, i, outcome.parameters.back());
  }
  return outcome;
}

class SimulatedTraining : public testing::TestWithParam<Variant> {};

Outcome on_simulator(const Variant& v) {
  const test::TempFolder folder;
  const test::Variable cache("RIDGE_CACHE", folder.path());
  const test::Simulator simulator({.cublas_lt = v.cublas_lt, .capability = v.capability});
  CudaOptions options;
  options.cubins.folder.clear();  // the simulator has its own cache
  CudaBackend backend(options);
  return run(v, backend);
}

TEST_P(SimulatedTraining, MatchesTheCpu) {
  if (!test::simulator_works()) GTEST_SKIP() << "g++ is not installed";
  const Variant& v = GetParam();
  const Outcome want = run(v, default_backend()), got = on_simulator(v);
  // f32 sums in another order; bf16 rounds to 1/256, f16 and TF32 to 1/2048, sometimes in different places.
  const double close = v.precision == Precision::bf16 ? 1e-2 : v.precision == Precision::fp32 ? 2e-5 : 2e-3;
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], close * want.losses[i]) << "step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], 5 * close * want.norms[i]) << "step " << i;
  }
  EXPECT_EQ(want.gradients.size(), want.parameters.size());
  ASSERT_EQ(got.gradients.size(), want.gradients.size()) << "the profiler examines values on the device as on the CPU";
  for (size_t i = 0; i < want.gradients.size(); ++i) EXPECT_NEAR(got.gradients[i], want.gradients[i], 10 * close * want.gradients[i] + 1e-6) << i;
  EXPECT_NEAR(got.evaluated, want.evaluated, close * want.evaluated);
  {
    const test::Variable backward("SIMULATED_GPU_ORDER", "backward");
    EXPECT_TRUE(on_simulator(v) == got) << "another order of threads and blocks gives other bits";
  }
}

const Variant kVariants[] = {
    {.name = "tf32", .precision = Precision::tf32, .norm = GptConfig::Norm::rms, .mlp = GptConfig::Mlp::swiglu, .position = GptConfig::Position::rope},
    {.name = "bf16_split", .precision = Precision::bf16, .micro = 2, .dropout = 0.2, .recompute = Recompute::attention},
    {.name = "fp16_old_chip_own", .precision = Precision::fp16, .capability = "7.5", .cublas_lt = false},
};
INSTANTIATE_TEST_SUITE_P(Gpt, SimulatedTraining, testing::ValuesIn(kVariants), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ridge::cuda
