// Spec files of SLM-Lab: what they become, and what is refused.
#include <gtest/gtest.h>

#include <map>

#include "machine/expect_error.h"
#include "tasks/ppo/spec.h"

namespace ridge {
namespace {

const std::string kPong = R"({"ppo_pong": {
  "agent": {"name": "PPO",
    "algorithm": {"name": "PPO", "gamma": 0.99, "lam": 0.7, "val_loss_coef": 0.5, "time_horizon": 128, "minibatch_size": 250, "training_epoch": 4, "clip_vloss": true,
      "clip_eps_spec": {"name": "no_decay", "start_val": 0.1, "end_val": 0.1, "start_step": 0, "end_step": 0},
      "entropy_coef_spec": {"name": "linear_decay", "start_val": 0.01, "end_val": 0.001, "start_step": 0, "end_step": 1e6}},
    "memory": {"name": "OnPolicyBatchReplay"},
    "net": {"type": "ConvNet", "shared": true, "conv_hid_layers": [[32,8,4,0,1],[64,4,2,0,1],[64,3,1,0,1]], "fc_hid_layers": [512],
      "hid_layers_activation": "relu", "init_fn": "orthogonal_", "normalize": true, "clip_grad_val": 0.5, "use_same_optim": true,
      "optim_spec": {"name": "AdamW", "lr": 2.5e-4, "eps": 1e-5}, "lr_scheduler_spec": {"name": "LinearToZero", "frame": 1e6}, "gpu": "auto"}},
  "env": {"name": "ALE/Pong-v5", "num_envs": 16, "max_frame": 1e6, "life_loss_info": true},
  "meta": {"distributed": false, "log_frequency": 10000, "eval_frequency": 10000, "max_session": 4, "max_trial": 1}}})";

std::map<std::string, std::string> settings_of(const SpecSettings& s) { return {s.settings.begin(), s.settings.end()}; }

bool any_mentions(const std::vector<std::string>& lines, std::string_view part) {
  for (const std::string& line : lines)
    if (mentions(line, part)) return true;
  return false;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Spec, BecomesSettings) {
  const SpecSettings read = read_spec(kPong, "ppo_pong", {}, "pong.json");
  const auto s = settings_of(read);
  for (const auto& [key, value] : {std::pair("env", "pong-pixels"),
                                   {"sticky", "0.25"},
                                   {"instances", "16"},
                                   {"decisions", "1000000"},
                                   {"horizon", "128"},
                                   {"minibatch", "256"},
                                   {"update_epochs", "4"},
                                   {"gamma", "0.99"},
                                   {"lambda", "0.7"},
                                   {"clip_range", "0.1"},
                                   {"value_clip", "0.1"},
                                   {"entropy", "0.01"},
                                   {"final_entropy", "0.001"},
                                   {"network", "nature"},
                                   {"clip", "0.5"},
                                   {"lr", "0.00025"},
                                   {"adam_epsilon", "1e-05"},
                                   {"schedule", "linear"},
                                   {"normalize_values", "false"},
                                   {"beta2", "0.999"},
                                   {"recurrent", "none"},
                                   {"min_lr", "0"},
                                   {"seeds", "4"}})
    EXPECT_EQ(s.contains(key) ? s.at(key) : "missing", value) << key;
  EXPECT_TRUE(any_mentions(read.notes, "not the Atari program"));
  EXPECT_TRUE(any_mentions(read.notes, "repeated with a probability of 0.25"));
  EXPECT_TRUE(any_mentions(read.notes, "minibatch_size becomes 256"));
  EXPECT_FALSE(any_mentions(read.notes, "filters")) << "the network is as described";
  const auto value_clip = [](const std::string& setting) {
    return settings_of(read_spec(replaced(kPong, "\"clip_vloss\": true", setting), "ppo_pong", {}, "pong.json")).at("value_clip");
  };
  EXPECT_EQ(value_clip("\"clip_val_loss\": true"), "0.1");
  EXPECT_EQ(value_clip("\"clip_val_loss\": false"), "0");
}

TEST(Spec, MayBeYamlWithVariablesAndListsOfOne) {
  const std::string yaml = R"(
small:
  agent:
    - name: PPO
      algorithm:
        name: PPO
        gamma: 0.98
        lam: 0.9
        time_horizon: 32
        minibatch_size: ${mb}
        training_epoch: 4
        clip_eps_spec: {name: no_decay, start_val: 0.2}
        entropy_coef_spec: {name: no_decay, start_val: 0.0}
      memory: {name: OnPolicyBatchReplay}
      net:
        type: MLPNet
        shared: false
        hid_layers: [64, 64]
        hid_layers_activation: tanh
        optim_spec: {name: Adam, lr: ${lr}, betas: [${beta1}, 0.99]}
        lr_scheduler_spec: null
  env:
    - {name: CartPole-v1, num_envs: 8, max_frame: 2.0e5}
  body: {product: outer, num: 1}
)";
  const auto s = settings_of(read_spec(yaml, "", {"mb=64", "lr=2e-3", "beta1=0.8"}, "x.yaml"));
  EXPECT_EQ(s.at("minibatch"), "64");
  EXPECT_EQ(s.at("lr"), "0.002");
  EXPECT_EQ(s.at("beta1"), "0.8");
  EXPECT_EQ(s.at("env"), "cartpole");
  EXPECT_EQ(s.at("separate"), "true");
  EXPECT_EQ(s.at("layers"), "2");
  EXPECT_EQ(s.at("schedule"), "constant");
  EXPECT_EQ(s.at("decisions"), "200000");
  EXPECT_TRUE(mentions(error_of([&] { read_spec(yaml, "", {"lr=1", "beta1=0"}, "x.yaml"); }).what(), "needs a value for ${mb}: spec_variables=mb=VALUE"));
  EXPECT_TRUE(mentions(error_of([&] { read_spec(replaced(yaml, "${mb}", "${mb"), "", {"mb=1"}, "x.yaml"); }).what(), "'${mb' is not of the form ${name}"));
}

// A recurrent network learns from whole sequences: minibatches are made of them, whatever sizes the file has.
TEST(Spec, RecurrentMinibatchesAreWholeSequences) {
  const std::string recurrent = replaced(replaced(kPong, R"("type": "ConvNet", "shared": true, "conv_hid_layers": [[32,8,4,0,1],[64,4,2,0,1],[64,3,1,0,1]],)",
                                                  R"("type": "RecurrentNet", "cell_type": "LSTM", "rnn_hidden_size": 32, "seq_len": 4,)"),
                                         "ALE/Pong-v5", "CartPole-v1");
  const SpecSettings read = read_spec(replaced(replaced(recurrent, ", \"life_loss_info\": true", ""), "\"fc_hid_layers\": [512]", "\"fc_hid_layers\": [64]"),
                                      "ppo_pong", {}, "x.json");
  EXPECT_EQ(settings_of(read).at("minibatch"), "256");
  const SpecSettings larger = read_spec(replaced(recurrent, "\"minibatch_size\": 250", "\"minibatch_size\": 300"), "ppo_pong", {}, "x.json");
  EXPECT_EQ(settings_of(larger).at("minibatch"), "512") << "3 sequences of 128 do not divide 16";
  EXPECT_TRUE(any_mentions(larger.notes, "agent.algorithm.minibatch_size becomes 512, so that it divides a rollout of 2048 into whole sequences of 128"));
}

// SLM-Lab normalises rewards first and then clips them; ours are clipped first, so both together are not the same thing.
TEST(Spec, RewardsAreClippedOrScaled) {
  auto with_rewards = [](const std::string& words) {
    return read_spec(replaced(replaced(kPong, "\"life_loss_info\": true", words), "ALE/Pong-v5", "PongNoFrameskip-v4"), "ppo_pong", {}, "x.json");
  };
  EXPECT_EQ(settings_of(with_rewards("\"clip_reward\": 2")).at("reward_clip"), "2");
  const SpecSettings both = with_rewards("\"normalize_reward\": true, \"clip_reward\": 10");
  EXPECT_EQ(settings_of(both).at("reward_clip"), "0");
  EXPECT_EQ(settings_of(both).at("scale_rewards"), "true");
  EXPECT_TRUE(any_mentions(both.notes, "env.clip_reward is not used: rewards are divided by the deviation of returns"));
  EXPECT_EQ(settings_of(with_rewards("\"reward_scale\": \"sign\"")).at("reward_clip"), "0") << "Pong's rewards are signs";
  EXPECT_TRUE(mentions(error_of([&] { with_rewards("\"clip_reward\": -1"); }).what(), "env.clip_reward: must not be negative"));
}

TEST(Spec, NamesWhatIsWrong) {
  struct Case {
    std::string from, to, message;
  };
  for (const Case& c : {Case{"\"lam\"", "\"lamm\"", "agent.algorithm.lamm: unknown key"},
                        {"\"name\": \"PPO\", \"gamma\"", "\"name\": \"SARSA\", \"gamma\"", "'SARSA' is not available, only PPO"},
                        {"ALE/Pong-v5", "ALE/Qbert-v5", "there is no environment 'ALE/Qbert-v5'"},
                        {"\"num_envs\": 16", "\"num_envs\": 1.5", "env.num_envs: 1.5 is not a whole number"},
                        {"\"time_horizon\": 128, ", "", "agent.algorithm.time_horizon: is missing"},
                        {"\"type\": \"ConvNet\"", "\"type\": \"DuelingConvNet\"", "'DuelingConvNet' is not available"},
                        {"\"gamma\": 0.99", "\"gamma\": \"high\"", "agent.algorithm.gamma: 'high' is not a number"},
                        {"\"OnPolicyBatchReplay\"", "\"OnPolicyBatchReplay\", \"max_sise\": 9", "agent.memory.max_sise: unknown key"},
                        {"\"meta\": {", "\"body\": {\"product\": \"outer\", \"number\": 1}, \"meta\": {", "body.number: unknown key"},
                        {"\"meta\": {", "\"body\": {\"num\": 2}, \"meta\": {", "body.num: only 1 is available"},
                        {"\"use_same_optim\": true", "\"critic_optim_spec\": {\"name\": \"Adam\", \"rate\": 1}", "critic_optim_spec.rate: unknown key"},
                        {"\"num_envs\": 16", "\"num_envs\": 0", "env.num_envs: 0 is not between 1"},
                        {"\"time_horizon\": 128", "\"time_horizon\": 1e12", "time_horizon: 1000000000000 is more than"},
                        {"\"num_envs\": 16", "\"num_envs\": 16, \"reward_scale\": 0.1", "not scaled by a fixed factor"},
                        {"LinearToZero", "StepLR", "'StepLR' is not available"}}) {
    const Error error = error_of([&] { read_spec(replaced(kPong, c.from, c.to), "ppo_pong", {}, "pong.json"); });
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_TRUE(mentions(error.what(), c.message)) << error.what();
    EXPECT_TRUE(mentions(error.what(), "pong.json")) << error.what();
  }
  EXPECT_TRUE(mentions(error_of([&] { read_spec(kPong, "ppo_pnog", {}, "pong.json"); }).what(), "ppo_pong"));
  EXPECT_EQ(error_of([&] { read_spec("{\"a\": [1", "", {}, "x"); }).code(), ErrorCode::usage);
  EXPECT_EQ(error_of([&] { read_spec("[]", "", {}, "x"); }).code(), ErrorCode::usage);
}

// Any text is read or refused.
TEST(Spec, SurvivesDamage) {
  uint32_t random = 1;
  for (int i = 0; i < 400; ++i) {
    std::string text = kPong;
    for (int k = 0; k < 3; ++k) {
      random = random * 1664525u + 1013904223u;
      const size_t at = random % text.size();
      if (random >> 30 == 0)
        text.erase(at, 1 + (random >> 8) % 20);
      else
        text[at] = char(random >> 16 & 127);
    }
    try {
      read_spec(text, "ppo_pong", {}, "x");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage) << error.what();
    }
  }
}

}  // namespace
}  // namespace ridge
