// The candidates of real steps' kernels: each of them computes the step it claims to compute, and a device builds and reports what it was told to.
#include "tune/kernel_trials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "machine/machine.h"
#include "measure/default_team.h"
#include "support/task_test.h"
#include "threads/thread_team.h"
#include "train/run_trial.h"

namespace ridge {
namespace {

using test::TaskTest;
using test::with;
using test::Words;

class TunedKernels : public TaskTest {
 protected:
  explicit TunedKernels(const char* task = "cfc") : TaskTest(task) {}

  std::unique_ptr<TaskRun> plan(const char* task, const Words& words, RunOptions o = {}) const {
    const config::Resolved all = settings(words);
    o.measure = false, o.data = all.get<Words>("data").front();
    return find_task(task).plan(all, o);
  }
  static StepTrialOptions trial_options(const TaskRun& run) {
    StepTrialOptions o;
    // Numbers above 0, as the times of a circuit must be.
    o.batch = [&run](std::span<std::byte* const> tensors) {
      for (size_t i = 0; i < tensors.size(); ++i)
        if (const Type& t = run.step->model().batch[i]; t.dtype == DType::f32)
          for (int64_t k = 0; k < t.shape.numel(); ++k) reinterpret_cast<float*>(tensors[i])[k] = float(k % 17) / 17;
    };
    o.fill = [&run](size_t i, std::span<float> values) { initialize(run.step->model().parameters[i], 1, uint32_t(i), values); };
    return o;
  }
  // Every candidate of every kernel alone.
  static void check_all(const TaskRun& run, const std::vector<std::string>& kinds) {
    KernelTrials trials(*run.step, trial_options(run));
    const std::vector<KernelSite> sites = trials.sites();
    KernelAssignment assignment(sites.size(), 0);
    ASSERT_EQ(trials.check(assignment), "");
    for (const std::string& kind : kinds)
      EXPECT_TRUE(std::any_of(sites.begin(), sites.end(), [&](const KernelSite& s) { return s.key.starts_with(kind); })) << kind;
    for (size_t n = 0;; ++n) {
      bool any = false;
      for (size_t k = 0; k < sites.size(); ++k) assignment[k] = n < sites[k].variants.size() ? n + 1 : 0, any |= assignment[k] > 0;
      if (!any) break;
      EXPECT_EQ(trials.check(assignment), "") << "variants " << n;
      const KernelSample sample = trials.measure(assignment);
      EXPECT_EQ(sample.seconds.size(), sites.size());
      EXPECT_GT(sample.step_seconds, 0);
    }
  }
  static MeasurementStore store() { return MeasurementStore(fingerprint(detect_machine({}))); }
  static const Decision* decision(const TaskRun& run, std::string_view setting) {
    for (const Decision& d : run.decisions)
      if (d.setting == setting) return &d;
    return nullptr;
  }
};

const Words kCircuit = {"preset=sine", "length=8", "units=6", "backbone_units=6", "batch=32", "steps=6", "warmup=2", "checkpoint_interval=3"};

TEST_F(TunedKernels, OfACircuitAreRight) { check_all(*plan("cfc", kCircuit), {"product f32", "fused", "loop"}); }

class TunedKernelsOfText : public TunedKernels {
 protected:
  TunedKernelsOfText() : TunedKernels("gpt") {}
};

TEST_F(TunedKernelsOfText, AreRight) {
  for (const char* precision : {"precision=fp32", "precision=bf16"})
    check_all(*plan("gpt", {"preset=tiny", "batch=2", "layers=1", "steps=4", precision}), {"product", "fused", "attention ", "attention_grad "});
}

// Stored choices reach the step, are explained, saved with the checkpoint, and make a resumed run compute the bits of one that was never stopped.
TEST_F(TunedKernels, AreStoredUsedAndResumedBitForBit) {
  RunSummary whole, first, rest;
  std::string key, kernel;
  {
    const auto planned = plan("cfc", kCircuit);
    EXPECT_EQ(decision(*planned, "kernel choices"), nullptr);
    MeasurementStore own = store();
    for (const KernelSite& site : KernelTrials(*planned->step, trial_options(*planned)).sites())
      if (kernel.empty() && std::ranges::find(site.variants, "block/2") != site.variants.end()) kernel = site.key;
    ASSERT_FALSE(kernel.empty());
    key = kernel_tuning_key(default_team().size(), kernel);
    keep_choice(own, key,
                {.words = {{kVariant, "block/2"}}, .what = "a test", .planned_seconds = 0.002, .seconds = 0.001, .measured = 9, .points = 9, .imported = true});
    EXPECT_NE(choices_text(own).find("variant=block/2"), std::string::npos) << choices_text(own);
  }
  const auto run = train(kCircuit, whole, "whole");
  ASSERT_NE(decision(*run, "kernel choices"), nullptr);
  EXPECT_EQ(decision(*run, "kernel choices")->decided_by, "imported");
  const std::string word = std::string(kKernelChoice) + kernel;
  EXPECT_EQ(run->step->choices().at(word), "block/2");
  EXPECT_TRUE(plan("cfc", with(kCircuit, {"tune=off"}))->step->choices().count(word) == 0);

  train(with(kCircuit, {"max_minutes=1e-9"}), first, "parts");
  EXPECT_LT(first.outcome.steps, 6);
  store().forget(kTuneKeys);
  const auto resumed = train(kCircuit, rest, "parts", true);
  EXPECT_TRUE(rest.outcome.resumed && rest.outcome.bit_exact);
  EXPECT_EQ(resumed->step->choices().at(word), "block/2") << "from the checkpoint";
  EXPECT_EQ(weights(*resumed), weights(*run));
  EXPECT_EQ(plan("cfc", kCircuit)->step->choices().count(word), 0u) << "the process's own device keeps to its models";
}

// With deterministic=true, what was measured here may only keep the bits.
TEST_F(TunedKernels, KeepTheBitsOfDeterministicRuns) {
  const auto planned = plan("cfc", kCircuit);
  MeasurementStore own = store();
  size_t stored = 0;
  for (const std::string& k : planned->backend->tunable_kernels())
    for (const KernelCandidate& c : planned->backend->kernel_candidates(k))
      if (!c.same_bits && !kept_choice(own, kernel_tuning_key(default_team().size(), k)))
        keep_choice(own, kernel_tuning_key(default_team().size(), k),
                    {.words = {{kVariant, c.name}}, .what = "a test", .planned_seconds = 2, .seconds = 1, .measured = 9, .points = 9}),
            ++stored;
  ASSERT_GT(stored, 0u);
  for (const char* word : {"deterministic=true", "deterministic=false"}) {
    RunOptions o;
    const auto run = find_task("cfc").plan(settings(with(kCircuit, {word})), o);
    EXPECT_EQ(decision(*run, "kernel choices") != nullptr, std::string_view(word) == "deterministic=false") << word;
  }
}

TEST_F(TunedKernels, AreSearchedAndStoredUnderTheirKeys) {
  RunOptions o;
  o.tune_seconds = 0.4, o.tune_over = {};
  KernelSearchResult found;
  o.kernels_tuned = [&](const std::vector<KernelSite>&, const KernelSearchResult& r) { found = r; };
  const auto run = plan("cfc", kCircuit, o);
  ASSERT_NE(decision(*run, "kernel choices"), nullptr);
  EXPECT_EQ(decision(*run, "kernel choices")->decided_by, "measured");
  ASSERT_FALSE(found.hot.empty()) << found.ended;
  EXPECT_EQ(found.refused, std::vector<std::string>());
  EXPECT_EQ(store().all("tune/kernel/").size(), found.hot.size());
  EXPECT_EQ(store().all("tune/kernels/").size(), 1u);
}

// Ways to share out work are tried on the run's own steps: the change is reported, and the bits are those of a run without any, also when it is resumed.
TEST_F(TunedKernels, WorkIsSharedOutDifferentlyWithTheSameBits) {
  TeamOptions team;
  team.threads = 2;
  const std::shared_ptr<Backend> backend = StepTrials::backend_with(team, 2);
  ASSERT_EQ(backend->sharings(), (Words{"threads=2", "threads=1", "threads=2 grains=4"}));
  const Words words = with(kCircuit, {"steps=160", "checkpoint_interval=70", "warmup=20"});
  auto run = [&](bool live, const char* name, bool resume, int64_t last, std::string* printed) {
    const config::Resolved s = settings(words);
    RunOptions o;
    o.data = s.get<Words>("data").front(), o.seed = uint64_t(s.get<int64_t>("seed")), o.measure = false, o.folder = folder_ / name, o.resume = resume;
    o.backend = backend;
    const std::unique_ptr<TaskRun> planned = start_run(find_task("cfc"), s, o);
    EXPECT_FALSE(planned->trainer.share_live) << "nothing may be measured";
    planned->trainer.share_live = live;
    planned->trainer.live_limits = {.first = 0, .share = 1e9, .pause = 1e9};
    planned->trainer.live_seconds = [](size_t way, double) { return way == 1 ? 0.5 : 1.0; };
    if (last > 0)
      planned->trainer.before = [last, raised = false](Phase, int64_t step) mutable {
        if (step == last && !std::exchange(raised, true)) std::raise(SIGINT);
      };
    planned->trainer.handle_signals = true;
    testing::internal::CaptureStdout();
    train_in_folder(*planned, s, {.show = true, .config = config_text(s, o.folder)});
    const std::string text = testing::internal::GetCapturedStdout();
    if (printed) *printed = text;
    return weights(*planned);
  };
  std::string whole;
  const auto planned = run(false, "planned", false, 0, nullptr);
  EXPECT_EQ(run(true, "live", false, 0, &whole), planned);
  EXPECT_NE(whole.find("work is shared out as threads="), std::string::npos) << whole;
  run(true, "parts", false, 90, nullptr);
  EXPECT_EQ(run(true, "parts", true, 0, nullptr), planned);
}

}  // namespace
}  // namespace ridge
