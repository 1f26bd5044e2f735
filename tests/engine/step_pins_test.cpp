// Kernels and bytes of whole training steps, pinned in both directions: a worse value is a regression, a better one moves the pin.
#include <gtest/gtest.h>

#include "machine/features.h"
#include "runtime/arena.h"
#include "step/step_programs.h"
#include "support/pins.h"
#include "support/steps.h"
#include "tasks/gpt/task.h"

namespace ridge::engine {
namespace {

int kernels_of(const StepModel& model) { return TrainStep(model, {}).plan().kernels; }

TEST(StepPins, KernelsAndBytesMatchThePins) {
  GptConfig bias = small_gpt(), dropout = small_gpt();
  bias.bias = true, dropout.dropout = 0.1;
  StepOptions plain, split;
  plain.clip = split.clip = 1;
  split.precision = Precision::bf16, split.micro = 3, split.recompute = Recompute::layers;
  const struct {
    const char* name;
    StepModel model;
    const StepOptions& options;
  } steps[] = {{"gpt", gpt_model(small_gpt(), 8, 64), plain},
               {"gpt with bias", gpt_model(bias, 8, 64), plain},
               {"gpt with dropout, bf16, micro-batches of 3, layers recomputed", gpt_step_model(dropout, 8), split},
               {"mlp", mlp_model(256), plain},
               {"conv", conv_model(16), plain}};
  std::vector<test::Pin> kernels, bytes;
  for (const auto& [name, model, options] : steps) {
    const StepPlan plan = TrainStep(model, options).plan();
    kernels.push_back({fmt::format("{}: {}", name, plan.kernels), {}});
    bytes.push_back({fmt::format("{}: {}", name, planned_bytes(plan)), {}});
  }
  test::expect_pins("plans/cpu.kernels", kernels);
  // Packing buffers depend on the instruction set.
  if (isa_tier() >= IsaTier::sse4 && isa_tier() <= IsaTier::avx512bf16) test::expect_pins(fmt::format("plans/cpu.bytes.{}", name(isa_tier())), bytes);
}

// Forward: two norms, four matmuls with fused successors, attention. Backward: two matmuls for each of those four, two norms with the sums for their weights,
// attention, and nothing else.
TEST(StepPins, KernelsOfALayer) {
  int counts[3];
  for (int i = 0; i < 3; ++i) {
    GptConfig c = small_gpt();
    c.layers = i + 1;
    counts[i] = kernels_of(gpt_model(c, 8, 64));
  }
  EXPECT_EQ(counts[2] - counts[1], 20);
  EXPECT_EQ(counts[1] - counts[0], counts[2] - counts[1]) << "a layer costs the same wherever it is";
}

// Fusion planning does about the same work per layer, however many layers there are.
TEST(StepPins, PlanningGrowsLinearlyWithTheModel) {
  struct Looks {
    int64_t update, gradient_check, body, accumulating;
  } few{}, many{};
  for (Looks* planning_work : {&few, &many}) {
    GptConfig c = small_gpt();
    c.layers = planning_work == &few ? 24 : 96, c.width = 16, c.heads = 2;
    const StepModel model = gpt_model(c, 2, 8);
    StepOptions options;
    options.clip = 1;
    const StepPrograms programs(model, options);
    planning_work->update = programs.update(std::make_shared<Arena>(default_backend()))->report().planning_work;
    planning_work->gradient_check = programs.gradient_check(std::make_shared<Arena>(default_backend()))->report().planning_work;
    planning_work->body = programs.body(2, false, Recompute::free)->report().planning_work;
    planning_work->accumulating = programs.body(1, true, Recompute::layers)->report().planning_work;
  }
  constexpr double kMax = 4.1;  // times the work, for 4 times the layers
  EXPECT_LE(double(many.update), kMax * double(few.update)) << few.update;
  EXPECT_LE(double(many.gradient_check), kMax * double(few.gradient_check)) << few.gradient_check;
  EXPECT_LE(double(many.body), kMax * double(few.body)) << few.body;
  EXPECT_LE(double(many.accumulating), kMax * double(few.accumulating)) << few.accumulating;
}

// The arena is close to the peak of live memory.
TEST(StepPins, PlanWastesLittle) {
  GptConfig c = small_gpt();
  for (bool bias : {false, true}) {
    c.bias = bias;
    Step step = make_step(gpt_model(c, 8, 64));
    Report r = Training(step, 10).report();
    EXPECT_LE(double(r.arena_bytes), 1.02 * double(r.max_live_bytes));
  }
}

}  // namespace
}  // namespace ridge::engine
