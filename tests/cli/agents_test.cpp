// Agents as a user sees them: a run, what its commands say about it, and about models that they cannot use.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include <fmt/format.h>
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

TEST(AgentCommands, EvalPrintsScoresWithTheirIntervals) {
  const RidgeProgram ridge;
  expect_words(ridge, 0, "PPO of", kAgent);
  const nlohmann::json j = nlohmann::json::parse(ridge({"eval", "agent/model", "--json", "threads=1"}).out);
  const std::string text = ridge({"eval", "agent/model", "threads=2"}).out;
  EXPECT_EQ(j.at("model"), "agent/model");
  EXPECT_EQ(j.at("environment"), "cartpole, [4], frame skip 1, sticky 0, at most 500 decisions");
  for (const char* how : {"sampled", "greedy"}) {
    const nlohmann::json& result = j.at(how);
    const double score = result.at("score"), interval = result.at("interval"), length = result.at("length");
    EXPECT_EQ(result.at("episodes"), 100);
    EXPECT_EQ(score, length) << "a reward of 1 per decision";
    EXPECT_TRUE(interval > 0 && interval < score) << interval;
    EXPECT_EQ(result.at("cut_off"), 0);
    const std::string line = fmt::format("{:<10}{:.2f} ± {:.2f} (95 %), 100 episodes of {:.0f} decisions on average\n", how, score, interval, length);
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

// A person in front of a terminal: what is seen decides when the next key is pressed.
TEST(AgentCommands, WatchPlaysPausesAndLetsAPersonPlay) {
  const RidgeProgram ridge;
  expect_words(ridge, 0, "PPO of", kAgent + " env=pong eval_interval=none decisions=64");
  const winsize size = {24, 100, 0, 0};
  int terminal = -1;
  const int process = forkpty(&terminal, nullptr, nullptr, &size);
  if (process == 0) {
    for (const auto& [name, value] :
         {std::pair<const char*, std::string>{"HOME", ridge.folder()}, {"RIDGE_CACHE", ridge / "cache"}, {"TERM", "xterm"}, {"NO_COLOR", "1"}})
      setenv(name, value.c_str(), 1);
    execl(ridge_program().c_str(), "ridge", "watch", (ridge / "agent").c_str(), "--speed", "10", "episodes=9", "threads=1", nullptr);
    _exit(127);
  }
  ASSERT_GT(process, 0);
  constexpr std::pair<const char*, const char*> kPresses[] = {
      {"decision 2", " "}, {"paused", " "}, {"play the left paddle", "\033[A"}, {"your paddle", "c"}, {"play the left paddle", "-"}, {"6.7x", "q"}};
  size_t pressed = 0, from = 0;
  std::string screen;
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60); std::chrono::steady_clock::now() < end;) {
    pollfd ready = {terminal, POLLIN, 0};
    if (poll(&ready, 1, 100) != 1) continue;
    char text[4096];
    const ssize_t n = read(terminal, text, sizeof text);
    if (n <= 0) break;  // the program has ended
    screen.append(text, size_t(n));
    if (pressed == std::size(kPresses) || screen.find(kPresses[pressed].first, from) == screen.npos) continue;
    const std::string_view keys = kPresses[pressed++].second;
    from = screen.size();
    ASSERT_EQ(write(terminal, keys.data(), keys.size()), ssize_t(keys.size()));
  }
  kill(process, SIGKILL);  // if it is still there
  int status = -1;
  waitpid(process, &status, 0);
  close(terminal);
  const std::string end = screen.substr(screen.size() - std::min<size_t>(screen.size(), 400));
  EXPECT_EQ(pressed, std::size(kPresses)) << end;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << end;
  const size_t left = screen.rfind("\033[?1049l");
  ASSERT_NE(left, screen.npos) << "the screen is given back";
  EXPECT_NE(screen.find("stopped in episode ", left), screen.npos) << end;
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

// What does not fit a run's environment or network is not the news: that these were changed is.
TEST(AgentCommands, ResumedWithAnotherEnvironmentOrNetwork) {
  const RidgeProgram ridge;
  expect_words(ridge, 0, "PPO of", kAgent);
  expect_refusal(ridge, 2, "agent was trained with env=cartpole, but env=acrobot was requested; leave it out", "train ppo --resume agent env=acrobot");
  expect_refusal(ridge, 2, "was trained with recurrent=none, but recurrent=lstm was requested", "train ppo --resume agent recurrent=lstm");
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
  expect_refusal(ridge, 2, "spec=s.json and preset=cartpole (command line) are two recipes", "plan ppo --spec s.json preset=cartpole");
  expect_words(ridge, 0, "PPO of", "train ppo --spec s.json threads=1 optimize_perf=false --out run");
  EXPECT_NE(read_text(ridge / "run/config.yaml").find("gamma: 0.9  # spec short_pole"), std::string::npos);
  expect_words(ridge, 0, "spec short_pole", "plan ppo --config run/config.yaml");
}

}  // namespace
}  // namespace ridge::test
