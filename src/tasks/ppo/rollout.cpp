#include "tasks/ppo/rollout.h"

namespace ridge {

std::vector<Tensor> roll_out(const Policy& policy, const Instances& instances, const PpoArgs& args, const Scales& scales, std::span<const Tensor> given,
                             size_t environment) {
  const int64_t rows = args.instances, stack = instances.options().stack;
  const bool bounded = instances.may_truncate();
  auto parts = [&](const std::vector<Tensor>& carry) {
    return std::pair(EnvState(carry.begin(), carry.begin() + long(environment)), std::vector<Tensor>(carry.begin() + long(environment), carry.end()));
  };
  const ScanOutput played = scan(
      [&](const std::vector<Tensor>& carry, const std::vector<Tensor>&) {
        const auto [state, memory] = parts(carry);
        const Policy::Output out = policy.step(scales.observation(instances.observe(state)), memory);
        const Tensor action = policy.sample(out.distribution, instances.counter(state), instances.instance(state));
        const Instances::Decision d = instances.step(state, policy.for_environment(action));
        ScanOutput next{d.state,
                        {instances.frame(state), action, policy.log_probability(out.distribution, action), scales.real_value(out.value), d.reward, d.terminated,
                         d.truncated, d.episode_return, d.episode_length}};
        const Tensor on = reshape(cast(logical_not(logical_or(d.terminated, d.truncated)), DType::f32), {rows, 1});
        for (const Tensor& m : out.state) next.carry.push_back(m * on);
        if (stack > 1) next.outputs.push_back(instances.age(state));
        if (bounded) next.outputs.push_back(stack > 1 ? slice(d.final_observation, 1, stack - 1, stack) : d.final_observation);
        if (args.scale_rewards) next.outputs.push_back(instances.discounted_return(d.state));
        for (const Tensor& m : out.state) next.outputs.push_back(m);
        return next;
      },
      {given.begin(), given.end()}, {iota({args.horizon})});
  const auto [last, memory] = parts(played.carry);
  std::vector<Tensor> results = played.carry;
  results.push_back(scales.real_value(policy.step(scales.observation(instances.observe(last)), memory).value));
  results.insert(results.end(), played.outputs.begin(), played.outputs.end());
  return results;
}

}  // namespace ridge
