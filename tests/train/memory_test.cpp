// Memory is planned, not discovered: the memory that the system reports for a step matches its plan.
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "backend/registry.h"
#include "config/config.h"
#include "machine/memory_budget.h"
#include "step/train_step.h"
#include "support/sanitized.h"
#include "threads/thread_team.h"
#include "train/run_planner.h"

namespace ridge {
namespace {

constexpr int64_t kWideBatch = 64, kWideWidth = 4096, kMegabyte = 1 << 20;

StepModel wide_model(int64_t width) {
  StepModel model;
  model.parameters = {{.name = "up", .shape = {width, width}}, {.name = "down", .shape = {width, 16}}};
  model.batch = {{DType::f32, {kWideBatch, width}}, {DType::i64, {kWideBatch}}};
  model.loss = [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) {
    return b.cross_entropy(b.matmul(b.unary(Op::tanh, b.matmul(in[0], p[0])), p[1]), in[1], std::nullopt);
  };
  return model;
}

// With `touch` all memory is resident before the first step. Scratch counts every thread, however many there are.
class PlannedMemory : public ::testing::TestWithParam<std::tuple<bool, int>> {};

TEST_P(PlannedMemory, MatchesResidentMemory) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  std::vector<float> x(size_t(kWideBatch * kWideWidth), 0.1f);
  std::vector<int64_t> targets(size_t(kWideBatch), 3);
  const void* batch[] = {x.data(), targets.data()};
  const auto [touch, threads] = GetParam();
  ThreadTeam team({.threads = threads});
  const std::unique_ptr<Backend> backend = cpu_backend(team);
  StepOptions options;
  options.backend = backend.get();
  TrainStep small(wide_model(kWideWidth / 16), options);  // its kernels' code becomes resident, which is not part of a step's plan
  small.run(batch), small.evaluate(batch, kWideBatch);
  TrainStep step(wide_model(kWideWidth), options);
  const int64_t before = resident_bytes(), planned = step.plan().planned_bytes;
  ASSERT_GT(planned, 256 * kMegabyte);
  if (touch)
    step.touch();
  else
    step.run(batch);
  const int64_t first = resident_bytes();
  step.run(batch), step.evaluate(batch, kWideBatch);
  const double taken = double(first - before) / double(planned);
  EXPECT_GE(taken, 0.97) << first - before << " bytes taken, " << planned << " planned";
  EXPECT_LE(taken, 1.0 + 1.0 * kMegabyte / double(planned)) << "a page here and there, no more";
  EXPECT_LE(resident_bytes() - first, kMegabyte) << "neither the next step nor validation takes anything";
}
INSTANTIATE_TEST_SUITE_P(Touched, PlannedMemory, ::testing::Combine(::testing::Bool(), ::testing::Values(2, 16)));

// Programs that take more memory than was assumed make the step smaller: the plan stays within the budget.
TEST(MemoryPlan, StaysWithinTheBudget) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  config::Sources none;
  none.working_folder.reset(), none.task = config::kProgram;
  config::Resolved settings = config::resolve(none);
  default_team();
  settings.replace("memory", std::to_string(resident_bytes() + 200 * kMegabyte), "test");
  PlannedRun run;
  RunOptions options;
  options.measure = false;
  RunPlanner planner(settings, options, run);
  planner.use_device({std::shared_ptr<void>(), &default_backend()}, {"device", "cpu", "test"});
  StepModel model;
  model.parameters = {{.name = "w", .shape = {4, 4096}}};
  model.batch = {{DType::f32, {8192, 4}}, {DType::i64, {8192}}};
  model.loss = [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) {
    return b.cross_entropy(b.unary(Op::tanh, b.matmul(in[0], p[0])), in[1]);
  };
  std::unique_ptr<TrainStep> step;
  std::vector<std::byte> program;
  std::vector<int64_t> given;
  RunNeeds needs{.task = "test", .batch = 8192};
  needs.make_step = [&](const StepOptions& o) {
    step = std::make_unique<TrainStep>(model, o), given.push_back(o.memory);
    program.resize(size_t(150 * kMegabyte), std::byte(1));
    return step.get();
  };
  planner.plan(needs);
  EXPECT_EQ(given.size(), 2u);
  EXPECT_LE(run.planned_bytes - run.passed_bytes, run.budget.bytes);
  EXPECT_LT(given.back(), 50 * kMegabyte);
}

}  // namespace
}  // namespace ridge
