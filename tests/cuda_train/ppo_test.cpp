// An agent on a GPU: how often the host starts a kernel and copies something, and that a resumed run has the same bits.
#include <gtest/gtest.h>

#include <numeric>

#include "backend/cuda/backend.h"
#include "cuda_train/on_gpu.h"
#include "drivers/dynamic_library.h"
#include "step/compiled_step.h"
#include "support/plan_backend.h"
#include "support/task_test.h"
#include "tasks/ppo/ppo.h"
#include "tasks/ppo/task.h"
#include "train/run_device.h"

namespace ridge {
namespace {

PpoArgs sizes(int64_t instances, int64_t horizon, int64_t minibatch, int64_t epochs) {
  PpoArgs a;
  a.instances = instances, a.horizon = horizon, a.minibatch = minibatch, a.epochs = epochs;
  return a;
}

struct Agent {
  Agent(Backend& backend, const std::string& environment, int64_t units, int64_t layers, const PpoArgs& given, const std::string& activation = "tanh")
      : instances(make_environment(environment)), args(given) {
    args.normalize_values = true, args.iterations = 10;
    PolicyArgs a;
    a.hidden = units, a.layers = layers, a.activation = activation, a.observation = instances.observation_shape(), a.actions = instances.spec().actions;
    seed(1);
    policy = std::make_shared<Policy>(a);
    const std::vector<NamedTensor> weights = parameters(*policy);
    for (const NamedTensor& w : weights) tensors.push_back(*w.tensor);
    const Step learnt(weights, adamw({.lr = 1e-2}), [this](const std::vector<Tensor>& batch) { return ppo_loss(*policy, args, batch); });
    StepOptions o;
    o.evaluation = false, o.backend = &backend, o.clip = 1, o.optimizer.kind = Optimizer::Kind::adamw, o.optimizer.lr = 1e-2, o.join_samples = true;
    step = std::make_unique<TrainStep>(step_model(learnt, ppo_batch(*policy, args)), o);
  }

  void fill() {
    for (size_t i = 0; i < tensors.size(); ++i)
      step->write(TrainStep::Held::parameter, i, {static_cast<const float*>(tensors[i].data()), size_t(tensors[i].size())});
  }

  Instances instances;
  PpoArgs args;
  std::shared_ptr<Policy> policy;
  std::vector<Tensor> tensors;
  std::unique_ptr<TrainStep> step;
};

// The policy and the environment together are one kernel for the whole rollout, so even with what comes before and after it, a decision takes less than a
// launch.
// With the preset's sizes, as planned for an H200. Layers, loss and the gradients of activations are one kernel; gradients of all weights are two launches, and
// those of biases of equal size two.
TEST(AgentLaunches, ArePlanned) {
  for (const bool follows_divergence : {false, true}) {
    test::PlanBackend backend(cuda::chip_for(9, 0));
    PpoArgs args = sizes(128, 1024, 8192, 4);
    if (follows_divergence) args.adaptive_kl = 0.01, args.target_kl = 0.05;
    Agent a(backend, "pong", 64, 3, args, "relu");
    const std::vector<int64_t> learning = backend.launches();
    const Collector collector(*a.step, a.policy, a.tensors, a.instances, a.args);
    const std::vector<int64_t> acting(backend.launches().begin() + long(learning.size()), backend.launches().end());
    const int64_t gradients_and_update = std::accumulate(learning.begin(), learning.end(), int64_t(0)), pick = acting.back();
    EXPECT_LE(gradients_and_update, 16);
    EXPECT_LE(pick, 5) << "what follows from the last update, the next rate, numbers, observations, advantages";
    EXPECT_LE(gradients_and_update + pick, 25) << "launches of a minibatch";
    const int64_t rollout = *std::ranges::max_element(acting);
    EXPECT_LE(rollout, 60) << "launches of a rollout of " << a.args.horizon << " decisions";
    for (const std::string& note : backend.scans()) EXPECT_EQ(note.find("unrolled"), note.npos) << note;
  }
}

class AgentOnGpu : public test::OnGpu {
 protected:
  void SetUp() override {
    test::OnGpu::SetUp();
    if (IsSkipped()) return;
    if (test::tests_real_gpu()) GTEST_SKIP() << "counts calls of the simulated driver";
    backend_ = open_device({Device::Kind::cuda, 0});
  }
  struct Calls {
    int launches = 0, uploads = 0, downloads = 0;
  };
  Calls calls() const {
    int (*count)(const char*) = nullptr;
    const DynamicLibrary& library = dynamic_cast<cuda::CudaBackend&>(*backend_).device().driver().library();
    if (!library.bind(count, "simulatorCalls")) return {};
    return {count("cuLaunchKernel") + count("cuGraphLaunch"), count("cuMemcpyHtoDAsync_v2"), count("cuMemcpyDtoHAsync_v2")};
  }
  std::shared_ptr<Backend> backend_;
};

// What was collected stays on the device: between a rollout and its last update the host sends the seed of the first programs, a few numbers per rollout and
// 24 bytes per update, and reads the scalars of every update and one record of finished episodes per rollout.
TEST_F(AgentOnGpu, CopiesNoMinibatches) {
  const PpoArgs args = sizes(16, 8, 32, 2);
  Agent a(*backend_, "cartpole", 8, 2, args), on_cpu(default_backend(), "cartpole", 8, 2, args);
  a.fill(), on_cpu.fill();
  Collector collector(*a.step, a.policy, a.tensors, a.instances, a.args);
  collector.begin();
  auto rate = [](int64_t number) { return 1e-2 / double(1 + number); };
  collector.schedule = rate;
  const int updates = int(args.updates());
  for (int rollout = 0; rollout < 3; ++rollout) {
    const Calls before = calls();
    for (int update = 0; update < updates; ++update) {
      const BatchFeed::Batch batch = collector.next(rollout * updates + update);
      ASSERT_TRUE(batch.on_device);
      EXPECT_EQ(collector.needs_results(rollout * updates + update + 1), update + 1 == updates) << "the host waits once per rollout";
      a.step->enqueue_in_place(batch.tensors);
      const StepMetrics m = a.step->collect();
      if (rollout == 0 && update < 2) {  // the same gradients as on the CPU
        std::vector<std::vector<std::byte>> values;
        std::vector<const void*> tensors;
        const std::vector<BatchSpec> specs = ppo_batch(*a.policy, a.args);
        for (size_t i = 0; i < specs.size(); ++i) {
          values.emplace_back(size_t(Type{specs[i].dtype, specs[i].shape}.bytes()));
          backend_->download(values.back().data(), batch.tensors[i], int64_t(values.back().size()));
        }
        for (const auto& v : values) tensors.push_back(v.data());
        const StepMetrics expected = on_cpu.step->run(tensors, rate(update));
        EXPECT_NEAR(m.loss, expected.loss, 1e-5 * (1 + std::abs(expected.loss)));
        EXPECT_NEAR(m.gradient_norm, expected.gradient_norm, 1e-4 * expected.gradient_norm);
        EXPECT_GT(expected.gradient_norm, 0.01);
      }
      EXPECT_TRUE(m.applied);
      EXPECT_NEAR(m.lr, rate(rollout * updates + update), 1e-8) << "rates change, also in what is recorded";
      collector.collected(m);
    }
    const Calls after = calls();
    if (rollout == 0) continue;  // it compiles, and stores what stays the same
    EXPECT_LE(after.uploads - before.uploads, updates + 5);
    EXPECT_LE(after.downloads - before.downloads, updates + 2);
    if (rollout == 2) {  // everything is recorded now: a call for a rollout, and three for each update: pick, gradients, update
      EXPECT_EQ(after.launches - before.launches, 3 * updates + 1);
    }
  }
}

// Measured like a rollout, whose tables stay on the device too.
TEST_F(AgentOnGpu, TheTimeOfTheEnvironmentIsWithoutCopies) {
  Agent a(*backend_, "cartpole", 8, 2, sizes(16, 8, 32, 2));
  const Calls before = calls();
  EXPECT_GT(environment_seconds(*a.step, a.instances, a.args).value_or(0), 0);
  EXPECT_EQ(calls().downloads, before.downloads);
  EXPECT_GT(calls().launches, before.launches);
}

class AgentTaskOnGpu : public test::TaskTest {
 protected:
  AgentTaskOnGpu() : TaskTest(kPpoName) {}
  void SetUp() override {
    TaskTest::SetUp();
    if (!test::tests_real_gpu() && !test::simulator_works()) GTEST_SKIP() << "no compiler for the simulated GPU";
    if (!test::tests_real_gpu()) simulator_.emplace();
  }
  std::optional<test::Simulator> simulator_;
};

// 3 rollouts of 8 x 16 decisions, 8 updates each.
const test::Words kTinyOnGpu = {"preset=cartpole",
                                "instances=8",
                                "horizon=16",
                                "minibatch=32",
                                "update_epochs=2",
                                "decisions=384",
                                "target_score=none",
                                "units=8",
                                "seed=3",
                                "device=cuda",
                                "eval_interval=none",
                                "adaptive_kl=0.01",
                                "target_kl=1e-12",
                                "normalize_observations=true",
                                "normalize_values=true"};

// The device computes updates that are left out, but must not apply them: the weights are those of a single pass.
TEST_F(AgentTaskOnGpu, UpdatesThatAreLeftOutChangeNothing) {
  test::Words one_pass = test::with(kTinyOnGpu, {"decisions=128", "schedule=constant", "update_epochs=1"});
  std::erase_if(one_pass, [](const std::string& word) { return word.starts_with("target_kl") || word.starts_with("adaptive_kl"); });
  const test::Words two = test::with(one_pass, {"update_epochs=2"}), masked = test::with(two, {"target_kl=1e-12"});
  RunSummary s;
  const std::vector<float> expected = weights(*train(one_pass, s));
  EXPECT_EQ(s.outcome.steps, 4);
  EXPECT_EQ(weights(*train(masked, s)), expected);
  EXPECT_EQ(s.outcome.steps, 8);
  EXPECT_NE(weights(*train(two, s)), expected) << "the second pass would have changed them";
}

// Bits do not depend on where a run was cut, in the middle of episodes, nor on when the device computed what. Rates that follow the KL divergence are made on
// the device, and updates after a large one are left out there.
TEST_F(AgentTaskOnGpu, ResumesWithTheSameBits) {
  RunSummary whole, first, rest;
  const auto uncut = train(kTinyOnGpu, whole, "whole");
  EXPECT_EQ(whole.outcome.steps, 24);
  EXPECT_EQ(uncut->step->state().applied, 12) << "the second epoch of every rollout is left out";
  train(test::with(kTinyOnGpu, {"max_minutes=1e-9"}), first, "parts");
  EXPECT_EQ(first.outcome.steps, 8);
  const auto run = train(kTinyOnGpu, rest, "parts", true);
  EXPECT_TRUE(rest.outcome.resumed && rest.outcome.bit_exact);
  EXPECT_EQ(weights(*run), weights(*uncut));
  EXPECT_EQ(run->step->state().applied, 12);
}

}  // namespace
}  // namespace ridge
