// What the files of the collector share: its programs and the memory of a rollout on the host.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "step/compiled_step.h"
#include "tasks/ppo/device_rollout.h"
#include "tasks/ppo/host_play.h"
#include "tasks/ppo/ppo.h"

namespace ridge {

inline Type type_of(const Tensor& t) { return {t.dtype(), t.shape()}; }

// What is computed in one program each. `carry`: the types of the environments' state, then of the policy's.
struct Collector::Programs {
  std::vector<Type> carry;
  size_t environment = 0;  // how many of these are the environment's
  std::vector<Type> outputs;
  std::unique_ptr<ReadProgram> start, rollout, value, advantages;
  struct Play {
    std::unique_ptr<ReadProgram> start, run;
    std::vector<Type> carry;
    std::unique_ptr<HostPlay> host;  // instead of these
  };
  std::array<Play, 2> play;        // most likely actions, sampled actions
  std::unique_ptr<HostPlay> host;  // instead of `start` and `rollout`, if the environment is not tensor code
};

// A rollout in host memory, each [horizon, instances, …].
struct Collector::Buffers {
  using Bytes = std::vector<std::byte>;
  std::vector<Bytes> carry;
  Bytes frames;  // behind the last stack - 1 frames of the rollout before
  std::vector<int64_t> age;
  Bytes action;
  std::vector<float> log_p, value, reward, episode_return, episode_length, final_value, discounted, advantage, goal;
  Bytes terminated, truncated, final_frame;
  std::vector<std::vector<float>> states;  // of the policy's memory after each decision, even if that ended an episode
  std::vector<Bytes> first_states;         // before the rollout
  std::vector<float> last_value;
  std::vector<float> shift, scale;  // of observations
  float value_scale[2] = {0, 1};
  std::vector<uint32_t> order;  // of the segments in each epoch
  Bytes records;                // per decision: log-probability, value, advantage, value to learn; action; observation, unless frames are stacked
  int64_t record_bytes = 0;
  std::vector<Bytes> batch;
  std::vector<const void*> batch_data;
  int64_t frame_bytes = 0, action_bytes = 0, stack = 1;
};

}  // namespace ridge
