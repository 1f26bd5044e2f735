// Inference on a CUDA device gives the CPU's results: the same text, the same losses. Work that is faster on the CPU stays there. Runs on the simulated GPU or
// the machine's own.
#include <gtest/gtest.h>

#include "backend/cuda/backend.h"
#include "cuda_train/on_gpu.h"
#include "gpt/models.h"
#include "measure/default_team.h"
#include "support/cuda_device.h"
#include "support/plan_backend.h"
#include "support/variable.h"
#include "tasks/gpt/evaluate.h"
#include "tasks/gpt/sampler.h"
#include "tasks/gpt/task.h"
#include "train/run_device.h"
#include "train/step_time.h"

namespace ridge {
namespace {

class CudaReading : public test::OnGpu {
 protected:
  static std::shared_ptr<GptParameters> placed(const test::Model& model, DType storage, Backend& backend) {
    auto fill = [&](size_t i, std::span<float> to) { std::copy(model.values[i].begin(), model.values[i].end(), to.begin()); };
    return std::make_shared<GptParameters>(model.config, storage, fill, backend);
  }
  static int overlapping_launches(Backend& backend) {
    int (*count)(const char*) = nullptr;
    return dynamic_cast<cuda::CudaBackend&>(backend).device().driver().library().bind(count, "simulatorCalls") ? count("cuLaunchKernelEx") : 0;
  }
  static config::Resolved words_of(std::vector<std::string> words) {
    config::Sources sources;
    sources.task = config::task_bit("gpt"), sources.working_folder.reset(), sources.words = std::move(words);
    return config::resolve(sources);
  }
};

// Made-up tokens; the last batch is not full.
class MadeUpWindows final : public BatchSource {
 public:
  MadeUpWindows(int64_t count, int64_t batch, const GptConfig& c) : count_(count), batch_(batch), config_(c), types_(2, {DType::i64, {batch, c.block}}) {}
  const std::vector<Type>& types() const override { return types_; }
  int64_t batches() const override { return (count_ + batch_ - 1) / batch_; }
  int64_t samples(int64_t number) const override { return std::min(batch_, count_ - number * batch_); }
  void fill(int64_t number, std::span<std::byte* const> tensors) const override {
    for (int64_t s = 0; s < samples(number); ++s)
      for (int64_t i = 0; i < config_.block; ++i)
        for (int64_t k = 0; k < 2; ++k)
          reinterpret_cast<int64_t*>(tensors[size_t(k)])[s * config_.block + i] =
              ((number * batch_ + s) * 13 + (i + k) * 7 + (i + k) * (i + k)) % config_.vocab;
  }

 private:
  int64_t count_, batch_;
  GptConfig config_;
  std::vector<Type> types_;
};

TEST_F(CudaReading, WritesTheSameTextAsTheCpu) {
  const std::shared_ptr<Backend> device = open_device({Device::Kind::cuda, 0});
  EXPECT_EQ(kept_precision(DType::f32, *device), Precision::fp32);
  EXPECT_EQ(kept_precision(DType::f16, *device), Precision::fp16);
  for (const auto& [name, config] : test::gpt_forms()) {
    if (name != "plain" && name != "all") continue;
    const test::Model model(config);
    for (DType kept : {DType::f32, DType::f16}) {
      GptSampler host(placed(model, DType::f32, default_backend()), default_backend(), kept);
      GptSampler gpu(placed(model, DType::f32, *device), *device, kept);
      std::vector<Token> a, b;
      const std::vector<Token> prompt = {1, 2, 3, 4, 5, 6};
      host.generate(prompt, 30, {.temperature = 0}, [&](Token t) { return a.push_back(t), true; });  // longer than the block of 24
      gpu.generate(prompt, 30, {.temperature = 0}, [&](Token t) { return b.push_back(t), true; });
      EXPECT_EQ(a, b) << name;
      EXPECT_LT(test::largest_difference(host.logits(), gpu.logits()), kept == DType::f32 ? 1e-4 : 2e-3) << name;
    }
  }
}

TEST_F(CudaReading, KeepsWeightsInSixteenBits) {
  const std::shared_ptr<Backend> device = open_device({Device::Kind::cuda, 0});
  const test::Model model(test::small_gpt());
  for (DType storage : {DType::bf16, DType::f16}) {
    const auto there = placed(model, storage, *device);
    EXPECT_LT(there->owned_bytes(), placed(model, DType::f32, default_backend())->owned_bytes());
    GptSampler host(placed(model, storage, default_backend())), gpu(there, *device);
    const std::vector<Token> tokens = {3, 1, 4, 1, 5, 9, 2, 6};
    host.feed(tokens), gpu.feed(tokens);
    // Keys and values are rounded to the storage format, which may round the other way.
    EXPECT_LT(test::largest_difference(host.logits(), gpu.logits()), 0.05) << name(storage);
  }
}

// A token of `shakespeare-char` on an H200: for each layer a product with its norm for queries, keys and values, attention that stores the new ones, a product,
// and two products for the MLP; before them the embedding, after them the logits with their norm.
TEST(SamplingLaunches, ArePlanned) {
  const std::pair<const char*, int64_t> expected[] = {{"", 2 + 6 * 5}, {"joined", 2 + 6 * 9 + 1}};
  for (const auto& [off, launches] : expected) {
    cuda::Chip chip = cuda::chip_for(9, 0);
    chip.joined = *off == 0;
    test::PlanBackend backend(chip);
    backend.has_memory = true;
    GptConfig c;
    c.vocab = 65, c.block = 256, c.layers = 6, c.heads = 6, c.width = 384;
    const auto parameters = std::make_shared<GptParameters>(
        c, DType::bf16, [](size_t, std::span<float>) {}, backend);
    const GptSampler sampler(parameters, backend);
    EXPECT_EQ(sampler.kernels(), launches) << off;
  }
}

// Products of one row, norms inside of them, attention that stores its own rows, kernels that overlap. Each can be switched off; overlapping changes no bit.
TEST_F(CudaReading, ShortensChainsOfShortKernels) {
  std::optional<test::Simulator> hopper;
  if (!test::tests_real_gpu()) hopper.emplace(test::SimulatorOptions{.capability = "9.0"});
  for (const auto& [name, config] : test::gpt_forms()) {
    if (name == "untied" || name == "rms" || name == "swiglu") continue;  // "all" has these
    GptConfig c = config;
    c.block = 150;  // several rounds of keys
    const test::Model model(c);
    std::vector<float> logits;
    for (const char* off : {"", "overlap", "joined", "thin,joined,overlap"}) {
      if (*off && name != "plain") continue;
      const test::Variable switches("RIDGE_CUDA_OFF", off);
      const std::shared_ptr<Backend> device = open_device({Device::Kind::cuda, 0});
      GptSampler host(placed(model, DType::bf16, default_backend())), gpu(placed(model, DType::bf16, *device), *device);
      std::vector<Token> tokens(120);
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = Token(i * i % size_t(c.vocab));
      host.feed(tokens), gpu.feed(tokens);
      const int overlapped = overlapping_launches(*device);
      for (Token t : {3, 1, 4, 1, 5, 9, 2, 6}) {
        host.feed({&t, 1}), gpu.feed({&t, 1});
        EXPECT_LT(test::largest_difference(host.logits(), gpu.logits()), 0.06) << name << " without " << off << " at " << gpu.position();
      }
      if (!*off) logits.assign(gpu.logits().begin(), gpu.logits().end());
      EXPECT_TRUE(std::string_view(off) != "overlap" || std::ranges::equal(logits, gpu.logits()));
      if (test::tests_real_gpu()) continue;
      // One recording: all launches but the first, and but the library's.
      const int now = overlapping_launches(*device) - overlapped, most = gpu.kernels() - 1;
      if (std::string_view(off).find("overlap") != std::string_view::npos)
        EXPECT_EQ(now, 0) << name;
      else
        EXPECT_TRUE(now == most || (name == "odd head" && now > 0 && now < most)) << name << " without " << off << ": " << now << " of " << most;
    }
  }
}

// A driver that cannot record kernels that overlap records them as usual.
TEST_F(CudaReading, RecordsWithoutOverlapWhereTheDriverRefusesIt) {
  if (test::tests_real_gpu()) GTEST_SKIP() << "the simulated driver fails on request";
  const test::Simulator hopper({.capability = "9.0"});
  const std::shared_ptr<Backend> device = open_device({Device::Kind::cuda, 0});
  const test::Model model(test::small_gpt());
  GptSampler host(placed(model, DType::bf16, default_backend())), gpu(placed(model, DType::bf16, *device), *device);
  const test::Variable refuses("FAKE_GPU", "cuLaunchKernelEx=801");
  const int before = overlapping_launches(*device);
  const cuda::RunCounts counts = dynamic_cast<cuda::CudaBackend&>(*device).counts();
  for (Token t : {3, 1, 4, 1, 5}) {
    host.feed({&t, 1}), gpu.feed({&t, 1});
    EXPECT_LT(test::largest_difference(host.logits(), gpu.logits()), 0.05);
  }
  EXPECT_EQ(overlapping_launches(*device) - before, 1) << "it is tried once";
  EXPECT_EQ(dynamic_cast<cuda::CudaBackend&>(*device).counts().replays - counts.replays, 4);
}

TEST_F(CudaReading, MatchesTheLossesOfTheCpu) {
  const std::shared_ptr<Backend> device = open_device({Device::Kind::cuda, 0});
  const GptConfig c = test::small_gpt();
  const test::Model model(c);
  const GptEvaluation host = evaluate_gpt(*placed(model, DType::f32, default_backend()), MadeUpWindows(5, 2, c), nullptr);
  const GptEvaluation gpu = evaluate_gpt(*placed(model, DType::f32, *device), MadeUpWindows(5, 2, c), nullptr, *device);
  EXPECT_EQ(host.tokens, gpu.tokens);
  EXPECT_EQ(host.windows, gpu.windows);
  EXPECT_NEAR(host.loss(), gpu.loss(), 1e-5 * host.loss());
}

TEST_F(CudaReading, StaysOnTheCpuIfItFinishesFirst) {
  if (test::tests_real_gpu()) GTEST_SKIP() << "needs the simulated GPU";
  const StepWork work = gpt_reading_work(test::small_gpt(), 1);
  const RunDevice little = choose_reading_device(words_of({"device=auto"}), work, 100);
  EXPECT_EQ(little.device.value, "cpu");
  EXPECT_NE(little.device.why.find("to start"), std::string::npos) << little.device.why;
  EXPECT_EQ(choose_reading_device(words_of({"device=auto"}), work, 1e12).device.value, "cuda:0");
  StepWork large = work;
  large.bytes = 1e12;  // more than the GPU has
  const RunDevice too_large = choose_reading_device(words_of({"device=auto"}), large, 1e12);
  EXPECT_EQ(too_large.device.value, "cpu");
  EXPECT_NE(too_large.device.why.find("free"), std::string::npos) << too_large.device.why;
  const RunDevice asked = choose_reading_device(words_of({"device=cuda"}), work, 1);
  EXPECT_EQ(asked.device.value, "cuda:0");
  EXPECT_EQ(asked.precision, Precision::fp32);
  EXPECT_EQ(choose_reading_device(words_of({"device=cuda", "precision=bf16"}), work, 1).precision, Precision::bf16);
  // The measured start-up time of the GPU is used from then on.
  keep_start_time(*asked.backend, 1e-9);
  EXPECT_EQ(choose_reading_device(words_of({"device=auto"}), work, 1).device.why.find("to start"), std::string::npos);
}

TEST_F(CudaReading, MeasuresNothingWhenTuningIsOff) {
  if (test::tests_real_gpu()) GTEST_SKIP() << "needs the simulated GPU";
  const config::Resolved settings = words_of({"device=auto", "optimize_perf=false"});
  choose_run_device(settings, gpt_work(test::small_gpt(), 4), "", Figures::kept);
  choose_reading_device(settings, gpt_reading_work(test::small_gpt(), 1), 1);
  EXPECT_FALSE(kept_kernel_rates(default_team(), int64_t(1) << 28));
}

}  // namespace
}  // namespace ridge
