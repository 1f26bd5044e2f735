// Laws of training on a CUDA device: it ends where the CPU's run ends, a resumed run has the same bits, losing the device leaves the last checkpoint intact,
// and planning takes no memory. Runs on the simulated GPU or the machine's own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backend/cuda/backend.h"
#include "base/error.h"
#include "cuda_train/on_gpu.h"
#include "drivers/dynamic_library.h"
#include "support/cuda_device.h"
#include "support/gpt_run.h"
#include "support/variable.h"
#include "tasks/gpt/run.h"
#include "train/plan_report.h"
#include "train/run_device.h"
#include "train/run_state.h"
#include "train/small_run.h"

namespace ridge {
namespace {

using test::SmallRun;
using test::TempFolder;
using test::Trace;

class CudaTraining : public test::OnGpu {
 protected:
  std::shared_ptr<Backend> open() const { return open_device({Device::Kind::cuda, 0}); }
};

config::Resolved settings(std::vector<std::string> words) {
  config::Sources sources;
  sources.task = config::task_bit("gpt"), sources.working_folder.reset(), sources.words = std::move(words);
  return config::resolve(sources);
}

struct Crash {};

TEST_F(CudaTraining, MatchesTheCpuAndResumesBitForBit) {
  const std::shared_ptr<Backend> device = open();
  SmallRun host{.folder = folder_ / "near", .steps = 12}, gpu{.folder = folder_ / "far", .steps = 12};
  gpu.backend = device.get();
  const Outcome a = host(), b = gpu();
  EXPECT_EQ(b.steps, 12);
  EXPECT_NEAR(a.first_loss, b.first_loss, 1e-4);
  EXPECT_NEAR(a.final_train_loss, b.final_train_loss, 1e-3);
  ASSERT_TRUE(a.final_val_loss && b.final_val_loss);
  EXPECT_NEAR(*a.final_val_loss, *b.final_val_loss, 1e-3);

  SmallRun first{.folder = folder_ / "cut", .steps = 12}, second{.folder = folder_ / "cut", .steps = 12, .resume = true};
  first.backend = device.get();
  first.before = [](Phase phase, int64_t step) {
    if (phase == Phase::step && step >= 7) throw Crash{};
  };
  EXPECT_THROW(first(), Crash);
  const std::shared_ptr<Backend> other = open();  // as another process would
  other->use_choices(newest_state(folder_ / "cut")->choices);
  second.backend = other.get();
  const Outcome resumed = second();
  EXPECT_TRUE(resumed.resumed && resumed.bit_exact);
  expect_same(Trace(folder_ / "far"), Trace(folder_ / "cut"));
}

TEST_F(CudaTraining, ALostDeviceLeavesTheLastCheckpointIntact) {
  if (test::tests_real_gpu()) GTEST_SKIP() << "needs the simulated GPU";
  const std::shared_ptr<Backend> device = open();
  SmallRun run{.folder = folder_ / "run", .steps = 12};
  run.backend = device.get();
  std::optional<test::Variable> fault;
  run.before = [&](Phase phase, int64_t step) {
    if (phase == Phase::step && step == 8) fault.emplace("FAKE_GPU", "cuGraphLaunch=700,cuEventSynchronize=700");
  };
  try {
    run();
    FAIL() << "nothing was said";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("checkpoint is intact"), std::string::npos) << error.what();
  }
  fault.reset();
  std::vector<std::string> notices;
  const std::optional<StoredCheckpoint> kept = CheckpointStore(folder_ / "run/checkpoints").newest(notices);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->step, 5);
  EXPECT_TRUE(notices.empty());
}

TEST_F(CudaTraining, PinnedMemoryDoesNotChangeResults) {
  if (test::tests_real_gpu()) GTEST_SKIP() << "needs the simulated GPU";
  struct Result {
    int64_t most = 0;  // peak of pinned bytes
    std::vector<float> weights;
  };
  auto train = [&](const char* name, const char* requested) {
    const config::Resolved s = settings({"device=cuda", "precision=fp32", "preset=tiny", "layers=1", "width=16", "heads=2", "block=16", "batch=4", "steps=6",
                                         "checkpoint_interval=2", "sample_interval=none", requested});
    RunOptions options;
    options.measure = false, options.folder = folder_ / name;
    GptRun run = start_gpt_run(s, options);
    DynamicLibrary library(test::fake_driver("simulator"));
    int64_t (*pinned)() = nullptr;
    EXPECT_TRUE(library.bind(pinned, "simulatorPinnedBytes"));
    Result r;
    run.trainer.handle_signals = false;
    run.trainer.before = [&](Phase, int64_t) { r.most = std::max(r.most, pinned()); };
    EXPECT_EQ(train_run(run, s, {}).steps, 6);
    r.most = std::max(r.most, pinned());
    r.weights.resize(size_t(run.parameters[0].shape.numel()));
    run.step->read(TrainStep::Held::parameter, 0, r.weights);
    return r;
  };
  const Result with = train("with", "enable_pinned_memory=true"), without = train("without", "enable_pinned_memory=false");
  EXPECT_GT(with.most, int64_t(16) << 20) << "batches and weights go through pinned memory";
  EXPECT_LT(without.most, int64_t(64) << 10) << "what a step tells, and bad indices, are all that is pinned";
  EXPECT_EQ(with.weights, without.weights);
}

TEST_F(CudaTraining, PlanningTakesNoMemoryAndPredictsItsUse) {
  RunOptions options;
  options.measure = false;
  const GptRun run = plan_gpt_run(settings({"device=cuda", "preset=shakespeare-char", "steps=20"}), options);
  ASSERT_TRUE(run.backend);
  EXPECT_EQ(static_cast<const cuda::CudaBackend&>(*run.backend).memory_use().asked, 0);
  int64_t sum = 0;
  for (const MemoryItem& item : run.memory) sum += item.bytes;
  EXPECT_EQ(sum, run.planned_bytes);
  EXPECT_GT(run.host_planned_bytes, 0);
  const std::string text = plan_text(run, {100, false});
  for (const char* word : {"cuda:0", "driver, kernels, libraries", "Host memory", "copies for checkpoints", "bf16"})
    EXPECT_NE(text.find(word), std::string::npos) << word << " in\n" << text;
}

TEST_F(CudaTraining, MemoryLimitsTheDevice) {
  RunOptions options;
  options.measure = false;
  const std::vector<std::string> words = {"device=cuda", "preset=shakespeare-char", "steps=20", "sample_interval=none"};
  const GptRun whole = plan_gpt_run(settings(words), options);
  std::vector<std::string> tight = words;
  tight.push_back("memory=" + std::to_string(whole.planned_bytes - whole.step->plan().activation_bytes / 2));
  const GptRun split = plan_gpt_run(settings(tight), options);
  EXPECT_LT(split.planned_bytes, whole.planned_bytes);
  EXPECT_TRUE(split.step->plan().micro < whole.step->plan().micro || split.step->plan().recompute > whole.step->plan().recompute);
  tight.back() = "memory=200000000";
  try {
    plan_gpt_run(settings(tight), options);
    FAIL() << "it cannot fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::memory) << error.what();
  }
}

TEST(CudaChoice, UsesFormatsTheChipSupports) {
  if (test::tests_real_gpu() || !test::simulator_works()) GTEST_SKIP() << "needs the simulated GPU";
  struct {
    const char *capability, *request, *chosen;
    Precision precision;
  } const cases[] = {{"9.0", "auto", "bf16", Precision::bf16},
                     {"8.0", "auto", "bf16", Precision::bf16},
                     {"7.5", "auto", "fp16", Precision::fp16},
                     {"7.5", "fp32", "fp32", Precision::fp32},
                     {"8.6", "tf32", "tf32", Precision::tf32}};
  for (const auto& c : cases) {
    const test::Simulator gpu({.capability = c.capability});
    const RunDevice settled = choose_run_device(settings({"device=cuda", std::string("precision=") + c.request}), {}, "", Figures::kept);
    EXPECT_EQ(settled.precision, c.precision) << c.capability << " " << c.request;
    EXPECT_EQ(settled.number_format.value, c.chosen);
    EXPECT_EQ(settled.device.value, "cuda:0");
  }
  const test::Simulator old({.capability = "7.5"});
  const RunDevice settled = choose_run_device(settings({"device=cuda", "precision=tf32"}), {}, "", Figures::kept);
  EXPECT_EQ(settled.precision, Precision::fp32);
  EXPECT_FALSE(settled.notices.empty()) << "a fallback is said";
  EXPECT_THROW(choose_run_device(settings({"device=cuda", "precision=tf32", "no_fallback=true"}), {}, "", Figures::kept), Error);
}

TEST(CudaChoice, NamesAMissingDriverWithARemedy) {
  const test::Variable none("RIDGE_CUDA_LIBRARY", "libno_such_driver.so");
  try {
    open_device({Device::Kind::cuda, 0});
    FAIL() << "there is no driver";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("libno_such_driver.so"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ridge
