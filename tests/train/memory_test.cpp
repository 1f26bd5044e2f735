// Memory is planned, not discovered: what the system says a step has taken is what its plan says.
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "machine/memory_budget.h"
#include "runtime/thread_team.h"
#include "train/step.h"

namespace ridge {
namespace {

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep books of their own, page for page
constexpr int64_t kBatch = 64, kWidth = 4096, kMiB = 1 << 20;

StepModel wide_model() {
  StepModel model;
  model.parameters = {{.name = "up", .shape = {kWidth, kWidth}}, {.name = "down", .shape = {kWidth, 16}}};
  model.batch = {{DType::f32, {kBatch, kWidth}}, {DType::i64, {kBatch}}};
  model.loss = [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) {
    return b.cross_entropy(b.matmul(b.unary(Op::tanh, b.matmul(in[0], p[0])), p[1]), in[1], std::nullopt);
  };
  return model;
}

// With `touch` all of it is there before the first step. Scratch is counted for every thread, however many there are.
class PlannedMemory : public ::testing::TestWithParam<std::tuple<bool, int>> {};

TEST_P(PlannedMemory, IsWhatTheSystemCounts) {
  std::vector<float> x(size_t(kBatch * kWidth), 0.1f);
  std::vector<int64_t> targets(size_t(kBatch), 3);
  const void* batch[] = {x.data(), targets.data()};
  const auto [touch, threads] = GetParam();
  ThreadTeam team({.threads = threads});
  StepOptions options;
  options.team = &team;
  TrainStep step(wide_model(), options);
  const int64_t before = resident_bytes(), planned = step.plan().planned_bytes;
  ASSERT_GT(planned, 256 * kMiB);
  if (touch)
    step.touch();
  else
    step.run(batch);
  const int64_t first = resident_bytes();
  step.run(batch), step.evaluate(batch, kBatch);
  const double taken = double(first - before) / double(planned);
  EXPECT_GE(taken, 0.97) << first - before << " bytes taken, " << planned << " planned";
  EXPECT_LE(taken, 1.0 + 1.0 * kMiB / double(planned)) << "a page here and there, no more";
  EXPECT_LE(resident_bytes() - first, kMiB) << "neither the next step nor validation takes anything";
}
INSTANTIATE_TEST_SUITE_P(Touched, PlannedMemory, ::testing::Combine(::testing::Bool(), ::testing::Values(2, 16)));
#endif

}  // namespace
}  // namespace ridge
