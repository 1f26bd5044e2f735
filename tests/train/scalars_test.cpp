// Laws of named scalars: they are means over the whole batch however it is split, reach every output, and do not change the step.
#include <gtest/gtest.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "ridge/ridge.h"
#include "step/read_program.h"
#include "train/device_like_backend.h"
#include "train/small_gpt.h"
#include "train/train_view.h"

namespace ridge {
namespace {

constexpr int64_t kRows = 11, kWide = 3;

// Squares of x · w - t, with the mean absolute error, the share of errors above 0 (with its own, odd count) and the first weight.
StepModel scored_model(bool with_scalars) {
  StepModel m;
  m.parameters = {{"w", {kWide, 1}, 0, 0.5, true}};
  m.batch = {{DType::f32, {kRows, kWide}}, {DType::f32, {kRows, 1}}};
  m.loss = [with_scalars](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) {
    const NodeId error = b.sub(b.matmul(in[0], p[0]), in[1]);
    const double samples = double(b.shape(error)[0]);
    StepLoss loss(Builder::SumCount{b.sum(b.square(error)), b.literal(DType::f32, samples)});
    if (!with_scalars) return loss;
    const NodeId above = b.cast(b.binary(Op::greater, error, 0.0), DType::f32), large = b.cast(b.binary(Op::greater, b.unary(Op::abs, error), 0.1), DType::f32);
    loss.scalars = {{"error", {b.sum(b.unary(Op::abs, error)), b.literal(DType::f32, samples)}},
                    {"above/large", {b.sum(b.mul(above, large)), b.sum(large)}},
                    {"weight", {b.reshape(b.slice(p[0], 0, 0, 1), {}), b.literal(DType::f32, 1)}}};
    return loss;
  };
  return m;
}

struct ScoredBatch {
  std::vector<float> x, t;
  ScoredBatch() {
    for (uint64_t i = 0; i < kRows * kWide; ++i) x.push_back(2 * uniform_from(random_word({1, 2, 3}, i)) - 1);
    for (uint64_t i = 0; i < kRows; ++i) t.push_back(uniform_from(random_word({1, 2, 4}, i)));
  }
  std::vector<const void*> tensors() const { return {x.data(), t.data()}; }
  // Computed by hand from the first samples.
  std::vector<double> scalars(const std::vector<float>& w, int64_t samples) const {
    double sum = 0, above = 0, large = 0;
    for (int64_t i = 0; i < samples; ++i) {
      double error = -double(t[size_t(i)]);
      for (int64_t k = 0; k < kWide; ++k) error += double(x[size_t(i * kWide + k)]) * double(w[size_t(k)]);
      sum += std::abs(error);
      if (std::abs(error) > 0.1) large += 1, above += error > 0;
    }
    return {sum / double(samples), above / large, double(w[0])};
  }
};

std::vector<float> weights_of(TrainStep& step) {
  std::vector<float> w(kWide);
  step.read(TrainStep::Held::parameter, 0, w);
  return w;
}

TEST(Scalars, AreMeansOfTheWholeBatch) {
  const ScoredBatch batch;
  for (const int64_t micro : {kRows, int64_t(4), int64_t(1)})
    for (const bool gpu : {false, true}) {
      DeviceLikeBackend device;
      StepOptions options;
      options.micro = micro;
      if (gpu) options.backend = &device;
      const StepModel model = scored_model(true), plain = scored_model(false);
      TrainStep step(model, options), other(plain, options);
      start(step, model), start(other, plain);
      EXPECT_EQ(step.scalars(), (std::vector<std::string>{"error", "above/large", "weight"}));
      for (int i = 0; i < 3; ++i) {
        const std::vector<double> expected = batch.scalars(weights_of(step), kRows), some = batch.scalars(weights_of(step), 7);
        const TrainStep::Losses losses = step.evaluate(batch.tensors(), 7);
        const StepMetrics m = step.run(batch.tensors()), same = other.run(batch.tensors());
        for (size_t k = 0; k < 3; ++k) {
          EXPECT_NEAR(m.scalars[k], expected[k], 1e-5) << "scalar " << k << ", micro-batches of " << micro;
          EXPECT_NEAR(losses.scalars[k].sum / losses.scalars[k].count, some[k], 1e-5) << "scalar " << k << " of seven";
        }
        EXPECT_EQ(m.loss, same.loss) << "reporting changes nothing";
        EXPECT_EQ(weights_of(step), weights_of(other));
      }
    }
}

TEST(Scalars, StepsInFlightKeepTheirOwn) {
  const ScoredBatch batch;
  const StepModel model = scored_model(true);
  DeviceLikeBackend device;
  StepOptions options;
  options.backend = &device;
  TrainStep step(model, options), alone(model, options);
  start(step, model), start(alone, model);
  for (int i = 0; i < TrainStep::kMaxPending; ++i) step.enqueue(batch.tensors(), 1e-2);
  for (int i = 0; i < TrainStep::kMaxPending; ++i) {
    const StepMetrics late = step.collect(), now = alone.run(batch.tensors(), 1e-2);
    EXPECT_EQ(late.scalars, now.scalars);
    EXPECT_EQ(late.loss, now.loss);
  }
}

TEST(Scalars, BadOnesAreRejectedByName) {
  auto refusal = [](std::vector<std::string> names, int what, int64_t micro = 0) -> std::string {
    StepModel m = scored_model(false);
    m.loss = [=, plain = m.loss](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands& r) {
      StepLoss loss = plain(b, p, in, r);
      const NodeId x = in[1], samples = b.literal(DType::f32, double(b.shape(x)[0])), one = b.literal(DType::f32, 1);
      const Builder::SumCount values[] = {{b.sum(x), samples}, {x, samples}, {b.sum(x), one}, {b.mean(x), one}, {b.reduce(Op::reduce_max, x), one}};
      for (const std::string& name : names) loss.scalars.push_back({name, values[what]});
      return loss;
    };
    StepOptions options;
    options.micro = micro;
    try {
      const TrainStep step(m, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal({"a", "b_2", "c/d.e-f"}, 0, 3), "");
  for (const char* name : {"", "loss", "two words", "quote\""}) EXPECT_NE(refusal({name}, 0), "") << name;
  EXPECT_NE(refusal({"a", "a"}, 0).find("two scalars a"), std::string::npos);
  EXPECT_NE(refusal(std::vector<std::string>(kMaxScalars + 1, "a"), 0).find("at most 16"), std::string::npos);
  EXPECT_NE(refusal({"a"}, 1).find("f32[11, 1]"), std::string::npos);
  // The whole batch trains with each of these; its parts would add up to something else.
  for (int what : {2, 3, 4}) EXPECT_EQ(refusal({"a"}, what), "") << what;
  EXPECT_NE(refusal({"a"}, 2, 3).find("named scalar"), std::string::npos) << refusal({"a"}, 2, 3);
  EXPECT_NE(refusal({"a"}, 3, 3).find("depends on the size of the batch"), std::string::npos) << refusal({"a"}, 3, 3);
  EXPECT_NE(refusal({"a"}, 4, 3).find("it reduces over the batch axis"), std::string::npos) << refusal({"a"}, 4, 3);
}

TEST(Scalars, CompiledStepsReportAccuracy) {
  seed(3);
  Linear net(2, 3);
  const Tensor x = normal({20, 2});
  std::vector<int64_t> classes;
  for (int64_t i = 0; i < 20; ++i) classes.push_back(i % 3);
  const Tensor t({20}, std::span<const int64_t>(classes));
  double right = 0;
  const std::vector<int64_t> guess = argmax(net(x), -1).to_ints();
  for (size_t i = 0; i < 20; ++i) right += guess[i] == classes[i];
  const Step learn = step(net, sgd({.lr = 0.1}), [&](Tensor a, Tensor b) {
    const Tensor y = net(a);
    return cross_entropy(y, b).with("accuracy", equal(argmax(y, -1), b)).with("one", full({}, 1), full({}, 1));
  });
  for (const int64_t micro : {0, 6}) {
    seed(3);
    CompiledStep compiled = learn.compile({{{20, 2}}, {{20}, DType::i64}}, {.micro = micro});
    if (micro == 0) {
      const StepResult r = compiled.run({x, t}, 0.0);
      EXPECT_NEAR(r.scalar("accuracy"), right / 20, 1e-6);
      EXPECT_EQ(r.scalar("one"), 1);
      EXPECT_EQ(r.scalars.size(), 2u);
      try {
        (void)r.scalar("acuracy");
        ADD_FAILURE() << "there is no such scalar";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::value);
        EXPECT_NE(std::string(error.what()).find("did you mean 'accuracy'?"), std::string::npos) << error.what();
      }
    } else {
      EXPECT_NEAR(compiled.run({x, t}, 0.0).scalar("accuracy"), right / 20, 1e-6);
    }
  }
}

TEST(Scalars, AppearInTheLiveLineAndInJson) {
  const std::vector<std::string> names = {"accuracy", "kl"};
  Progress p;
  p.step = 3, p.steps = 10, p.loss = 1.5, p.scalar_names = names, p.scalars[0] = 0.75, p.scalars[1] = 0.01;
  EXPECT_NE(plain_line(p, "samples").find(", accuracy 0.7500, kl 0.0100"), std::string::npos);
  EXPECT_NE(live_line(p, {}, "samples", 120).find("loss 1.5000  accuracy 0.7500  kl 0.0100"), std::string::npos);
  EXPECT_EQ(live_line(p, {}, "samples", 28).find("accuracy"), std::string::npos) << "they are the first to go";
  std::string out;
  JsonView view([&](std::string_view text) { out += text; });
  p.step = 1;
  view.on_step(p);
  EXPECT_EQ(nlohmann::json::parse(out)["scalars"], (nlohmann::json{{"accuracy", 0.75}, {"kl", 0.01}}));
  out.clear();
  view.on_validation(
      {.step = 5, .loss = 0.5, .best = true, .seconds = 1, .scalar_names = names, .scalars = p.scalars, .score = {"accuracy", "", true}, .value = 0.75});
  const auto event = nlohmann::json::parse(out);
  EXPECT_EQ(event["score"], (nlohmann::json{{"name", "accuracy"}, {"unit", ""}, {"higher_is_better", true}, {"value", 0.75}}));
  EXPECT_EQ(event["scalars"]["kl"], 0.01);
}

// Draws depend only on seed and number; parameters are the step's current ones, on any device.
TEST(ReadPrograms, ReadTheParametersOfTheStep) {
  const ScoredBatch batch;
  const StepModel model = scored_model(false);
  for (const bool gpu : {false, true}) {
    DeviceLikeBackend device;
    StepOptions options;
    if (gpu) options.backend = &device;
    TrainStep step(model, options);
    start(step, model);
    ReadProgram program(step, {{DType::f32, {2, kWide}}}, [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands& random) {
      return std::vector<NodeId>{b.matmul(in[0], p[0]), b.uniform({5}, random)};
    });
    std::vector<float> draws[4];
    for (int i = 0; i < 3; ++i) {
      step.run(batch.tensors(), 1e-2);
      const std::vector<float> w = weights_of(step);
      std::vector<float> y(2);
      draws[i].resize(5);
      const void* in[] = {batch.x.data()};
      void* out[] = {y.data(), draws[i].data()};
      program.run(in, out, 9, i == 2 ? 0 : i);
      for (size_t k = 0; k < 2; ++k) EXPECT_NEAR(y[k], batch.x[3 * k] * w[0] + batch.x[3 * k + 1] * w[1] + batch.x[3 * k + 2] * w[2], 1e-5);
      EXPECT_THROW(program.run({}, out), Error);
      step.enqueue(batch.tensors(), 1e-2);
      EXPECT_THROW(program.run(in, out), Error) << "the weights may be changing";
      step.collect();
    }
    EXPECT_EQ(draws[0], draws[2]);
    EXPECT_NE(draws[0], draws[1]);
    EXPECT_GT(program.bytes(), 0);
  }
}

}  // namespace
}  // namespace ridge
