// Laws of a device with its own memory that runs asynchronously: it gives the same bits as the CPU, the host never touches its addresses, and nothing waits
// inside a step.
#include "train/device_like_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "eager/eager_device.h"
#include "ridge/ridge.h"
#include "step/compiled_step.h"
#include "tasks/gpt/evaluate.h"
#include "tasks/gpt/sampler.h"
#include "train/small_run.h"

namespace ridge {
namespace {

using test::expect_finite;
using test::mentions;
using test::SmallRun;
using test::TempFolder;
using test::Trace;

// Only the device's name may differ.
Trace trace_of(const std::filesystem::path& folder) {
  Trace t(folder);
  for (const char* word : {"isa", "device"}) t.state["choices"].erase(word);
  return t;
}

struct Outcomes {
  Outcome host, gpu;
};

// Runs on both, and compares everything the runs write.
Outcomes expect_same_run(const SmallRun& run) {
  TempFolder folder;
  DeviceLikeBackend device;
  SmallRun host = run, gpu = run;
  host.folder = folder / "near", gpu.folder = folder / "far", gpu.backend = &device;
  Outcomes both{host(), gpu()};
  expect_same(trace_of(host.folder), trace_of(gpu.folder));
  EXPECT_EQ(host.notices, gpu.notices);
  EXPECT_EQ(both.host.reason, both.gpu.reason);
  EXPECT_EQ(both.host.skipped, both.gpu.skipped);
  EXPECT_EQ(both.host.final_train_loss, both.gpu.final_train_loss);
  EXPECT_EQ(both.host.best_val_loss, both.gpu.best_val_loss);
  EXPECT_TRUE(device.empty()) << "memory of the device is left";
  return both;
}

TEST(DeviceMemory, TrainsWithTheSameBits) { expect_same_run({}); }

TEST(DeviceMemory, CarriesTheLossScaleOnTheDevice) {
  SmallRun run;
  run.precision = Precision::fp16, run.loss_scale.growth_interval = 4;
  expect_same_run(run);
}

TEST(DeviceMemory, SkipsAndRollsBackWithDelay) {
  constexpr float kBad = std::numeric_limits<float>::quiet_NaN();
  SmallRun run;
  run.factor = [](int64_t batch) { return batch == 12 ? kBad : 1.0f; };
  EXPECT_EQ(expect_same_run(run).gpu.skipped, 1);
  run.factor = [](int64_t batch) { return batch >= 11 && batch <= 13 ? kBad : 1.0f; };
  EXPECT_EQ(expect_same_run(run).gpu.roll_backs, 1);
}

TEST(DeviceMemory, ResumesBitExactly) {
  TempFolder folder;
  DeviceLikeBackend device;
  SmallRun whole{.folder = folder / "whole"};
  whole.backend = &device;
  whole();
  for (int64_t step : {int64_t(1), int64_t(7), int64_t(10), int64_t(27)}) {
    struct Crash {};
    const std::filesystem::path path = folder / ("cut" + std::to_string(step));
    SmallRun first{.folder = path}, second{.folder = path, .resume = true};
    first.backend = second.backend = &device;
    first.before = [&](Phase p, int64_t s) {
      if (p == Phase::step && s >= step) throw Crash{};
    };
    EXPECT_THROW(first(), Crash);
    const Outcome out = second();
    EXPECT_TRUE(out.resumed && out.bit_exact);
    expect_same(Trace(whole.folder), Trace(path));
  }
}

struct SplitCase {
  int64_t micro;
  Precision precision;
};

TEST(DeviceMemory, AccumulatesMicroBatchesLikeTheCpu) {
  GptConfig c = tiny_gpt();
  c.dropout = 0.1;
  const StepModel model = gpt_step_model(c, 8);
  const TokenBatch batch(8, c.block, c.vocab, 5), other(8, c.block, c.vocab, 6);
  for (const SplitCase& split : {SplitCase{0, Precision::fp32}, SplitCase{4, Precision::bf16}, SplitCase{3, Precision::fp32}, SplitCase{1, Precision::fp16}}) {
    DeviceLikeBackend device;
    StepOptions o;
    o.micro = split.micro, o.precision = split.precision, o.clip = 1, o.seed = 3;
    TrainStep host(model, o);
    o.backend = &device;
    TrainStep gpu(model, o);
    start(host, model), start(gpu, model);
    for (int i = 0; i < 4; ++i) {
      const StepMetrics a = host.run(i % 2 ? batch.data : other.data), b = gpu.run(i % 2 ? batch.data : other.data);
      EXPECT_EQ(a.loss, b.loss);
      EXPECT_EQ(a.gradient_norm, b.gradient_norm);
    }
    EXPECT_EQ(contents(host, model), contents(gpu, model));
    const TrainStep::Losses a = host.evaluate(batch.data, 7), b = gpu.evaluate(batch.data, 7);
    EXPECT_EQ(a.sum, b.sum);
    EXPECT_EQ(a.count, b.count);
  }
}

TEST(DeviceMemory, WaitsOncePerStepForThePreviousOne) {
  const GptConfig c = tiny_gpt();
  const StepModel model = gpt_step_model(c, 8);
  DeviceLikeBackend device;
  StepOptions o;
  o.backend = &device, o.micro = 2;
  TrainStep step(model, o);
  start(step, model);
  step.touch();
  {
    TokenBatch batch(8, c.block, c.vocab, 5);
    step.enqueue(batch.data, 1e-3);
    std::fill(batch.in.begin(), batch.in.end(), -1);  // the batch may be overwritten immediately
  }
  const TokenBatch batch(8, c.block, c.vocab, 6);
  const int waits = device.waits, downloads = device.downloads, runs = device.runs_;
  EXPECT_EQ(waits, 0);
  step.enqueue(batch.data, 1e-3);
  EXPECT_EQ(step.pending(), 2);
  EXPECT_EQ(device.runs_, runs + 5);
  EXPECT_EQ(step.state().attempted, 0);
  EXPECT_TRUE(step.collect().applied);
  EXPECT_EQ(step.state().attempted, 1);
  EXPECT_EQ(device.waits, waits + 1);
  EXPECT_EQ(device.downloads, downloads);
  step.enqueue(batch.data, 1e-3), step.enqueue(batch.data, 1e-3), step.enqueue(batch.data, 1e-3);
  EXPECT_EQ(step.pending(), TrainStep::kMaxPending);
  EXPECT_THROW(step.enqueue(batch.data, 1e-3), Error);
  step.discard();
  EXPECT_EQ(step.state().applied, 5);
  EXPECT_THROW(step.collect(), Error);
  device.downloads = 0;
  step.evaluate(batch.data, 8);
  EXPECT_EQ(device.downloads, 1);
  EXPECT_THROW((void)step.parameter(0), Error);
}

// Many parameters, whose moments are copied in several parts.
StepModel long_model() {
  constexpr int64_t kWidth = 512, kLayers = 24;
  StepModel model;
  for (int64_t i = 0; i < kLayers; ++i) model.parameters.push_back({fmt::format("layer {}", i), {kWidth, kWidth}, 0, 0.05, true});
  model.parameters.push_back({"bias", {kWidth}, 0, 0, false});
  model.batch = {{DType::f32, {2, kWidth}}, {DType::f32, {2, kWidth}}};
  model.loss = [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) -> Builder::SumCount {
    NodeId x = in[0];
    for (int64_t i = 0; i < kLayers; ++i) x = b.add(x, b.unary(Op::tanh, b.matmul(x, p[size_t(i)])));
    return {b.sum(b.square(b.sub(b.add(x, p.back()), in[1]))), b.literal(DType::f32, double(b.shape(in[1]).numel()))};
  };
  return model;
}

TEST(DeviceMemory, OffloadsMomentsWithTheSameBits) {
  const StepModel model = long_model();
  std::vector<float> x(2 * 512), y(x.size(), 0.5f);
  for (size_t i = 0; i < x.size(); ++i) x[i] = uniform_from(random_word({3, 0, 1}, i)) - 0.5f;
  const void* batch[] = {x.data(), y.data()};
  for (Precision precision : {Precision::fp32, Precision::fp16}) {
    DeviceLikeBackend device, other;
    StepOptions o;
    o.backend = &device, o.clip = 1, o.optimizer.decay = 0.1, o.precision = precision, o.loss_scale.initial = 16;
    TrainStep held(model, o);
    o.backend = &other, o.offload = true;
    TrainStep offloaded(model, o);
    EXPECT_EQ(held.plan().host_bytes, 0);
    EXPECT_EQ(offloaded.plan().host_bytes, held.plan().optimizer_bytes);
    EXPECT_EQ(offloaded.plan().optimizer_bytes, 3 * offloaded.plan().staging_bytes);
    EXPECT_LT(2 * offloaded.plan().optimizer_bytes, held.plan().optimizer_bytes + held.plan().optimizer_bytes / 2);
    start(held, model), start(offloaded, model);
    for (int i = 0; i < 3; ++i) {
      const StepMetrics a = held.run(batch), b = offloaded.run(batch);
      EXPECT_EQ(a.loss, b.loss);
      EXPECT_EQ(a.gradient_norm, b.gradient_norm);
    }
    // A bad step stores nothing, and a checkpoint restores exactly what it read.
    x[5] = std::numeric_limits<float>::quiet_NaN();
    const auto before = contents(offloaded, model);
    EXPECT_FALSE(held.run(batch).applied);
    EXPECT_FALSE(offloaded.run(batch).applied);
    x[5] = 0.1f;
    EXPECT_TRUE(before == contents(offloaded, model));
    EXPECT_TRUE(contents(held, model) == contents(offloaded, model));
    const StepState state = offloaded.state();
    offloaded.run(batch);
    EXPECT_FALSE(before == contents(offloaded, model));
    put_back(offloaded, model, before), offloaded.restore(state);
    held.run(batch), offloaded.run(batch);
    EXPECT_TRUE(contents(held, model) == contents(offloaded, model));
  }
}

TEST(DeviceMemory, OffloadsOnlyIfNothingElseFits) {
  const StepModel model = long_model();
  DeviceLikeBackend device;
  StepOptions o;
  o.backend = &device;
  const int64_t all = TrainStep(model, o).plan().planned_bytes;
  o.offload = true;
  const int64_t less = TrainStep(model, o).plan().planned_bytes;
  ASSERT_LT(less, all);
  o.offload.reset(), o.memory = all;
  EXPECT_EQ(TrainStep(model, o).plan().host_bytes, 0);
  o.memory = less;
  const TrainStep step(model, o);
  EXPECT_GT(step.plan().host_bytes, 0);
  EXPECT_NE(step.report().find("nothing else fits"), std::string::npos) << step.report();
  o.offload = false;
  EXPECT_THROW(TrainStep(model, o), Error);
  o.offload.reset(), o.memory = less / 2;
  EXPECT_THROW(TrainStep(model, o), Error);
}

TEST(DeviceMemory, CountsTheMicroBatchInThePlan) {
  const GptConfig c = tiny_gpt();
  const StepModel model = gpt_step_model(c, 8);
  StepOptions o;
  const TrainStep host(model, o);
  DeviceLikeBackend device;
  o.backend = &device;
  const TrainStep gpu(model, o);
  EXPECT_EQ(host.plan().batch_bytes, 0);
  EXPECT_EQ(gpu.plan().batch_bytes, 2 * 8 * c.block * 8);
  EXPECT_EQ(gpu.plan().planned_bytes, host.plan().planned_bytes + gpu.plan().batch_bytes);
  o.recompute = Recompute::free;
  o.memory = host.plan().planned_bytes;  // enough for one of them, and for the other in parts
  EXPECT_LT(TrainStep(model, o).plan().micro, 8);
  EXPECT_TRUE(device.empty()) << "a plan takes no memory";
}

TEST(DeviceMemory, WritesTheSameText) {
  const GptConfig c = tiny_gpt();
  const StepModel model = gpt_step_model(c, 4);
  DeviceLikeBackend device;
  StepOptions o;
  o.backend = &device;
  TrainStep step(model, o);
  start(step, model);
  std::vector<const void*> there;
  for (size_t i = 0; i < model.parameters.size(); ++i) there.push_back(step.parameter_place(i));
  GptSampler gpu(std::make_shared<GptParameters>(c, there), device);
  GptSampler host(std::make_shared<GptParameters>(c, DType::f32, [&](size_t i, std::span<float> values) { step.read(TrainStep::Held::parameter, i, values); }),
                  default_backend(), DType::f32);
  std::vector<Token> a, b;
  const std::vector<Token> prompt = {1, 2, 3, 4, 5};
  host.generate(prompt, 12, {.seed = 4}, [&](Token t) { return a.push_back(t), true; });
  gpu.generate(prompt, 12, {.seed = 4}, [&](Token t) { return b.push_back(t), true; });
  EXPECT_EQ(a, b);
}

TEST(DeviceMemory, ReadsAModelFromDeviceMemory) {
  const GptConfig c = tiny_gpt();
  const std::vector<Parameter> shapes = gpt_parameters(c);
  auto fill = [&](size_t i, std::span<float> values) { initialize(shapes[i], 3, uint32_t(i), values); };
  for (DType storage : {DType::f32, DType::bf16, DType::f16}) {
    DeviceLikeBackend device;
    {
      GptSampler host(std::make_shared<GptParameters>(c, storage, fill), default_backend(), storage);
      GptSampler gpu(std::make_shared<GptParameters>(c, storage, fill, device), device);
      const std::vector<Token> prompt = {1, 2, 3, 4, 5};
      host.feed(prompt), gpu.feed(prompt);
      // If products take both operands in 16 bits, the inputs are rounded once more.
      const double most = storage == DType::f32 ? 0 : storage == DType::bf16 ? 0x1p-7 : 0x1p-10;
      ASSERT_EQ(host.logits().size(), gpu.logits().size());
      for (size_t i = 0; i < host.logits().size(); ++i) EXPECT_NEAR(host.logits()[i], gpu.logits()[i], most) << name(storage);
    }
    EXPECT_TRUE(device.empty());
  }
  struct TokensOnly : test::SmallBatches {
    TokensOnly(const GptConfig& c) : SmallBatches(c, 5, 3), types_(SmallBatches::types()) { types_.pop_back(); }
    const std::vector<Type>& types() const override { return types_; }
    void fill(int64_t number, std::span<std::byte* const> tensors) const override {
      float factors[test::kSamples];
      std::byte* const all[] = {tensors[0], tensors[1], reinterpret_cast<std::byte*>(factors)};
      SmallBatches::fill(number, all);
    }
    std::vector<Type> types_;
  };
  DeviceLikeBackend device;
  const GptEvaluation host = evaluate_gpt(GptParameters(c, DType::f32, fill), TokensOnly(c), nullptr);
  const GptEvaluation gpu = evaluate_gpt(GptParameters(c, DType::f32, fill, device), TokensOnly(c), nullptr, device);
  EXPECT_EQ(host.nats, gpu.nats);
  EXPECT_EQ(host.tokens, gpu.tokens);
}

TEST(DeviceMemory, SavesWithLittlePinnedMemory) {
  TempFolder folder;
  DeviceLikeBackend plain, poor;
  poor.max_host_bytes = 512;  // enough for the steps' results and small parameters
  SmallRun a{.folder = folder / "a", .steps = 12}, b{.folder = folder / "b", .steps = 12};
  a.backend = &plain, b.backend = &poor;
  a(), b();
  expect_same(Trace(a.folder), Trace(b.folder));
}

// The page-locked memory limit is never exceeded.
TEST(DeviceMemory, PinsWithinTheLimit) {
  TempFolder folder;
  const int64_t weights = [&] {
    DeviceLikeBackend device;
    SmallRun run{.folder = folder / "all", .steps = 6};
    run.backend = &device;
    run();
    return device.host_bytes;
  }();
  int64_t before = -1;
  for (int64_t most : {int64_t(0), weights / 2}) {
    DeviceLikeBackend device;
    SmallRun run{.folder = folder / std::to_string(most), .steps = 6};
    run.backend = &device, run.pinned_bytes = most;
    run();
    EXPECT_LT(device.host_bytes, weights);
    EXPECT_GT(device.host_bytes, before);
    before = device.host_bytes;
    expect_same(Trace(run.folder), Trace(folder / "all"));
  }
}

// Written while training continues: reported when it is complete, not when the next one is due.
TEST(DeviceMemory, ReportsACheckpointWhenItIsWritten) {
  TempFolder folder;
  DeviceLikeBackend device;
  SmallRun run{.folder = folder / "run"};
  run.backend = &device;
  int64_t reported = -1, reported_before_the_next = -1;
  run.on_checkpoint = [&](int64_t step) { reported = step; };
  run.before = [&](Phase phase, int64_t step) {
    if (phase == Phase::step && step == 7) {  // the checkpoint of step 5 is being written
      const CheckpointStore store(folder / "run/checkpoints");
      for (int i = 0; i < 1000 && std::ranges::count(store.steps(), 5) == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // time for LATEST and pruning
    }
    if (phase == Phase::checkpoint && step == 10) reported_before_the_next = reported;
  };
  run();
  EXPECT_EQ(reported_before_the_next, 5);
  EXPECT_EQ(reported, 30);
}

// A user's step that is planned, and planned again, takes no memory before it starts, and then what was planned.
TEST(DeviceMemory, OfAUserStepIsAllocatedWhenItStarts) {
  const auto backend = std::make_shared<DeviceLikeBackend>();
  detail::EagerDevice device{.device = {}, .name = "far", .backend = backend, .pool = nullptr, .arena = nullptr};
  {
    Linear net(300, 200);
    const Step learn = ridge::step(net, adamw({.lr = 1e-2}), [&net](Tensor x) { return mse(net(x), full({x.shape()[0], 200}, 1)); });
    std::shared_ptr<CompiledStep::State> state;
    for (int i = 0; i < 2; ++i) {
      state = compile_step(learn, {{{16, 300}}}, {}, device);
      EXPECT_TRUE(backend->empty());
    }
    const std::vector<float> now(60'000, 0.25f);
    std::copy(now.begin(), now.end(), static_cast<float*>(net.weight.mutable_data()));
    start_step(state, device, true);
    EXPECT_EQ(backend->held_bytes(), state->step.plan().planned_bytes - state->step.plan().scratch_bytes) << "this device has its scratch on the host";
    EXPECT_EQ(net.weight.to_floats(), now) << "as they were when the step started";
    const std::vector<float> x(16 * 300, 1.0f);
    const void* batch[] = {x.data()};
    state->step.run(batch);
    EXPECT_NE(net.weight.to_floats(), now);
  }
  EXPECT_TRUE(backend->empty());
}

}  // namespace
}  // namespace ridge
