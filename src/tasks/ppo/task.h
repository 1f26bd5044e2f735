// Agents as a task: PPO on built-in environments.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "step/compiled_step.h"
#include "tasks/ppo/ppo.h"
#include "train/task.h"

namespace ridge {

class HostPlay;

inline constexpr const char* kPpoName = "ppo";

Task ppo_task();
void register_ppo_keys();
std::vector<BenchRow> ppo_bench_rows(bool gpu);
BenchStep ppo_bench_step(const BenchRow& row, const config::Resolved& settings);
Verb ppo_eval_verb();
Verb ppo_watch_verb();

// What settings describe.
Instances make_instances(const config::Resolved& settings);
PolicyArgs policy_args(const config::Resolved& settings, const Instances& instances);
PpoArgs ppo_args(const config::Resolved& settings, std::optional<int64_t> instances = {});  // `instances` replaces auto; without it, the fewest
StepOptions ppo_step_options(const config::Resolved& settings);
Task::Implied ppo_implied(const config::Resolved& settings);  // by a spec file

// What instances=auto means, measured. `rollout_seconds`: of a rollout of that many instances; none: it does not fit into memory. Numbers are tried from the
// fewest that make whole minibatches, each twice the one before, until they no longer gain anything.
struct InstanceChoice {
  int64_t instances = 0;
  std::string why, runner_up;
};
InstanceChoice choose_instances(const PpoArgs& args, int64_t decisions, const std::function<std::optional<double>(int64_t instances)>& rollout_seconds);
// What env_halves=auto means, measured or stored. `play` was made with halves and is used for nothing else; search_again: whatever is stored.
Decision choose_halves(HostPlay& play, const PpoArgs& args, const std::string& environment, bool search_again);
int64_t least_instances(int64_t horizon, int64_t minibatch);
struct InstanceTrial {
  int64_t instances = 0;
  double decisions_s = 0;
};
size_t smallest_of_the_fastest(std::span<const InstanceTrial> trials);  // within 2 % of the highest rate

// A trained agent: a run, one of its checkpoints, or the model folder in it. `observations` and `values`: statistics of what it was trained on.
bool is_agent(const std::filesystem::path& model);
struct TrainedAgent {
  std::filesystem::path folder;
  std::unique_ptr<Instances> instances;
  std::shared_ptr<Policy> policy;
  PpoArgs args;
  RunningMoments observations, values;
  std::vector<std::string> notices;  // checkpoints that were skipped, one line each
  // A step whose only purpose is to hold the weights on a device.
  std::shared_ptr<CompiledStep::State> hold(const std::string& device) const;
  std::vector<Tensor> tensors() const;  // of the policy, in the order of the step's parameters
};
std::string agent_json(const Policy& policy, const Instances& instances, const PpoArgs& args, const RunningMoments* observations, const RunningMoments* values);
TrainedAgent load_agent(const std::filesystem::path& model);

}  // namespace ridge
