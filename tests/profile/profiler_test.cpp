#include "ridge/profiler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <numeric>

#include "backend/kernel_log.h"
#include "backend/kernel_work.h"
#include "backend/registry.h"
#include "compile/pipeline.h"
#include "graph/builder.h"
#include "profile/step_profile.h"
#include "ridge/error.h"
#include "step/train_step.h"
#include "support/allocations.h"
#include "support/task_test.h"
#include "threads/thread_team.h"
#include "train/run_profile.h"

namespace ridge {
namespace {

constexpr int64_t kRows = 32, kWidth = 24, kHidden = 40;

// Two linear layers with a relu between them.
StepModel two_layers() {
  StepModel model;
  model.parameters = {{"net.up.weight", {kHidden, kWidth}, 0, 0.1}, {"net.down.weight", {kWidth, kHidden}, 0, 0.1}};
  model.batch = {{DType::f32, {kRows, kWidth}}};
  model.loss = [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) {
    const NodeId y = b.linear(b.unary(Op::relu, b.linear(in[0], p[0])), p[1]);
    const int64_t axes[] = {0, 1};
    return StepLoss(Builder::SumCount{b.sum(b.mul(y, y), axes), b.literal(DType::f32, double(kRows))});
  };
  return model;
}

class ProfilerTest : public ::testing::Test {
 protected:
  ProfilerTest() : step_(two_layers(), options()) {
    for (size_t i = 0; i < 2; ++i) step_.fill_parameter(i, [](std::span<float> to) { std::fill(to.begin(), to.end(), 0.01f); });
  }
  StepOptions options() {
    StepOptions o;
    o.backend = backend_.get(), o.evaluation = false;
    return o;
  }
  void run() { step_.run(batch_); }

  ThreadTeam team_{{.threads = 2}};
  std::unique_ptr<Backend> backend_ = cpu_backend(team_);
  TrainStep step_;
  std::vector<float> values_ = std::vector<float>(size_t(kRows * kWidth), 1.0f);
  const void* batch_[1] = {values_.data()};
};

TEST_F(ProfilerTest, CountsEveryKernelOnceWithItsWork) {
  Profiler profiler;
  for (int i = 0; i < 6; ++i) profiler.begin_step(i % 2 == 1), run();
  profiler.end();
  const StepProfile& p = profiler.profile();
  EXPECT_EQ(p.recorded, 3);
  EXPECT_EQ(p.unprofiled, 3);
  EXPECT_EQ(p.threads, 2);
  double calls = 0, flops = 0, bytes = 0, seconds = 0;
  for (const KernelRow& k : p.kernels) calls += k.calls, flops += k.flops, bytes += k.bytes, seconds += k.seconds;
  double count = 0, known_flops = 0, known_bytes = 0;
  for (const auto& [kernel, times] : step_.kernels())
    count += double(times), known_flops += kernel.flops * double(times), known_bytes += kernel.bytes * double(times);
  EXPECT_EQ(calls, count);
  EXPECT_DOUBLE_EQ(flops, known_flops);
  EXPECT_DOUBLE_EQ(bytes, known_bytes);
  EXPECT_NEAR(seconds, p.kernel_seconds, 1e-9);
  EXPECT_NEAR(p.kernel_seconds + p.gap_seconds + p.data_seconds + p.unattributed(), p.step_seconds, 1e-12);
  EXPECT_LE(p.kernel_seconds, p.recorded_seconds * 3);
  EXPECT_EQ(p.spans.size(), size_t(count));
  // Two products forward, and of the three backward none for the batch: 2 * rows * width * hidden each.
  double products = 0;
  for (const KernelRow& k : p.kernels)
    if (k.name.starts_with("matmul")) products += k.calls;
  EXPECT_EQ(products, 5);
}

TEST_F(ProfilerTest, NamesLayersAndPhases) {
  Profiler profiler;
  profiler.begin_step(), run();
  profiler.end();
  std::map<std::pair<std::string, std::string>, int> products;
  for (const KernelRow& k : profiler.profile().kernels) {
    EXPECT_FALSE(k.phase.empty());
    if (k.name.starts_with("matmul")) products[{k.phase, k.layer}] += int(k.calls);
  }
  const std::map<std::pair<std::string, std::string>, int> expected = {
      {{"forward", "net.up"}, 1}, {{"forward", "net.down"}, 1}, {{"backward", "net.up"}, 1}, {{"backward", "net.down"}, 2}};
  EXPECT_EQ(products, expected);
  bool updates = false;
  for (const PhaseRow& phase : profiler.profile().phases) updates |= phase.name == "update";
  EXPECT_TRUE(updates);
}

TEST_F(ProfilerTest, ChangesNoBits) {
  run();
  std::vector<float> before(step_.parameter(0).begin(), step_.parameter(0).end());
  TrainStep other(two_layers(), options());
  for (size_t i = 0; i < 2; ++i) other.fill_parameter(i, [](std::span<float> to) { std::fill(to.begin(), to.end(), 0.01f); });
  Profiler profiler;
  profiler.begin_step(), other.run(batch_);
  profiler.end();
  EXPECT_TRUE(std::equal(before.begin(), before.end(), other.parameter(0).begin()));
}

TEST_F(ProfilerTest, RecordsNothingWhenOff) {
  EXPECT_EQ(current_log(), nullptr);
  Profiler profiler;
  profiler.begin_step(false);
  EXPECT_EQ(current_log(), nullptr);
  run();
  profiler.end();
  EXPECT_TRUE(profiler.profile().kernels.empty());
  {
    Profiler second;
    second.begin_step();
    EXPECT_THROW(profiler.begin_step(), Error);
  }
  EXPECT_EQ(current_log(), nullptr);
}

// Without a profiler, and in the steps that it uses as the yardstick, a step reads no clock and allocates nothing.
TEST_F(ProfilerTest, CostsNothingWhenOff) {
  run(), run();
  Profiler profiler;
  for (const bool sampled : {false, true}) {
    if (sampled) profiler.begin_step(false);
    const int64_t reads = log_time_reads;
    test::count_allocations();
    run();
    EXPECT_EQ(test::allocations_counted(), 0) << sampled;
    EXPECT_EQ(log_time_reads, reads) << sampled;
  }
  profiler.begin_step();
  const int64_t reads = log_time_reads;
  run();
  int64_t kernels = 0;
  for (const auto& [kernel, times] : step_.kernels()) kernels += times;
  EXPECT_EQ(log_time_reads - reads, 2 * kernels + 2 * 2) << "two for each kernel, and two for each of the two programs";
  profiler.end();
}

// A few disturbed steps are not in the figures, which stay sums of what was measured.
TEST_F(ProfilerTest, FiguresAreOfTypicalSteps) {
  Profiler profiler;
  for (int i = 0; i < 12; ++i) {
    profiler.begin_step(), run();
    for (int extra = 0; extra < (i % 6 == 0 ? 20 : 0); ++extra) run();
  }
  profiler.end();
  const StepProfile& p = profiler.profile();
  double calls = 0, in_phases = 0, count = 0;
  for (const KernelRow& k : p.kernels) calls += k.calls;
  for (const PhaseRow& phase : p.phases) in_phases += phase.calls;
  for (const auto& [kernel, times] : step_.kernels()) count += double(times);
  EXPECT_EQ(p.recorded, 12);
  EXPECT_NEAR(calls, count, 1e-9) << "two steps of twelve ran 21 times";
  EXPECT_NEAR(in_phases, count, 1e-9);
  EXPECT_EQ(p.spans.size(), size_t(count));
}

// Next to other programs recorded steps may take longer than the unprofiled ones that shares are of: said, and never a core that is busy for 130 %.
TEST_F(ProfilerTest, NoCoreIsBusyForLongerThanItsStep) {
  Profiler profiler;
  for (int i = 0; i < 10; ++i) {
    profiler.begin_step(i % 2 == 1);
    for (int times = 0; times < (i % 2 == 1 ? 12 : 1); ++times) run();
  }
  profiler.end();
  const StepProfile& p = profiler.profile();
  EXPECT_GT(p.recorded_seconds, p.step_seconds);
  for (const double share : p.busy) EXPECT_LE(share, 1);
  EXPECT_LE(p.utilization(), 1);
  EXPECT_NE(profile_text(p, 3).find("recorded steps took longer than unprofiled ones"), std::string::npos) << profile_text(p, 3);
  EXPECT_TRUE(nlohmann::json::parse(profile_json(p)).contains("remark"));
}

TEST(Profiled, AStepAboveItsRoofIsExplained) {
  StepProfile p;
  p.step_seconds = 1, p.kernel_seconds = 0.9, p.flops_rate = 1, p.bytes_rate = 1;
  p.kernels.push_back({.name = "map", .layer = "", .phase = "forward", .calls = 1, .seconds = 0.9, .roof = 1.0, .bound = "memory"});
  EXPECT_EQ(p.remark(), "");
  p.kernels[0].roof = 1.3;
  EXPECT_TRUE(p.remark().ends_with("these are too low: ridge probe measures them again")) << p.remark();
  EXPECT_NE(profile_text(p, 3).find("note: the step is faster than the measured ceilings allow"), std::string::npos) << profile_text(p, 3);
}

TEST_F(ProfilerTest, ExaminesStepsOverTime) {
  Profiler profiler;
  profiler.begin_step(Profiler::Record::values), run();
  profiler.begin_step(), run();
  step_.parameter(0)[0] = 1000;  // of net.up
  profiler.begin_step(Profiler::Record::values), run();
  profiler.end();
  const std::vector<ExaminedStep>& examined = profiler.profile().examined;
  ASSERT_EQ(examined.size(), 2u);
  EXPECT_EQ(examined[0].step, 0);
  EXPECT_EQ(examined[1].step, 2);
  auto layer = [](const ExaminedStep& e, const char* name) {
    return *std::find_if(e.layers.begin(), e.layers.end(), [&](const LayerRange& l) { return l.layer == name; });
  };
  EXPECT_LT(layer(examined[0], "net.up").high, 1);
  EXPECT_GT(layer(examined[1], "net.up").high, 900);
  EXPECT_GT(layer(examined[1], "net.down").gradient_norm, 100 * layer(examined[0], "net.down").gradient_norm);
  const auto json = nlohmann::json::parse(profiler.json());
  EXPECT_EQ(json.at("stability").at("over_time").at(1).at("step"), 2);
  EXPECT_NE(profiler.text().find("in step 0"), std::string::npos) << profiler.text();
  // Pictures of many kernels have a readable part.
  Profiler longer;
  longer.begin_step();
  for (int i = 0; i < 40; ++i) run();
  longer.end();
  EXPECT_NE(longer.timeline_picture().find("marked above: 100 kernels"), std::string::npos);
}

TEST_F(ProfilerTest, FindsTheFirstValueThatIsNotFinite) {
  Profiler profiler;
  profiler.begin_step(Profiler::Record::values), run();
  profiler.end();
  for (const ValueRange& r : profiler.profile().ranges) EXPECT_EQ(r.bad, 0) << r.tensor;
  ASSERT_EQ(profiler.profile().gradients.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const std::span<float> own = step_.gradient(i);
    const double squares = std::inner_product(own.begin(), own.end(), own.begin(), 0.0);
    const auto& norms = profiler.profile().gradients;
    const auto norm = std::find_if(norms.begin(), norms.end(), [&](const GradientNorm& g) { return g.parameter == step_.model().parameters[i].name; });
    ASSERT_NE(norm, norms.end());
    EXPECT_NEAR(norm->norm, std::sqrt(squares), 1e-4 * norm->norm);
  }
  step_.parameter(1)[0] = std::numeric_limits<float>::infinity();  // of net.down
  profiler.begin_step(Profiler::Record::values), run();
  profiler.end();
  const auto& ranges = profiler.profile().ranges;
  const auto bad = std::find_if(ranges.begin(), ranges.end(), [](const ValueRange& r) { return r.bad > 0; });
  ASSERT_NE(bad, ranges.end());
  EXPECT_EQ(bad->layer, "net.down");
  EXPECT_EQ(bad->phase, "forward");
}

// A head over more classes than there are, as with a padded vocabulary: −∞ there is intended, anywhere else it is not.
TEST_F(ProfilerTest, MaskedEntriesAreNotFaults) {
  constexpr int64_t kClasses = 40, kPadded = 64;
  StepModel model;
  model.parameters = {{"head.weight", {kPadded, kWidth}, 0, 0.1}};
  model.batch = {{DType::f32, {kRows, kWidth}}};
  model.loss = [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) {
    const NodeId logits = b.linear(in[0], p[0]), real = b.binary(Op::less, b.iota(b.shape(logits), -1, DType::i32), double(kClasses));
    const NodeId target = b.iota({kRows}, 0, DType::i32);
    return StepLoss(b.cross_entropy(b.select(real, logits, b.like(logits, -INFINITY)), target));
  };
  TrainStep step(model, options());
  step.fill_parameter(0, [](std::span<float> to) { std::fill(to.begin(), to.end(), 0.01f); });
  Profiler profiler;
  auto bad = [&] {
    profiler.begin_step(Profiler::Record::values), step.run(batch_);
    profiler.end();
    const auto& ranges = profiler.profile().ranges;
    return std::accumulate(ranges.begin(), ranges.end(), int64_t(0), [](int64_t sum, const ValueRange& r) { return sum + r.bad; });
  };
  EXPECT_EQ(bad(), 0) << profiler.text();
  EXPECT_NE(profiler.text().find("are finite"), std::string::npos);
  step.parameter(0)[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_GE(bad(), kRows);
}

// Programs of one step may run with teams of different sizes: a tuned step, and what reads its weights.
TEST_F(ProfilerTest, AddsUpTeamsOfDifferentSizes) {
  ThreadTeam single{{.threads = 1}};
  const std::unique_ptr<Backend> backend = cpu_backend(single);
  StepOptions o = options();
  o.backend = backend.get();
  TrainStep narrow(two_layers(), o);
  for (const bool narrow_first : {false, true}) {
    Profiler profiler;
    profiler.begin_step();
    if (narrow_first) narrow.run(batch_);
    run();
    if (!narrow_first) narrow.run(batch_);
    profiler.end();
    const StepProfile& p = profiler.profile();
    EXPECT_EQ(p.threads, 2);
    ASSERT_EQ(p.busy.size(), 2u);
    double inside[2] = {}, alone = 0;
    const size_t half = p.spans.size() / 2;
    for (size_t i = 0; i < p.spans.size(); ++i) {
      const KernelSpan& s = p.spans[i];
      ASSERT_EQ(s.busy.size(), 2u);
      for (size_t t = 0; t < 2; ++t) inside[t] += s.busy[t];
      if ((i < half) == narrow_first) alone += s.busy[1];
    }
    EXPECT_EQ(alone, 0) << "a team of one has no second thread";
    for (size_t t = 0; t < 2; ++t) EXPECT_NEAR(p.busy[t] * p.step_seconds, inside[t], 1e-12);
  }
}

// What a log would see of a program whose kernels take a second each.
void log_second(const Program& program) {
  const size_t kernels = program.kernels.size();
  current_log()->add({&program, {0, 1}, std::vector(kernels, LoggedRun::Span{0, 1}), 1, std::vector(kernels, 1.0), 1});
}

Program elementwise(int64_t size) {
  Graph graph;
  Builder b(graph);
  const NodeId x = graph.input({DType::f32, {size}}, "x"), y = b.unary(Op::exp, x);
  return compile_graph(graph, std::span(&x, 1), std::span(&y, 1));
}

TEST(Profiled, ProgramsAreKnownByMoreThanTheirAddress) {
  Program program = elementwise(64);
  Profiler profiler;
  profiler.begin_step(), log_second(program);
  program = elementwise(4096);  // at the same address
  log_second(program);
  profiler.end();
  EXPECT_EQ(profiler.profile().bytes, 2 * 4 * (64 + 4096));
}

TEST(Profiled, TheRoofOfAttentionIncludesItsExponentials) {
  constexpr int64_t kBatch = 2, kHeads = 3, kLength = 16, kSize = 8;
  Graph graph;
  Builder b(graph);
  const Type type{DType::f32, {kBatch, kHeads, kLength, kSize}};
  const NodeId in[] = {graph.input(type, "q"), graph.input(type, "k"), graph.input(type, "v")}, out = b.attention(in[0], in[1], in[2], {.causal = true});
  const Program program = compile_graph(graph, in, std::span(&out, 1));
  const double scores = double(kBatch * kHeads * kLength * kLength) / 2;
  double counted = 0;
  for (const ProgramKernel& kernel : program.kernels) counted += work_of(program, kernel).exponentials;
  EXPECT_EQ(counted, scores);
  Profiler profiler;
  profiler.set_roof(1e15, 1e15, 4 * scores);
  profiler.begin_step(), log_second(program);
  profiler.end();
  double roof = 0;
  for (const KernelRow& k : profiler.profile().kernels)
    if (k.name == "attention") roof = k.roof;
  EXPECT_NEAR(roof, 0.25, 1e-6);
}

TEST(Profiled, KindsOfKernelsAreSummedAndMarkedBelowTheirRoof) {
  StepProfile p;
  p.step_seconds = 1;
  auto add = [&](const char* name, const char* layer, double seconds, double roof) {
    p.kernels.push_back({.name = name, .layer = layer, .phase = "forward", .calls = 1, .seconds = seconds, .roof = roof, .bound = "memory"});
  };
  add("matmul+2", "h.0", 0.3, 0.9), add("row[5]", "h.0", 0.06, 0.5), add("map[3]", "h.0", 0.04, 0.1), add("matmul", "h.1", 0.1, 0.5);
  const std::vector<KindRow> kinds = p.kinds();
  ASSERT_EQ(kinds.size(), 3u);
  EXPECT_EQ(kinds[0].kind, "matmul");
  EXPECT_EQ(kinds[0].calls, 2);
  EXPECT_NEAR(kinds[0].seconds, 0.4, 1e-12);
  EXPECT_NEAR(kinds[0].roof, 0.8, 1e-12);
  std::vector<bool> low;
  const auto json = nlohmann::json::parse(profile_json(p));
  for (const auto& kind : json.at("kinds")) low.push_back(kind.at("low"));
  EXPECT_EQ(low, (std::vector{false, true, false})) << "products reach 80 %, and maps take less than 5 % of the step";
  EXPECT_NE(profile_text(p, 5).find("row; below 60 % of its roof"), std::string::npos);
}

class ProfiledRun : public test::TaskTest {
 protected:
  ProfiledRun() : TaskTest("cfc") {}
};

TEST_F(ProfiledRun, RecordsAfterTheWarmUpAndLeavesTheRunAsItWas) {
  const config::Resolved s = settings({"preset=sine", "length=8", "units=6", "backbone_units=6", "batch=8"});
  RunOptions o;
  o.measure = false;
  const std::unique_ptr<TaskRun> run = start_run(find_task("cfc"), s, o);
  run->threads = 1;
  int64_t entered = 0;
  run->trainer.before = [&](Phase phase, int64_t) { entered += phase == Phase::data; };
  StepProfile p;
  profile_run(*run, s, 3, [&](Profiler& profiler) { p = profiler.profile(); });
  EXPECT_EQ(p.recorded, 3);
  EXPECT_EQ(p.unprofiled, 3);
  EXPECT_EQ(p.examined.size(), 2u) << "the first and the last";
  EXPECT_EQ(entered, RunProfiler::kWarmUp + 3 + 3 + 2);
  EXPECT_NE(p.title.find("1 thread,"), std::string::npos) << p.title;
  ASSERT_TRUE(run->trainer.before);
  run->trainer.before(Phase::data, 0);
  EXPECT_EQ(entered, RunProfiler::kWarmUp + 3 + 3 + 3);
}

TEST_F(ProfiledRun, EndsWithASignalAndItsStepsSoFar) {
  const config::Resolved s = settings({"preset=sine", "length=8", "units=6", "backbone_units=6", "batch=8"});
  RunOptions o;
  o.measure = false;
  const std::unique_ptr<TaskRun> run = start_run(find_task("cfc"), s, o);
  run->threads = 1;
  int64_t entered = 0, recorded = 0;
  run->trainer.before = [&](Phase phase, int64_t) {
    if (phase == Phase::data && ++entered == RunProfiler::kWarmUp + 9) std::raise(SIGTERM);
  };
  EXPECT_EQ(profile_run(*run, s, 1000, [&](Profiler& profiler) { recorded = profiler.profile().recorded; }), Outcome::End::terminated);
  EXPECT_GT(recorded, 0);
  EXPECT_LT(recorded, 10);
}

TEST_F(ProfilerTest, TraceAndJsonAreValid) {
  Profiler profiler;
  profiler.set_roof(1e10, 1e10);
  profiler.begin_step(), run();
  profiler.end();
  const auto trace = nlohmann::json::parse(profiler.trace());
  size_t spans = 0;
  for (const auto& event : trace.at("traceEvents"))
    if (event.at("ph") == "X") {
      ++spans;
      EXPECT_GE(event.at("ts").get<double>(), 0);
      EXPECT_GE(event.at("dur").get<double>(), 0);
      EXPECT_LT(event.at("tid").get<int>(), 2);
    }
  EXPECT_GE(spans, profiler.profile().spans.size() / 2);
  const auto json = nlohmann::json::parse(profiler.json());
  EXPECT_EQ(json.at("kernels").size(), profiler.profile().kernels.size());
  for (const std::string& picture : {profiler.roofline_picture(), profiler.memory_picture(), profiler.timeline_picture()}) {
    EXPECT_TRUE(picture.find("<svg") != std::string::npos && picture.find("</svg>") != std::string::npos);
    EXPECT_EQ(picture.find("nan"), std::string::npos);
  }
  const std::string same = compare_profiles(profiler.profile(), profiler.json(), 100);
  EXPECT_EQ(same.find("new"), std::string::npos) << same;
  EXPECT_EQ(same.find("gone"), std::string::npos) << same;
  EXPECT_THROW(compare_profiles(profiler.profile(), "[1]", 10), Error);
}

TEST(ProfileChecks, CompareMeasuredWithAsked) {
  StepProfile p;
  p.step_seconds = 0.5, p.flops = 1e12, p.bytes = 4e9, p.busy = {1, 0.5}, p.process_bytes = int64_t(1) << 30;
  for (const char* kept : {"min_tflops=2", "min_bandwidth=8", "min_utilization=0.75", "max_memory=1GiB"}) EXPECT_TRUE(check_profile(p, {kept}).kept) << kept;
  for (const char* missed : {"min_tflops=2.01", "min_bandwidth=8.1", "min_utilization=0.76", "max_memory=1023MiB"})
    EXPECT_FALSE(check_profile(p, {missed}).kept) << missed;
  EXPECT_FALSE(check_profile(p, {"min_tflops=1", "max_memory=1MiB"}).kept);
  for (const char* wrong : {"min_flops=1", "min_tflops", "min_tflops=x", "max_memory=much", "min_tflops=-1"})
    EXPECT_THROW(check_profile(p, {wrong}), Error) << wrong;
}

}  // namespace
}  // namespace ridge
