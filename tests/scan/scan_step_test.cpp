// Training steps with a loop over time: split batches, budgets and switched-off passes give the same losses and gradients.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "scan/bodies.h"
#include "step/train_step.h"

namespace ridge::test {
namespace {

constexpr int64_t kBatch = 12, kInputs = 3, kWidth = 8, kClasses = 5;

// Batch: x [samples, time, inputs], class [samples]. A loop over time, then a layer on the last state or on every state.
StepModel sequence_model(const Cell& cell, int64_t steps, bool every_step, double dropout = 0) {
  LoopSize size{.steps = steps, .batch = kBatch, .inputs = kInputs, .width = kWidth};
  StepModel m;
  for (const Shape& s : cell.weights(size)) m.parameters.push_back({"w" + std::to_string(m.parameters.size()), s, 0, 0.3, true});
  int64_t width = std::string(cell.name) == "cfc" && every_step ? 2 : kWidth;
  m.parameters.push_back({"out", {kClasses, width}, 0, 0.3, true});
  m.batch = {{DType::f32, {kBatch, steps, kInputs}}, {DType::i64, {kBatch}}};
  m.loss = [=](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands& random) {
    LoopSize s = size;
    s.batch = b.shape(in[0])[0];
    std::vector<NodeId> carry(size_t(cell.carries), b.full({s.batch, kWidth}, DType::f32, 0)), weights(p.begin(), p.end() - 1);
    NodeId x = b.permute(in[0], {1, 0, 2});
    ScanResult r = add_loop(b, cell, s, carry, x, kNone, weights);
    int64_t time[] = {0};
    NodeId h = every_step ? b.mean(r.outputs[0], time) : r.carry[0];
    if (dropout > 0) {
      RandomOperands per_element = random;
      per_element.base = b.mul(random.base, double(b.shape(h)[1]));
      h = b.dropout(h, dropout, per_element);
    }
    return b.cross_entropy(b.linear(h, p.back()), in[1]);
  };
  return m;
}

struct Outcome {
  double loss = 0;
  std::vector<std::vector<float>> gradients;
  StepPlan plan;
};

Outcome run(const StepModel& m, StepOptions o, int turns = 2) {
  o.seed = 5;
  TrainStep step(m, o);
  for (size_t i = 0; i < m.parameters.size(); ++i) initialize(m.parameters[i], 3, uint32_t(i), step.parameter(i));
  std::vector<float> x(size_t(m.batch[0].shape.numel()));
  for (size_t i = 0; i < x.size(); ++i) x[i] = 2 * uniform_from(random_word({4, 0, 1}, i)) - 1;
  std::vector<int64_t> target;
  for (uint64_t i = 0; i < uint64_t(kBatch); ++i) target.push_back(random_word({4, 0, 2}, i) % kClasses);
  const void* batch[] = {x.data(), target.data()};
  Outcome out;
  for (int i = 0; i < turns; ++i) {
    StepMetrics r = step.run(batch);
    EXPECT_TRUE(r.applied);
    out.loss = r.loss;
  }
  for (size_t i = 0; i < m.parameters.size(); ++i) out.gradients.emplace_back(step.gradient(i).begin(), step.gradient(i).end());
  out.plan = step.plan();
  return out;
}

// The same sums in another order: a few hundred f32 terms, carried through the steps.
void expect_same(const Outcome& a, const Outcome& b, const std::string& label) {
  EXPECT_NEAR(a.loss, b.loss, 4e-6 * std::abs(a.loss)) << label;
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    double scale = 0;
    for (float v : a.gradients[i]) scale = std::max(scale, double(std::abs(v)));
    for (size_t k = 0; k < a.gradients[i].size(); ++k)
      ASSERT_NEAR(a.gradients[i][k], b.gradients[i][k], 4e-5 * scale + 1e-6) << label << ", parameter " << i << " element " << k;
  }
}

class SequenceStep : public ::testing::TestWithParam<std::tuple<int, int64_t, bool>> {};

TEST_P(SequenceStep, DoesNotDependOnHowItIsComputed) {
  auto [cell, steps, every] = GetParam();
  StepModel m = sequence_model(cells()[size_t(cell)], steps, every, 0.2);
  Outcome plain;
  {
    StepOptions o;
    o.passes = "-scan_hoist";
    plain = run(m, o);
  }
  expect_same(plain, run(m, {}), "moved out");
  for (Recompute level : {Recompute::segments, Recompute::layers}) {
    StepOptions o;
    o.recompute = level;
    expect_same(plain, run(m, o), std::string(name(level)));
  }
  for (int64_t micro : {5, 4, 1}) {
    StepOptions o;
    o.micro = micro;
    expect_same(plain, run(m, o), "micro-batch " + std::to_string(micro));
  }
  StepOptions o;
  o.micro = 5, o.recompute = Recompute::segments;
  expect_same(plain, run(m, o), "micro-batch 5 in stretches");
}
INSTANTIATE_TEST_SUITE_P(Models, SequenceStep, ::testing::Combine(::testing::Values(1, 2), ::testing::Values(7, 31), ::testing::Bool()));

TEST(SequenceBudget, SegmentsKeepTheSquareRootOfTheSteps) {
  int64_t bytes[2][2];
  for (int long_one : {0, 1})
    for (int cut : {0, 1}) {
      StepOptions o;
      if (cut) o.recompute = Recompute::segments;
      bytes[long_one][cut] = TrainStep(sequence_model(cells()[1], long_one ? 256 : 64, false), o).plan().activation_bytes;
    }
  EXPECT_GT(double(bytes[1][0]), 3.5 * double(bytes[0][0])) << "every step's values grow with the steps";
  EXPECT_LT(double(bytes[1][1]), 3.2 * double(bytes[0][1])) << "stretches with their root, and x itself";
  EXPECT_LT(3 * bytes[1][1], bytes[1][0]);
}

TEST(SequenceBudget, UsesSegmentsBeforeSplitting) {
  StepModel m = sequence_model(cells()[1], 64, false);
  Outcome whole = run(m, {});
  EXPECT_EQ(whole.plan.recompute, Recompute::free);
  StepOptions o;
  o.memory = whole.plan.planned_bytes - whole.plan.activation_bytes / 2;
  Outcome fitted = run(m, o);
  EXPECT_EQ(fitted.plan.recompute, Recompute::segments);
  EXPECT_EQ(fitted.plan.micro, kBatch);
  EXPECT_LE(fitted.plan.planned_bytes, o.memory);
  std::string text;
  for (const std::string& d : fitted.plan.decisions) text += d + "\n";
  EXPECT_NE(text.find("8 stretches of 8"), std::string::npos) << text;
  expect_same(whole, fitted, "budget");
  // Too little for one batch in segments: it is split, and still segmented at the largest parts.
  o.memory = fitted.plan.planned_bytes - fitted.plan.activation_bytes / 3;
  Outcome split = run(m, o);
  EXPECT_EQ(split.plan.recompute, Recompute::segments);
  EXPECT_LT(split.plan.micro, kBatch);
  EXPECT_GT(split.plan.micro, kBatch / 4);
  expect_same(whole, split, "split");
  o.memory = 1000;
  EXPECT_THROW(TrainStep(m, o), Error);
}

// A loop over samples, or one that carries their mean, cannot be split; the message gives the reason.
TEST(SequenceCoupling, IsFoundInsideTheLoop) {
  auto model = [](bool over_samples) {
    StepModel m;
    m.parameters = {{"w", {4}, 1, 0, false}};
    m.batch = {{DType::f32, {6, 4, 4}}};
    m.loss = [=](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) -> Builder::SumCount {
      auto body = std::make_shared<ScanBody>();
      Builder s(body->graph);
      NodeId x = over_samples ? in[0] : b.permute(in[0], {1, 0, 2});
      Shape one = b.shape(x);
      one.erase(0);
      NodeId h = body->graph.input({DType::f32, one}, "h"), step = body->graph.input({DType::f32, one}, "x"), w = body->graph.input({DType::f32, {4}}, "w");
      int64_t first[] = {0};
      NodeId seen = over_samples ? step : s.sub(step, s.mean(step, first, true));
      body->carry_in = {h}, body->sequence_in = {step}, body->constant_in = {w}, body->carry_out = {s.add(s.mul(h, w), seen)};
      NodeId zero = b.full(one, DType::f32, 0);
      ScanResult r = scan(b.graph(), body, {&zero, 1}, {&x, 1}, {&p[0], 1}, b.shape(x)[0]);
      return {b.sum(b.square(r.carry[0])), b.literal(DType::f32, 6)};
    };
    return m;
  };
  for (bool over_samples : {false, true}) {
    StepOptions o;
    o.micro = 3;
    try {
      TrainStep step(model(over_samples), o);
      FAIL() << "samples are mixed";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::unsupported);
      EXPECT_NE(std::string(e.what()).find(over_samples ? "its steps are the samples" : "statistic of the whole batch"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace ridge::test
