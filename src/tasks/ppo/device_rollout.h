// Rollouts and their minibatches in the memory of a GPU. What is collected, learnt from and decided about the learning rate never passes through the host.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "tasks/ppo/ppo.h"

namespace ridge {

class DeviceRollout {
 public:
  // carry: the types of the instances' state, of `environment` tensors, then of the policy's memory.
  DeviceRollout(TrainStep& step, std::shared_ptr<const Policy> policy, std::span<const Tensor> weights, const Instances& instances, const PpoArgs& args,
                std::vector<Type> carry, size_t environment);
  ~DeviceRollout();
  int64_t bytes() const;

  // The states of all instances, and the frames before the newest one where they are stacked: what a checkpoint holds.
  using Bytes = std::vector<std::byte>;
  void read_state(std::vector<Bytes>& carry, Bytes& frames);
  void write_state(const std::vector<Bytes>& carry, const Bytes& frames);

  // What a rollout and its updates need from the host. Rates are those of the schedule, one per update.
  struct Given {
    std::span<const float> shift, scale;  // of observations
    std::span<const float> value_scale;   // mean and deviation
    float reward_factor = 1, rate_factor = 1, entropy = 0;
    std::vector<float> rates;
  };
  struct Moments {
    std::span<const float> mean, squares;  // sums of squared distances from the mean
  };
  struct Results {
    std::span<const float> episode_return, episode_length;  // [horizon, instances]
    Moments observation, goal, advantage, discounted;       // empty: not needed
  };
  Results collect(const Given& given);
  // The next minibatch, in device memory; the rate of its update is where the step reads it, and is not finite if the update is to be left out.
  std::span<const void* const> pick();
  float close();  // after the last update: the rate factor of the next rollout

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
