// Eager tensors on a GPU: the same values as on the CPU, copied only when necessary.
#include <gtest/gtest.h>

#include <cmath>

#include "ridge/ridge.h"
#include "support/cuda_device.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

class DeviceTensors : public test::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    if (!test::tests_real_gpu()) simulator_.emplace();
    // The device and its cache stay open for the whole program.
    static const test::TempFolder cache;
    cache_.emplace("RIDGE_CACHE", cache.path());
    use_device("cuda");
  }
  void TearDown() override { use_device("cpu"); }

  // Evaluates on the device, then on the CPU.
  template <class Body>
  static void expect_same(const Body& body, float tolerance = 1e-5f) {
    const std::vector<float> there = body().to_floats();
    use_device("cpu");
    const std::vector<float> here = body().to_floats();
    use_device("cuda");
    ASSERT_EQ(there.size(), here.size());
    for (size_t i = 0; i < here.size(); ++i) EXPECT_NEAR(there[i], here[i], tolerance) << i;
  }
  static Tensor numbers(Shape shape, float step) {
    std::vector<float> values(size_t(shape.numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(step * float(i));
    return Tensor(shape, values);
  }

 private:
  std::optional<test::Simulator> simulator_;
  std::optional<test::Variable> cache_;
};

TEST_F(DeviceTensors, MatchTheCpu) {
  EXPECT_EQ(used_device().kind, Device::Kind::cuda);
  expect_same([] { return relu(matmul(numbers({5, 7}, 0.3f), numbers({7, 3}, 0.7f)) + numbers({3}, 0.1f)); });
  expect_same([] { return softmax(numbers({4, 33}, 0.9f) * 3, 1); });
  expect_same([] {
    Tensor x = numbers({6, 4}, 0.2f), w = numbers({4, 2}, 0.5f);
    return grad(sum(square(matmul(x, w))), {w})[0];
  });
  expect_same([] { return Tensor::zeros({0, 3}) + 1; });
}

TEST_F(DeviceTensors, StayOnTheDeviceUntilRead) {
  Tensor a = numbers({64}, 0.1f), b = a * 2;
  b.eval();
  EXPECT_NE(b.state(), nullptr);
  Tensor c = b + 1;  // from memory on the device
  EXPECT_NEAR(c.to_floats()[5], 2 * std::sin(0.5f) + 1, 1e-6f);
  EXPECT_NEAR(b.to_floats()[5], 2 * std::sin(0.5f), 1e-6f);
  EXPECT_DOUBLE_EQ((Tensor(3.0) * 2).item(), 6);
}

TEST_F(DeviceTensors, MoveBetweenDevices) {
  Tensor a = numbers({10}, 0.1f), b = a * 2;
  b.eval();
  use_device("cpu");
  EXPECT_EQ(used_device(), Device{});
  Tensor c = b * 3;  // the result is copied back
  EXPECT_NEAR(c.to_floats()[3], 6 * std::sin(0.3f), 1e-6f);
  use_device("cuda:0");
  EXPECT_NEAR((c + b).to_floats()[3], 8 * std::sin(0.3f), 1e-6f);
}

// Writes into a tensor's memory take effect whenever they happen.
TEST_F(DeviceTensors, SeeWrites) {
  Tensor a({2}, {1.f, 2.f});
  EXPECT_EQ((a + 1).to_floats(), (std::vector<float>{2, 3}));
  auto* values = static_cast<float*>(a.mutable_data());
  values[0] = 10;
  EXPECT_EQ((a + 1).to_floats(), (std::vector<float>{11, 3}));
  values[1] = 20;
  EXPECT_EQ((a + 1).to_floats(), (std::vector<float>{11, 21}));
}

TEST_F(DeviceTensors, ReuseProgramsAndMemory) {
  Tensor x = numbers({1000}, 0.01f);
  for (int i = 0; i < 5; ++i) (x * 2 + 1).to_floats();
  const EagerStatistics before = eager_statistics();
  for (int i = 0; i < 20; ++i) (x * 2 + 1).to_floats();
  const EagerStatistics after = eager_statistics();
  EXPECT_EQ(after.compiled, before.compiled);
  EXPECT_EQ(after.pool_bytes, before.pool_bytes) << "the pool does not grow";
  EXPECT_GE(after.pool_reuses - before.pool_reuses, 20);
  trim_pool();
  EXPECT_LT(eager_statistics().pool_bytes, after.pool_bytes);
}

TEST_F(DeviceTensors, ReportBadIndicesWhenRead) {
  Tensor table = numbers({5, 3}, 0.1f), at({2}, std::span<const int64_t>(std::vector<int64_t>{0, 9}));
  EXPECT_THROW(take(table, at, 0).to_floats(), Error);
  EXPECT_EQ((Tensor(1.0) + 1).item(), 2) << "usable afterwards";
}

struct Net {
  Linear up{6, 8}, down{8, 3};
  Tensor operator()(const Tensor& x) const { return down(gelu(up(x))); }
  void visit(Visitor& v) { v("up", up)("down", down); }
};

std::vector<float> weights(Net& net) {
  std::vector<float> all;
  for (const NamedTensor& p : parameters(net))
    for (float v : p.tensor->to_floats()) all.push_back(v);
  return all;
}

Net equal_net(Net& other) {
  Net net;
  std::vector<NamedTensor> to = parameters(net), from = parameters(other);
  for (size_t i = 0; i < to.size(); ++i) *to[i].tensor = Tensor(from[i].tensor->shape(), from[i].tensor->to_floats());
  return net;
}

Step learner(Net& net) {
  return step(net, adamw({.lr = 1e-2}), [&net](Tensor x, Tensor t) { return mse(net(x), t); });
}

// A user's own step, and weights that are read while it trains.
TEST_F(DeviceTensors, TrainInACompiledStep) {
  Net there, here = equal_net(there);
  const Tensor x = numbers({5, 6}, 0.3f), t = numbers({5, 3}, 0.8f);
  CompiledStep on_gpu = learner(there).compile({{{5, 6}}, {{5, 3}}});
  use_device("cpu");
  CompiledStep on_cpu = learner(here).compile({{{5, 6}}, {{5, 3}}});
  use_device("cuda");
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(on_gpu.run({x, t}).loss, on_cpu.run({x, t}).loss, 1e-4);
  const std::vector<float> a = weights(there), b = weights(here);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-3f);
  // Expressions use the values at that time.
  const float before = sum(there.up.weight).to_floats()[0];
  const Tensor pending = sum(there.up.weight), same = cast(there.up.weight, DType::f32);
  const std::vector<float> weight = there.up.weight.to_floats();
  same.eval();
  on_gpu.run({x, t});
  EXPECT_EQ(pending.to_floats()[0], before) << "those when it was built";
  EXPECT_EQ(same.to_floats(), weight);
  EXPECT_NE(sum(there.up.weight).to_floats()[0], before);
  EXPECT_NEAR(sum(there.up.weight).to_floats()[0], sum(Tensor({8, 6}, there.up.weight.to_floats())).to_floats()[0], 1e-5f);
  EXPECT_THROW(there.up.weight.mutable_data(), Error) << "it is not the host's memory";
  const void* where = there.up.weight.data();
  const std::vector<float> old = there.up.weight.to_floats();
  on_gpu.run({x, t});
  EXPECT_EQ(there.up.weight.data(), where) << "what was given is not taken away";
  EXPECT_NE(there.up.weight.to_floats(), old) << "and holds what it is now";
}

TEST_F(DeviceTensors, TrainWithATrainerThatResumes) {
  const test::TempFolder folder;
  const Data data = {numbers({40, 6}, 0.3f), numbers({40, 3}, 0.8f)};
  Net whole, cut = equal_net(whole);
  auto args = [&](int64_t steps, const std::string& out) {
    TrainerArgs a;
    a.steps = steps, a.batch = 8, a.rate = TrainerArgs::Rate::constant, a.show = false, a.out = out;
    return a;
  };
  Trainer(learner(whole), data, args(8, "")).run();
  Trainer(learner(cut), data, args(5, folder / "run")).run();
  Net again;
  const TrainingResult result = Trainer(learner(again), data, args(8, folder / "run")).run();
  EXPECT_TRUE(result.resumed);
  EXPECT_EQ(weights(again), weights(whole)) << "bit for bit";
  Net loaded;
  load_weights(parameters(loaded), folder / "run");
  const CompiledStep kept = learner(loaded).compile({{{8, 6}}, {{8, 3}}});
  load_weights(parameters(loaded), folder / "run");  // into a step's memory
  EXPECT_EQ(weights(loaded), weights(again));
}

// A step runs on the device that it names, whatever device expressions use.
TEST_F(DeviceTensors, StepsNameTheirDevice) {
  const test::TempFolder folder;
  const Tensor x = numbers({5, 6}, 0.3f), t = numbers({5, 3}, 0.8f);
  Net first, second = equal_net(first);
  CompiledStep on_cpu = learner(first).compile({{{5, 6}}, {{5, 3}}}, {.device = "cpu"});
  use_device("cpu");
  CompiledStep on_gpu = learner(second).compile({{{5, 6}}, {{5, 3}}}, {.device = "cuda"});
  EXPECT_NO_THROW(first.up.weight.mutable_data()) << "it is the host's memory";
  EXPECT_THROW(second.up.weight.mutable_data(), Error);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(on_gpu.run({x, t}).loss, on_cpu.run({x, t}).loss, 1e-4);
  EXPECT_NEAR(sum(square(second(x))).item(), sum(square(first(x))).item(), 1e-2) << "expressions on the CPU read the step's weights";
  EXPECT_TRUE(is_available("cuda"));

  Net net;
  const TrainingResult r = Trainer(learner(net), {numbers({40, 6}, 0.3f), numbers({40, 3}, 0.8f)},
                                   {.steps = 4, .batch = 8, .out = folder / "run", .show = false, .device = "cuda", .precision = "auto"})
                               .run();
  EXPECT_TRUE(r.finished());
  EXPECT_EQ(used_device().kind, Device::Kind::cpu);
  const std::string summary = test::read_text((folder / "run") + "/summary.json");
  EXPECT_NE(summary.find("\"device\": \"cuda"), std::string::npos) << summary;
  EXPECT_EQ(summary.find("\"precision\": \"fp32\""), std::string::npos) << "its matrix units have a faster format";
}

// On the same device: exact products for expressions, rounded ones in a step that asks for them.
TEST_F(DeviceTensors, StepsNameTheFormatOfTheirProducts) {
  const Tensor x = numbers({64, 6}, 0.3f), t = numbers({64, 3}, 0.8f);
  Net net, same = equal_net(net), rounded = equal_net(net);
  const auto loss = [&](Net& n, const char* precision) { return learner(n).compile({{{64, 6}}, {{64, 3}}}, {.precision = precision}).run({x, t}).loss; };
  const double exact = Tensor(mse(net(x), t)).item(), fp32 = loss(same, "fp32"), tf32 = loss(rounded, "tf32");
  EXPECT_NEAR(fp32, exact, 1e-6);
  EXPECT_NEAR(tf32, exact, 1e-2);
  EXPECT_NEAR(Tensor(mse(net(x), t)).item(), exact, 1e-9) << "expressions stay as they are";
}

TEST_F(DeviceTensors, RejectUnknownDevices) {
  EXPECT_THROW(use_device("cudda"), Error);
  EXPECT_THROW(use_device("metal"), Error);
  EXPECT_THROW(use_device("cuda:77"), Error);
  EXPECT_EQ(used_device().kind, Device::Kind::cuda) << "a refusal changes nothing";
}

}  // namespace
}  // namespace ridge
