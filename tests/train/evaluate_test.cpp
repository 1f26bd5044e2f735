// Evaluation, state and plan of a step: validation changes nothing, a restored step continues bit for bit, and the plan covers all programs.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "train/small_gpt.h"

namespace ridge {
namespace {

constexpr int64_t kSequences = 6;

struct Trained {
  GptConfig config;
  StepModel model;
  TrainStep step;
  TokenBatch batch;
  explicit Trained(StepOptions options = {}, double dropout = 0)
      : config(with_dropout(dropout)), model(gpt_step_model(config, kSequences)), step(model, options), batch(kSequences, config.block, config.vocab, 1) {
    start(step, model);
  }
  static GptConfig with_dropout(double dropout) {
    GptConfig c = tiny_gpt();
    c.dropout = dropout;
    return c;
  }
};

TEST(Evaluate, MatchesTheLossOfTheStep) {
  for (int64_t micro : {6, 4, 1}) {
    StepOptions o;
    o.micro = micro;
    Trained s(o);
    const TrainStep::Losses all = s.step.evaluate(s.batch.data, kSequences);
    EXPECT_EQ(all.count, double(kSequences * s.config.block));
    const double loss = s.step.run(s.batch.data).loss;
    EXPECT_NEAR(all.sum / all.count, loss, 1e-6 * loss) << "micro-batches of " << micro;
  }
}

TEST(Evaluate, AddsUpOverSamples) {
  StepOptions o;
  o.micro = 4;
  Trained s(o);
  TrainStep::Losses before;
  for (int64_t n = 0; n <= kSequences; ++n) {
    const TrainStep::Losses part = s.step.evaluate(s.batch.data, n);
    EXPECT_EQ(part.count, double(n * s.config.block));
    EXPECT_GE(part.sum, before.sum);
    EXPECT_NEAR(part.sum - before.sum, n > 0 ? std::log(19) * double(s.config.block) : 0, 1.5) << "sample " << n;
    before = part;
  }
  EXPECT_THROW(s.step.evaluate(s.batch.data, kSequences + 1), Error);
  EXPECT_THROW(s.step.evaluate(s.batch.data, -1), Error);
}

TEST(Evaluate, DropsNothingAndChangesNothing) {
  Trained dropping({}, 0.5), plain;
  const TrainStep::Losses a = dropping.step.evaluate(dropping.batch.data, kSequences), b = plain.step.evaluate(plain.batch.data, kSequences);
  EXPECT_EQ(a.sum, b.sum) << "validation must not drop anything";
  for (int i = 0; i < 3; ++i) dropping.step.run(dropping.batch.data);
  const auto before = contents(dropping.step, dropping.model);
  const TrainStep::Losses once = dropping.step.evaluate(dropping.batch.data, kSequences), twice = dropping.step.evaluate(dropping.batch.data, kSequences);
  EXPECT_EQ(once.sum, twice.sum);
  EXPECT_EQ(before, contents(dropping.step, dropping.model));
  EXPECT_EQ(dropping.step.state().attempted, 3);
}

TEST(Evaluate, RejectsUnplannedEvaluation) {
  StepOptions o;
  o.evaluation = false;
  Trained s(o);
  EXPECT_THROW(s.step.evaluate(s.batch.data, 1), Error);
}

TEST(Evaluate, CoupledSamplesNeedWholeBatches) {
  StepModel m;
  m.parameters = {{"weight", {4}, 1, 0, false}};
  m.batch = {{DType::f32, {8, 4}}};
  m.loss = [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) -> Builder::SumCount {
    return {b.sum(b.square(b.batch_norm(in[0], p[0], kNone, kNone, kNone, true).out)), b.literal(DType::f32, 8)};
  };
  TrainStep step(m, {});
  std::vector<float> x(32);
  for (size_t i = 0; i < x.size(); ++i) x[i] = uniform_from(random_word({9, 0, 0}, i));
  for (float& w : step.parameter(0)) w = 1;
  const void* batch[] = {x.data()};
  EXPECT_NEAR(step.evaluate(batch, 8).sum, 32, 0.5);
  EXPECT_THROW(step.evaluate(batch, 3), Error);
}

// Dropout depends on the attempted step, bias correction on the applied steps: both must be restored.
TEST(State, RestoresBitForBit) {
  for (Precision precision : {Precision::fp32, Precision::fp16}) {
    StepOptions o;
    o.precision = precision, o.clip = 1, o.micro = 4;
    o.loss_scale.growth_interval = 3;
    Trained a(o, 0.2);
    for (int i = 0; i < 5; ++i) a.step.run(a.batch.data, 1e-2);
    const StepState state = a.step.state();
    const auto kept = contents(a.step, a.model);
    EXPECT_EQ(state.attempted, 5);
    for (int i = 0; i < 4; ++i) a.step.run(a.batch.data, 1e-2);

    Trained b(o, 0.2);
    b.step.touch();
    put_back(b.step, b.model, kept);
    b.step.restore(state);
    for (int i = 0; i < 4; ++i) b.step.run(b.batch.data, 1e-2);
    EXPECT_EQ(contents(a.step, a.model), contents(b.step, b.model)) << name(precision);
    EXPECT_EQ(a.step.state().applied, b.step.state().applied);
    EXPECT_EQ(a.step.state().loss_scale, b.step.state().loss_scale);
    EXPECT_EQ(a.step.state().scale_age, b.step.state().scale_age);
  }
}

TEST(Choices, RoundTripAsText) {
  StepOptions o;
  o.micro = 4, o.recompute = Recompute::attention, o.precision = Precision::bf16;
  Trained s(o);
  const StepChoices& c = s.step.plan().choices;
  EXPECT_EQ(c.micro, 4);
  EXPECT_FALSE(c.isa.empty());
  EXPECT_EQ(StepChoices::from_words(c.words()), c);
  EXPECT_FALSE(c.words().contains("passes")) << "as in runs that do not know of them";
  StepChoices off = c;
  off.passes = "-fuse";
  EXPECT_EQ(StepChoices::from_words(off.words()), off);
  StepOptions again;
  reuse_choices(again, c.words());
  EXPECT_EQ(Trained(again).step.plan().choices, c);
  auto broken = c.words();
  broken["recompute"] = "sometimes";
  EXPECT_THROW(StepChoices::from_words(broken), Error);
  broken = c.words();
  broken.erase("micro");
  EXPECT_THROW(StepChoices::from_words(broken), Error);
}

TEST(Plan, NamesEveryProgramAndTheLargestTensors) {
  StepOptions o;
  o.micro = 4;
  Trained s(o);
  const StepPlan& p = s.step.plan();
  std::vector<std::string> names;
  int64_t most = 0, kernels = 0;
  for (const ProgramPlan& program : p.programs) {
    names.push_back(program.name);
    most = std::max(most, program.arena_bytes);
    kernels += program.times * program.kernels;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"body", "remainder", "update", "evaluation", "evaluation of one"}));
  EXPECT_EQ(most, p.activation_bytes);
  EXPECT_EQ(kernels, p.kernels);
  ASSERT_FALSE(p.largest.empty());
  int64_t before = p.largest[0].bytes;
  for (const LargeTensor& t : p.largest) {
    EXPECT_LE(t.bytes, before);
    EXPECT_GE(t.count, 1);
    before = t.bytes;
  }
  double flops = 0;
  for (const KernelRun& k : s.step.kernels()) flops += k.kernel.algorithmic_flops * double(k.times);
  EXPECT_NEAR(flops, p.flops, 1e-9 * p.flops);
}

// A checkpoint's choices are reused or rejected, never changed silently.
TEST(Budget, IsMetWithAGivenMicroBatch) {
  StepOptions o;
  o.micro = 4;
  const int64_t needed = Trained(o).step.plan().planned_bytes;
  o.memory = needed;
  EXPECT_EQ(Trained(o).step.plan().choices.micro, 4);
  o.memory = needed / 4, o.recompute = Recompute::free;
  try {
    Trained s(o);
    FAIL() << "a quarter cannot be enough";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::memory);
    EXPECT_NE(std::string(e.what()).find("4 samples at a time"), std::string::npos) << e.what();
  }
}

// The amount quoted in a refusal is sufficient.
TEST(Budget, QuotedInErrorsWorks) {
  const StepModel model = gpt_step_model(tiny_gpt(), kSequences);
  StepOptions o;
  o.memory = 1;
  int64_t quoted = 0;
  try {
    TrainStep step(model, o);
    FAIL() << "one byte cannot be enough";
  } catch (const Error& e) {
    const std::string text = e.what(), before = "the smallest budget that works is ";
    quoted = std::stoll(text.substr(text.find(before) + before.size())) * 1024;
  }
  o.memory = quoted;
  EXPECT_LE(TrainStep(model, o).plan().planned_bytes, quoted);
  o.memory = quoted - 1024;
  EXPECT_THROW(TrainStep(model, o), Error);
}

// For any model and split: the quoted budget works, nothing below it does, and everything above it does too.
TEST(Budget, QuotedInErrorsIsTheSmallest) {
  struct Case {
    const char* what;
    StepModel model;
    StepOptions options;
  };
  auto gpt = [](int64_t layers, int64_t batch, double dropout = 0) {
    GptConfig c = tiny_gpt();
    c.layers = layers, c.dropout = dropout;
    return gpt_step_model(c, batch);
  };
  StepOptions in_parts, training_only, bf16;
  in_parts.micro = 4, training_only.evaluation = false, bf16.precision = Precision::bf16;
  const Case cases[] = {{"a batch", gpt(2, 24), {}},
                        {"layers and dropout", gpt(3, 5, 0.1), {}},
                        {"a remainder", gpt(2, 7), in_parts},
                        {"no evaluation", gpt(1, 9), training_only},
                        {"bf16", gpt(1, 5), bf16}};
  for (const Case& c : cases) {
    StepOptions o = c.options;
    auto least = [&](int64_t memory) -> int64_t {  // 0: it works
      o.memory = memory;
      try {
        EXPECT_LE(TrainStep(c.model, o).plan().planned_bytes, memory) << c.what;
        return 0;
      } catch (const StepTooLarge& e) {
        return e.least;
      }
    };
    const int64_t quoted = least(1);
    EXPECT_GT(quoted, 0) << c.what;
    int64_t low = quoted / 2, high = quoted;  // low does not work, high does
    EXPECT_GT(least(low), 0) << c.what;
    while (high - low > quoted / 25) {
      const int64_t middle = (low + high) / 2;
      (least(middle) ? low : high) = middle;
    }
    EXPECT_LE(quoted, 1.05 * double(high)) << c.what;
    EXPECT_EQ(least(quoted), 0) << c.what;
    o.memory = 0;
    const int64_t whole = TrainStep(c.model, o).plan().planned_bytes;
    for (double share : {0.2, 0.7}) EXPECT_EQ(least(quoted + int64_t(share * double(std::max<int64_t>(0, whole - quoted)))), 0) << c.what << share;
  }
}

TEST(Budget, IsFoundInFewAttempts) {
  GptConfig c = tiny_gpt();
  const StepModel model = gpt_step_model(c, 96);
  StepOptions o;
  const StepPlan whole = TrainStep(model, o).plan();
  for (int64_t parts : {2, 3, 7, 20}) {
    o.memory = whole.planned_bytes - whole.activation_bytes + whole.activation_bytes / parts;
    const StepPlan plan = TrainStep(model, o).plan();
    EXPECT_LE(plan.planned_bytes, o.memory);
    int tries = 0;
    for (const std::string& d : plan.decisions) tries += d.starts_with("tried");
    EXPECT_LE(tries, 9) << parts;
    // Fewer parts would not work: with one more sample in each, the batch does not fit.
    EXPECT_GE(plan.micro, 96 / (2 * parts)) << parts;
  }
}

}  // namespace
}  // namespace ridge
