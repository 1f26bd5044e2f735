// Instances of a host environment, played by a policy: the network's part is a program, the environment's is done by the thread team.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "rl/host_instances.h"
#include "tasks/ppo/ppo.h"

namespace ridge {

class HostPlay {
 public:
  // With the step's weights. `sampled`: draws actions; false: the most likely ones.
  HostPlay(TrainStep& step, std::shared_ptr<const Policy> policy, std::span<const Tensor> weights, const Instances& instances, bool normalized, int64_t rows,
           bool sampled);
  ~HostPlay();

  void start(uint64_t seed, int64_t first);  // instances first, first + 1, … of the run with this seed

  // What a decision gives besides HostInstances::Results. Null: not wanted.
  struct Record : HostInstances::Results {
    std::byte *action = nullptr, *played = nullptr;  // as the policy chose it, and as the environment got it
    float *log_p = nullptr, *value = nullptr;
    std::vector<float*> states = {};  // of the policy's memory, even if the decision ended the episode; empty: not wanted
  };
  // `scales`: shift and scale of observations, if they are normalised, and mean and deviation of values.
  void decide(std::span<const void* const> scales, const Record& record);
  void look_ahead(std::span<const void* const> scales, float* value);  // what the policy expects from now on

  // A rollout of `horizon` decisions, with inputs and outputs as those of the program that plays tensor code (Collector): the policy's memory and the scales;
  // the memory, the last value, and what each decision gave.
  struct Outputs {
    bool stacked, bounded, discounted;  // which of the optional outputs there are
  };
  void roll_out(std::span<const void* const> inputs, std::span<void* const> outputs, int64_t horizon, const Outputs& has);

  HostInstances& instances() { return instances_; }
  double environment_seconds() const { return environment_seconds_; }  // spent in the environment so far
  int64_t bytes() const;

  std::vector<StateTensor> save() const;
  void restore(const SafetensorsFile& file, uint64_t seed);

 private:
  void act(std::span<const void* const> scales, const Record& record);
  void stack_frames(bool only_new = false);
  const std::byte* seen() const { return stack_ > 1 ? stacked_.data() : instances_.frames(); }

  std::shared_ptr<const Policy> policy_;
  HostInstances instances_;
  int64_t rows_, stack_;
  bool bounds_;  // actions for the environment differ from those of the policy
  std::unique_ptr<ReadProgram> act_;
  uint64_t seed_ = 0;
  std::vector<std::byte> action_, played_, stacked_;
  std::vector<float> log_p_, value_;
  std::vector<std::vector<float>> memory_;
  std::vector<std::byte> terminated_, truncated_;
  double environment_seconds_ = 0;
};

}  // namespace ridge
