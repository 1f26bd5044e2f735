// One program, several backends: their results agree up to rounding, and so do their errors.
#include "backend/backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "autograd/gradients.h"
#include "backend/host_memory.h"
#include "backend/registry.h"
#include "base/error.h"
#include "compile/program.h"
#include "measure/default_team.h"
#include "support/steps.h"

namespace ridge::engine {
namespace {

struct Backends {
  std::unique_ptr<Backend> cpu = open_backend("cpu", default_team), reference = open_backend("reference", default_team);
  std::vector<Backend*> all() { return {cpu.get(), reference.get()}; }
};

TEST(Backends, TrainTheSameModel) {
  Backends backends;
  for (const StepModel& model : {mlp_model(9), conv_model(3)}) {
    Step step = make_step(model);
    std::vector<std::vector<float>> losses, weights;
    for (Backend* backend : backends.all()) {
      CompileOptions options(*backend);
      Training training(step, 10, options);
      losses.emplace_back();
      for (int i = 0; i < 3; ++i) losses.back().push_back(training.run(1e-2f));
      std::span<float> w = training.parameter(0);
      weights.emplace_back(w.begin(), w.end());
    }
    for (size_t i = 0; i < losses[0].size(); ++i) EXPECT_NEAR(losses[0][i], losses[1][i], 1e-4f) << "step " << i;
    float apart = 0;
    for (size_t i = 0; i < weights[0].size(); ++i) apart = std::max(apart, std::abs(weights[0][i] - weights[1][i]));
    EXPECT_LT(apart, 1e-4f);
    EXPECT_LT(losses[0][2], losses[0][0]);
  }
}

TEST(Backends, RejectTheSameIndex) {
  Backends backends;
  Graph graph;
  Builder b(graph);
  NodeId table = graph.input({DType::f32, {5, 3}}, "table"), at = graph.input({DType::i64, {2}}, "at");
  NodeId rows = b.take(table, at, 0);
  std::vector<float> values(15, 1.f), out(6);
  for (Backend* backend : backends.all()) {
    CompileOptions options(*backend);
    Executable program(graph, {table, at}, {rows}, options);
    auto run = [&](int64_t second) {
      const int64_t index[] = {0, second};
      const void* in[] = {values.data(), index};
      void* to[] = {out.data()};
      program.run(in, to);
    };
    try {
      run(7);
      ADD_FAILURE() << backend->info().name << " took row 7 of 5";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::value) << backend->info().name << ": " << error.what();
      EXPECT_NE(std::string(error.what()).find('7'), std::string::npos) << error.what();
    }
    run(4);
    EXPECT_EQ(out, std::vector<float>(6, 1.f)) << "usable afterwards";
  }
}

TEST(Backends, AreOpenedByName) {
  EXPECT_EQ(backend_names(), (std::vector<std::string_view>{"cpu", "cuda", "reference"}));
  for (const char* name : {"cpu", "reference"}) {
    const std::unique_ptr<Backend> backend = open_backend(name, default_team);
    EXPECT_EQ(backend->info().name, name);
    EXPECT_TRUE(backend->host_memory());
    EXPECT_EQ(backend->memory().total, 0);
    EXPECT_EQ(backend->info().chip + backend->remark(), "");
    EXPECT_EQ(backend->f32_products(), Precision::fp32);
  }
  for (const char* name : {"metal", "cuda:", "cuda:one", "cuda:-1", "", "CPU", "cp"}) {
    try {
      open_backend(name, default_team);
      ADD_FAILURE() << "opened " << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported) << name;
      EXPECT_NE(std::string(error.what()).find("its backends are cpu, cuda, reference"), std::string::npos) << error.what();
    }
  }
  EXPECT_TRUE(available({}));
  const Availability metal = available({Device::Kind::metal, 0});
  EXPECT_FALSE(metal);
  EXPECT_FALSE(metal.missing.empty());
  const Availability far = available({Device::Kind::cuda, 900});
  EXPECT_FALSE(far);
  EXPECT_FALSE(far.missing.empty());
  EXPECT_EQ(gpu_probes().size(), 1u);
}

// The format for fp32 products is a device setting: a device without matrix units ignores it.
TEST(Backends, SupportTheirProductFormats) {
  struct Gpu : HostBackend {
    DeviceInfo info() const override { return {"gpu", ""}; }
    ArithmeticUnit arithmetic() const override { return {.device = {Device::Kind::cuda, 0}, .name = "a GPU", .capability = capability}; }
    void use_f32_products(Precision format) override { products = format; }
    Precision f32_products() const override { return products; }
    std::unique_ptr<Code> compile(Program) override { return nullptr; }
    int capability = 90;
    Precision products = Precision::fp32;
  } gpu;
  const std::unique_ptr<Backend> cpu = open_backend("cpu", default_team);
  const auto chosen = [](Backend& backend, Precision precision, const char* matmul) {
    choose_products(backend, precision, matmul);
    return product_format(backend, precision);
  };
  EXPECT_EQ(chosen(gpu, Precision::fp32, "highest"), Precision::fp32);
  EXPECT_EQ(chosen(gpu, Precision::fp32, "high"), Precision::tf32);
  EXPECT_EQ(chosen(gpu, Precision::tf32, "highest"), Precision::tf32);
  EXPECT_EQ(chosen(gpu, Precision::fp32, "medium"), Precision::bf16);
  EXPECT_EQ(chosen(gpu, Precision::fp16, "high"), Precision::fp16);
  gpu.capability = 75;  // stores bf16, but has no matrix unit for it
  EXPECT_EQ(chosen(gpu, Precision::fp32, "medium"), Precision::fp32);
  for (const char* matmul : {"highest", "high", "medium"}) EXPECT_EQ(chosen(*cpu, Precision::fp32, matmul), Precision::fp32);
}

TEST(Backends, MoveBytes) {
  Backends backends;
  std::vector<int32_t> from(1000), to(1000);
  std::iota(from.begin(), from.end(), 0);
  const int64_t bytes = int64_t(from.size()) * 4;
  for (Backend* backend : backends.all()) {
    std::byte *a = backend->allocate(bytes), *b = backend->allocate(bytes);
    backend->download(to.data(), a, bytes);
    EXPECT_EQ(to, std::vector<int32_t>(1000, 0)) << "fresh memory is zero";
    backend->upload(a, from.data(), bytes);
    backend->copy(b, a, bytes);
    backend->download(to.data(), b, bytes);
    EXPECT_EQ(to, from);
    backend->release(a, bytes), backend->release(b, bytes);
    EXPECT_EQ(backend->allocate(0), nullptr);
    EXPECT_FALSE(backend->info().name.empty());
  }
}

}  // namespace
}  // namespace ridge::engine
