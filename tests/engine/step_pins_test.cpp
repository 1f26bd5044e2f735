// Kernels and bytes of whole training steps, pinned in both directions: a change for the worse is a regression, one for the better
// moves the pin.
#include <gtest/gtest.h>

#include "machine/features.h"
#include "runtime/arena.h"
#include "support/steps.h"
#include "train/step_programs.h"

namespace ridge::engine {
namespace {

struct Pin {
  int kernels;               // launches in a step, update included
  int64_t activation_bytes;  // with kernels' workspace, which depends on the instruction set: AVX-512
};

void expect_pinned(const StepModel& model, const Pin& pin) {
  StepOptions options;
  options.clip = 1;
  TrainStep step(model, options);
  EXPECT_EQ(step.plan().kernels, pin.kernels) << step.report() << step.dump();
  if (has_avx512(isa_tier())) {
    EXPECT_EQ(step.plan().activation_bytes, pin.activation_bytes) << step.report();
  }
}

int kernels_of(const StepModel& model) { return TrainStep(model, {}).plan().kernels; }

TEST(StepPins, Gpt) { expect_pinned(gpt_model(small_gpt(), 8, 64), {96, 18319360}); }

TEST(StepPins, GptWithBias) {
  GptConfig c = small_gpt();
  c.bias = true;
  expect_pinned(gpt_model(c, 8, 64), {112, 18319360});
}

TEST(StepPins, Mlp) { expect_pinned(mlp_model(256), {19, 598016}); }

TEST(StepPins, Conv) { expect_pinned(conv_model(16), {35, 712064}); }

// Forward: two norms, four matmuls with what follows them, attention. Backward: two matmuls for each of those four, two norms with
// the sums for their weights, attention, and nothing else.
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

// Deciding what runs together looks at each layer about as often, however many there are.
TEST(StepPins, PlanningGrowsAsTheModelDoes) {
  struct Looks {
    int64_t update, judgement, body, accumulating;
  } few{}, many{};
  for (Looks* looks : {&few, &many}) {
    GptConfig c = small_gpt();
    c.layers = looks == &few ? 24 : 96, c.width = 16, c.heads = 2;
    const StepModel model = gpt_model(c, 2, 8);
    StepOptions options;
    options.clip = 1;
    const StepPrograms programs(model, options);
    looks->update = programs.update(std::make_shared<Arena>(nullptr))->report().looks;
    looks->judgement = programs.judgement(std::make_shared<Arena>(nullptr))->report().looks;
    looks->body = programs.body(2, false, Recompute::free)->report().looks;
    looks->accumulating = programs.body(1, true, Recompute::layers)->report().looks;
  }
  constexpr double kMost = 4.1;  // times as many, for 4 times the layers
  EXPECT_LE(double(many.update), kMost * double(few.update)) << few.update;
  EXPECT_LE(double(many.judgement), kMost * double(few.judgement)) << few.judgement;
  EXPECT_LE(double(many.body), kMost * double(few.body)) << few.body;
  EXPECT_LE(double(many.accumulating), kMost * double(few.accumulating)) << few.accumulating;
}

// The arena is planned close to what must be live at once.
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
