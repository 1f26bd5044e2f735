// Agents as a user sees them: a run, what its commands say about it, and about models that they cannot use.
#include <gtest/gtest.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "cli/ridge_program.h"

namespace ridge::test {
namespace {

namespace fs = std::filesystem;

const std::string kAgent =
    "train ppo preset=cartpole instances=4 horizon=16 minibatch=32 update_epochs=1 decisions=256 units=8 target_score=none threads=1 optimize_perf=false "
    "eval_interval=2 checkpoint_interval=2 --out agent";

TEST(AgentCommands, NameTheKindOfAModelThatTheyCannotUse) {
  const RidgeProgram ridge;
  expect_words(ridge, 0, "PPO of", kAgent);
  expect_refusal(ridge, 4, "[watch] nothere does not exist; there is agent", "watch nothere --gif a.gif");
  for (const char* command : {"sample", "export"})
    expect_refusal(ridge, 2, "agent is a model of the task ppo, and ridge " + std::string(command) + " is for gpt", std::string(command) + " agent");
  expect_refusal(ridge, 2, "for ppo there is ridge eval, ridge watch", "sample agent");
  expect_refusal(ridge, 2, "is a model of the task gpt, and ridge watch is for ppo; for gpt there is ridge eval, ridge export, ridge sample",
                 "watch " + fixture("gpt2") + " --gif a.gif");
  expect_words(ridge, 0, "test MSE", "train cfc data=sine length=12 units=6 backbone_units=6 batch=8 steps=1 warmup=0 --out circuit");
  expect_refusal(ridge, 2, "circuit is a model of the task cfc, and ridge export is for gpt", "export circuit");
}

TEST(AgentCommands, SayWhichCheckpointIsSkipped) {
  const RidgeProgram ridge;
  expect_words(ridge, 0, "PPO of", kAgent);
  const std::string best = read_text(ridge / "agent/checkpoints/BEST");
  const std::string weights = "agent/checkpoints/" + best.substr(0, best.find('\n')) + "/model.safetensors";
  EXPECT_FALSE(ridge({"eval", "agent", "episodes=2"}).says("skipped"));
  std::string damaged = read_text(ridge / weights);
  damaged[damaged.size() / 2] = char(damaged[damaged.size() / 2] ^ 64);
  fs::permissions(ridge / weights, fs::perms::owner_write, fs::perm_options::add);
  write_text(ridge / weights, damaged);
  for (const std::vector<std::string>& words : {std::vector<std::string>{"eval", "agent", "episodes=2"}, {"watch", "agent", "--gif", "a.gif"}}) {
    const Answer answer = ridge(words);
    EXPECT_EQ(answer.code, 0) << answer.all();
    EXPECT_TRUE(answer.err.find(weights) != std::string::npos) << answer.all();
  }
}

TEST(AgentCommands, ValuesOfASpecNameIt) {
  const RidgeProgram ridge;
  write_text(ridge / "s.json", R"({"short_pole": {"agent": {"name": "PPO", "algorithm": {"name": "PPO", "gamma": 0.9, "lam": 0.95, "time_horizon": 8,
    "minibatch_size": 32, "training_epoch": 2, "clip_eps_spec": {"name": "no_decay", "start_val": 0.2}, "entropy_coef_spec": {"name": "no_decay", "start_val": 0}},
    "memory": {"name": "OnPolicyBatchReplay"}, "net": {"type": "MLPNet", "shared": true, "hid_layers": [8], "hid_layers_activation": "tanh",
    "optim_spec": {"name": "Adam", "lr": 0.001}}}, "env": {"name": "CartPole-v1", "num_envs": 4, "max_frame": 64},
    "meta": {"max_session": 1, "max_trial": 1}}})");
  const Answer planned = expect_words(ridge, 0, "spec short_pole", "plan ppo --spec s.json minibatch=16 threads=1 optimize_perf=false");
  EXPECT_TRUE(planned.says("command line")) << planned.all();
  expect_words(ridge, 0, "PPO of", "train ppo --spec s.json threads=1 optimize_perf=false --out run");
  EXPECT_NE(read_text(ridge / "run/config.yaml").find("gamma: 0.9  # spec short_pole"), std::string::npos);
}

}  // namespace
}  // namespace ridge::test
