// An agent on a GPU: how often the host starts a kernel.
#include <gtest/gtest.h>

#include "step/compiled_step.h"
#include "support/plan_backend.h"
#include "tasks/ppo/ppo.h"

namespace ridge {
namespace {

// The programs of the preset pong-state, as planned for an H200.
struct PlannedAgent {
  PlannedAgent() : backend(cuda::chip_for(9, 0)), instances(make_environment("pong")) {
    args.instances = 512, args.horizon = 64, args.minibatch = 8192, args.epochs = 6, args.normalize_values = true, args.iterations = 10;
    PolicyArgs a;
    a.hidden = 64, a.layers = 3, a.observation = instances.observation_shape(), a.actions = instances.spec().actions;
    seed(1);
    policy = std::make_shared<Policy>(a);
    const std::vector<NamedTensor> weights = parameters(*policy);
    for (const NamedTensor& w : weights) tensors.push_back(*w.tensor);
    const Step learnt(weights, adamw({.lr = 1e-2}), [this](const std::vector<Tensor>& batch) { return ppo_loss(*policy, args, batch); });
    StepOptions o;
    o.evaluation = false, o.backend = &backend, o.clip = 1, o.optimizer.kind = Optimizer::Kind::adamw;
    step = std::make_unique<TrainStep>(step_model(learnt, ppo_batch(*policy, args)), o);
  }

  test::PlanBackend backend;
  Instances instances;
  PpoArgs args;
  std::shared_ptr<Policy> policy;
  std::vector<Tensor> tensors;
  std::unique_ptr<TrainStep> step;
};

// The policy and the environment together are one kernel for the whole rollout, so even with what comes before and after it, a decision takes less than a
// launch.
TEST(AgentLaunches, OfARollout) {
  PlannedAgent a;
  const size_t before = a.backend.launches().size();
  const Collector collector(*a.step, a.policy, a.tensors, a.instances, a.args);
  const std::vector<int64_t> all(a.backend.launches().begin() + long(before), a.backend.launches().end());
  const int64_t rollout = *std::ranges::max_element(all);
  EXPECT_LE(rollout, a.args.horizon) << "launches of a rollout of " << a.args.horizon << " decisions";
  EXPECT_LE(rollout, 24);
  for (const std::string& note : a.backend.scans()) EXPECT_EQ(note.find("unrolled"), note.npos) << note;
}

}  // namespace
}  // namespace ridge
