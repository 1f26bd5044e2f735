// Whole iterations of PPO as benchmark rows: playing in the environment, advantages, and all updates.
#include <fmt/format.h>

#include "tasks/ppo/task.h"
#include "train/module_run.h"

namespace ridge {

std::vector<BenchRow> ppo_bench_rows(bool gpu) {
  const std::string device = gpu ? "--device cuda --modes capture" : "--modes eager compile";
  return {{"ppo/pong-state",
           {"preset=pong-state", "instances=1024", "horizon=64", "minibatch=16384", "update_epochs=4", "layers=3", "units=64", "activation=tanh"},
           fmt::format("torch_ppo.py --model mlp --envs 1024 -T 64 --mb 16384 {}, which has no environment", device)},
          {"ppo/pong-classic",
           {"preset=pong-classic"},
           fmt::format("torch_ppo.py --model cnn --envs 8 -T 128 --mb 256 {}, with and without --channels-last; it has no environment", device)}};
}

BenchStep ppo_bench_step(const BenchRow&, const config::Resolved& s) {
  const auto instances = std::make_shared<Instances>(make_instances(s));
  const PpoArgs args = ppo_args(s);
  seed(args.seed);
  const auto policy = std::make_shared<Policy>(policy_args(s, *instances));
  const std::vector<NamedTensor> weights = parameters(*policy);
  std::vector<Tensor> tensors;
  for (const NamedTensor& w : weights) tensors.push_back(*w.tensor);
  const Step step(weights, {}, [policy, args](const std::vector<Tensor>& batch) { return ppo_loss(*policy, args, batch); });
  BenchStep bench = module_bench(step, ppo_batch(*policy, args));
  bench.options = ppo_step_options(s), bench.units = args.decisions();
  bench.collect = [=](TrainStep& own) {
    const auto collector = std::make_shared<Collector>(own, policy, tensors, *instances, args);
    collector->begin();
    return BenchStep::Collected{collector, [collector] { return collector->times().playing; }, double(instances->options().frame_skip),
                                fmt::format("{}, {} instances x {} decisions, {} epochs", instances->describe(), args.instances, args.horizon, args.epochs)};
  };
  return bench;
}

}  // namespace ridge
