// Whole iterations of PPO as benchmark rows: playing in the environment, advantages, and all updates.
#include <fmt/format.h>

#include "base/text.h"
#include "tasks/ppo/task.h"
#include "train/module_run.h"

namespace ridge {

std::vector<BenchRow> ppo_bench_rows(bool gpu) {
  auto rival = [gpu](const char* sizes) {
    return fmt::format("torch_ppo.py {} {}", sizes, gpu ? "--device cuda --modes eager compile capture" : "--modes eager compile");
  };
  const std::vector<std::pair<std::string, std::string>> flags = {{"bf16", "--dtype bfloat16"}};
  return {{"ppo/pong-state",
           {"preset=pong-state", "instances=1024", "horizon=64", "minibatch=16384", "update_epochs=4", "layers=3", "units=64", "activation=tanh"},
           rival("--model mlp --envs 1024 -T 64 --mb 16384"),
           flags},
          {"ppo/pong-classic", {"preset=pong-classic"}, rival("--model cnn --envs 8 -T 128 --mb 256"), flags, "--channels-last"}};
}

BenchStep ppo_bench_step(const BenchRow&, const config::Resolved& s) {
  const auto instances = std::make_shared<Instances>(make_instances(s));
  const PpoArgs args = ppo_args(s);
  seed(args.seed);
  const auto policy = std::make_shared<Policy>(policy_args(s, *instances));
  const std::vector<NamedTensor> weights = ridge::parameters(*policy);
  std::vector<Tensor> tensors;
  int64_t parameters = 0;
  for (const NamedTensor& w : weights) tensors.push_back(*w.tensor), parameters += w.tensor->size();
  const Step step(weights, {}, [policy, args](const std::vector<Tensor>& batch) { return ppo_loss(*policy, args, batch); });
  BenchStep bench = module_bench(step, ppo_batch(*policy, args));
  bench.options = ppo_step_options(s), bench.units = args.decisions();
  bench.collect = [=](TrainStep& own) {
    const auto collector = std::make_shared<Collector>(own, policy, tensors, *instances, args);
    collector->begin();
    return BenchStep::Collected{collector, [collector] { return collector->times().playing; }, double(instances->options().frame_skip),
                                fmt::format("{}; {} instances x {} decisions, minibatch {}, {}; {}, {}", instances->describe(), args.instances, args.horizon,
                                            args.minibatch, counted(args.epochs, "epoch"), policy->args().describe(), counted(parameters, "parameter"))};
  };
  return bench;
}

}  // namespace ridge
