// Laws of replaying a compiled training step.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "backend/registry.h"
#include "ridge/ridge.h"
#include "support/allocations.h"
#include "support/steps.h"
#include "threads/thread_team.h"

namespace ridge::engine {
namespace {

float scheduled(int step, int steps, float top) {
  return step < 5 ? top * float(step + 1) / 5 : top * 0.5f * (1 + std::cos(float(M_PI) * float(step) / float(steps)));
}

TEST(Allocations, AreCounted) {
  test::count_allocations();
  std::vector<int>* volatile p = new std::vector<int>(100);  // volatile, because the compiler may elide a pair of new and delete
  int* volatile q = p->data();
  int64_t n = test::allocations_counted();
  EXPECT_EQ(q[99], 0);
  delete p;
  EXPECT_EQ(n, 2);
  EXPECT_EQ(test::allocations_counted(), 2) << "counting has stopped";
}

// Everything that a schedule changes is an input: one compiled program serves fifty steps, none of which builds or allocates anything.
TEST(Replay, FiftyScheduledStepsCompileOnceAndAllocateNothing) {
  GptConfig c = small_gpt();
  c.layers = 2, c.width = 32, c.vocab = 37;
  Step step = make_step(gpt_model(c, 4, 16));
  Training training(step, c.vocab);
  float losses[50];
  training.run(0);  // threads start
  test::count_allocations();
  for (int i = 0; i < 50; ++i) losses[i] = training.run(scheduled(i, 50, 1e-2f));
  EXPECT_EQ(test::allocations_counted(), 0);
  EXPECT_NEAR(losses[0], std::log(float(c.vocab)), 0.3f) << "an untrained model knows nothing";
  EXPECT_LT(losses[49], 0.5f * losses[0]) << "a batch seen fifty times is learnt";
  EXPECT_EQ(training.applied(), 51);
}

TEST(Replay, OtherStepsAllocateNothing) {
  Step mlp = make_step(mlp_model(33)), conv = make_step(conv_model(5));
  for (const Step* step : {&mlp, &conv}) {
    Training training(*step, 10);
    float first = training.run(0);
    test::count_allocations();
    float last = 0;
    for (int i = 0; i < 30; ++i) last = training.run(3e-3f);
    EXPECT_EQ(test::allocations_counted(), 0);
    EXPECT_LT(last, 0.7f * first);
  }
}

// The step as trainers run it, whole and in micro-batches with a remainder, with dropout, and with validation between steps.
TEST(Replay, TrainStepAllocatesNothing) {
  GptConfig c = small_gpt();
  c.layers = 1, c.width = 32, c.dropout = 0.1;
  StepModel model = gpt_model(c, 8, 16);
  std::vector<int64_t> tokens(8 * 16);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int64_t(i * 7 % size_t(c.vocab));
  const void* batch[] = {tokens.data(), tokens.data()};
  for (Precision precision : {Precision::fp32, Precision::fp16})
    for (int64_t micro : {0, 4, 3}) {
      StepOptions options;
      options.micro = micro, options.clip = 1, options.precision = precision;
      TrainStep step(model, options);
      for (size_t i = 0; i < model.parameters.size(); ++i) initialize(model.parameters[i], 1, uint32_t(i), step.parameter(i));
      step.touch();
      step.run(batch), step.evaluate(batch, 8);
      test::count_allocations();
      for (int i = 0; i < 5; ++i) step.run(batch, scheduled(i, 5, 1e-3f)), step.evaluate(batch, 8 - i);
      EXPECT_EQ(test::allocations_counted(), 0) << "micro-batches of " << micro << ", " << name(precision);
    }
}

// A user's step, too, even if expressions used its weights before and others are pending.
TEST(Replay, CompiledStepAllocatesNothing) {
  struct Model {
    Linear layer{4, 2};
    void visit(Visitor& v) { v("layer", layer); }
  } model;
  CompiledStep step = ridge::step(model, sgd(), [&](Tensor x, Tensor t) { return mse(model.layer(x), t); }).compile({{{3, 4}}, {{3, 2}}});
  const std::vector<Tensor> batch = {Tensor::zeros({3, 4}), Tensor::zeros({3, 2})};
  const Tensor unrelated = batch[0] * 2;
  step.run(batch);
  model.layer(batch[0]).eval();
  test::count_allocations();
  for (int i = 0; i < 5; ++i) step.run(batch);
  EXPECT_EQ(test::allocations_counted(), 0);
}

// A rate of zero changes only the moments, so the loss repeats bit for bit.
TEST(Replay, RunToRunSameBits) {
  GptConfig c = small_gpt();
  c.layers = 1, c.width = 32;
  Step step = make_step(gpt_model(c, 3, 16));
  Training a(step, c.vocab), b(step, c.vocab);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(a.run(1e-3f), b.run(1e-3f));
  EXPECT_EQ(a.state(), b.state());
  Training still(step, c.vocab);
  EXPECT_EQ(still.run(0), still.run(0));
}

// Bits depend on the program and the instruction set, never on the number of threads.
TEST(Replay, ThreadCountDoesNotChangeBits) {
  GptConfig c = small_gpt();
  c.layers = 2, c.bias = true;
  Step gpt = make_step(gpt_model(c, 5, 33)), mlp = make_step(mlp_model(67)), conv = make_step(conv_model(7));
  for (const Step* step : {&gpt, &mlp, &conv}) {
    std::vector<std::vector<std::byte>> first;
    for (int threads : {1, 2, 3, 4}) {
      ThreadTeam team({.threads = threads});
      const std::unique_ptr<Backend> backend = cpu_backend(team);
      Training training(*step, 10, *backend);
      for (int i = 0; i < 3; ++i) training.run(1e-2f);
      if (first.empty()) first = training.state();
      EXPECT_EQ(training.state(), first) << threads << " threads";
    }
  }
}

// Each pass can be switched off; results agree up to rounding. Memory planning does not change the order of sums, so without it the bits agree too.
TEST(Replay, PassesOnAndOffAgree) {
  GptConfig c = small_gpt();
  c.layers = 2, c.width = 32, c.vocab = 37;
  Step gpt = make_step(gpt_model(c, 3, 17)), mlp = make_step(mlp_model(19)), conv = make_step(conv_model(3));
  for (const Step* step : {&gpt, &mlp, &conv}) {
    Training whole(*step, 10);
    std::vector<float> losses;
    for (int i = 0; i < 4; ++i) losses.push_back(whole.run(1e-2f));
    for (std::string off : {"-plan", "-place", "-fuse", "-simplify", "-fuse,-simplify,-plan,-place"}) {
      CompileOptions options(default_backend());
      options.passes = off;
      Training other(*step, 10, options);
      for (float loss : losses) {
        bool same_sums = off == "-plan" || off == "-place";
        EXPECT_NEAR(other.run(1e-2f), loss, same_sums ? 0 : 2e-5f * std::abs(loss)) << off;
      }
      if (off == "-plan") {
        EXPECT_EQ(other.state(), whole.state());
        EXPECT_GT(other.report().arena_bytes, whole.report().arena_bytes);
      }
    }
  }
}

// A step whose gradient is not finite stores nothing, and the next one continues as if it had never happened.
TEST(Replay, ANonFiniteStepStoresNothing) {
  Step step = make_step(mlp_model(33));
  Training training(step, 10), undisturbed(step, 10);
  for (int i = 0; i < 2; ++i) training.run(1e-3f), undisturbed.run(1e-3f);
  auto before = training.state();
  for (float bad : {NAN, INFINITY, -INFINITY}) {
    float& x = training.data(0)[5];
    float old = std::exchange(x, bad);
    training.run(1e-3f);
    EXPECT_FALSE(std::isfinite(training.norm()));
    EXPECT_EQ(training.state(), before);
    EXPECT_EQ(training.applied(), 2);
    x = old;
  }
  EXPECT_EQ(training.run(1e-3f), undisturbed.run(1e-3f));
  EXPECT_EQ(training.state(), undisturbed.state());
}

}  // namespace
}  // namespace ridge::engine
