// A rollout as tensor code: policy and environments, decision after decision.
#pragma once
#include <span>
#include <vector>

#include "tasks/ppo/ppo.h"
#include "tasks/ppo/scales.h"

namespace ridge {

// `carry`: the state of the instances, of this many tensors, then that of the policy's memory. Returns the carry after the rollout and the value of what is
// seen then; and for each decision [horizon, instances, …]: newest frame, action, log-probability, value, reward, terminated, truncated, return and length of
// the episode that ended; where frames are stacked, the age of the episode; where episodes may be cut off, the newest frame of the last observation; with
// scaled rewards, the discounted return; the memory after the decision.
std::vector<Tensor> roll_out(const Policy& policy, const Instances& instances, const PpoArgs& args, const Scales& scales, std::span<const Tensor> carry,
                             size_t environment);

}  // namespace ridge
