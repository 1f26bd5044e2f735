// Whole runs of agents, small ones.
#pragma once
#include "support/task_test.h"
#include "tasks/ppo/task.h"

namespace ridge {

using test::with;

class AgentTask : public test::TaskTest {
 protected:
  AgentTask() : TaskTest(kPpoName) {}
};

// 4 rollouts of 8 x 16 decisions, 8 updates each.
inline const std::vector<std::string> kTiny = {"preset=cartpole", "instances=8",       "horizon=16", "minibatch=32", "update_epochs=2",
                                               "decisions=512",   "target_score=none", "units=8",    "seed=3"};

}  // namespace ridge
