// Agents in host environments: the same bits as in the same environment written as tensor code.
#include "machine/expect_error.h"
#include "ppo/agent_runs.h"
#include "ridge/host_environment.h"
#include "tasks/ppo/player.h"

namespace ridge {
namespace {

// Walks along a line; the end is a few steps away.
class Line : public HostEnvironment {
 public:
  Line(int64_t instances, bool saves) : states_(size_t(instances)), saves_(saves) { spec_.observation = {2}, spec_.actions.choices = {2}; }
  const EnvSpec& spec() const override { return spec_; }
  void reset(Which which, const HostMemory& m) override {
    for (const int64_t i : which) states_[size_t(i)] = {float(m.seeds[i] % 20), 0};
  }
  void step(Which which, const HostMemory& m) override {
    for (const int64_t i : which) {
      State& s = states_[size_t(i)];
      s.at += m.choices[i] ? 1.0f : -0.5f, ++s.age;
      m.reward[i] = s.at / 20, m.terminated[i] = s.at > 25, m.truncated[i] = s.age > 30;
    }
  }
  void observe(Which which, const HostMemory& m) const override {
    for (const int64_t i : which) m.numbers[2 * i] = states_[size_t(i)].at / 20, m.numbers[2 * i + 1] = 1;
  }
  bool can_save() const override { return saves_; }
  std::vector<std::byte> save(int64_t i) const override {
    const auto* bytes = reinterpret_cast<const std::byte*>(&states_[size_t(i)]);
    return {bytes, bytes + sizeof(State)};
  }
  void load(int64_t i, std::span<const std::byte> bytes) override { std::memcpy(&states_[size_t(i)], bytes.data(), sizeof(State)); }

 private:
  struct State {
    float at = 0, age = 0;
  };
  std::vector<State> states_;
  bool saves_;
  EnvSpec spec_;
};

class HostTask : public AgentTask {
 protected:
  void SetUp() override {
    AgentTask::SetUp();
    const std::vector<std::string> known = environment_names();
    for (const char* name : {"cartpole", "pendulum", "pong-pixels-42"})
      if (const std::string own = std::string("host-") + name; std::ranges::find(known, own) == known.end())
        register_environment(own, [name = std::string(name)](int64_t rows) { return host_environment(make_environment(name), rows); });
    if (std::ranges::find(known, "host-line") != known.end()) return;
    register_environment("host-line", [](int64_t rows) { return std::make_unique<Line>(rows, true); });
    register_environment("host-forgetful", [](int64_t rows) { return std::make_unique<Line>(rows, false); });
  }
};

TEST_F(HostTask, LearnsWithTheBitsOfTensorCode) {
  for (const std::vector<std::string>& more : {std::vector<std::string>{"env=cartpole"},
                                               {"env=cartpole", "scale_rewards=true", "normalize_observations=true", "normalize_values=true", "time_limit=9"},
                                               {"env=cartpole", "recurrent=lstm", "recurrent_units=6", "segment=8", "sticky=0.2", "noops=3", "time_limit=11"},
                                               {"env=pendulum", "time_limit=7", "reward_clip=3"}}) {
    SCOPED_TRACE(testing::PrintToString(more));
    RunSummary s;
    const std::vector<float> expected = weights(*train(with(kTiny, more), s));
    std::vector<std::string> host = more;
    host[0].insert(4, "host-");
    EXPECT_EQ(weights(*train(with(kTiny, host), s)), expected);
  }
}

TEST_F(HostTask, ResumesWithTheSameBitsIfTheEnvironmentIsSaved) {
  struct Case {
    std::vector<std::string> settings;
    bool exact;
  };
  for (const Case& c : {Case{{"env=host-line", "frame_stack=3", "sticky=0.3", "noops=2", "scale_rewards=true", "recurrent=lstm", "recurrent_units=6"}, true},
                        {{"env=host-cartpole", "normalize_observations=true"}, true},
                        {{"env=host-forgetful"}, false}}) {
    SCOPED_TRACE(c.settings[0]);
    RunSummary whole, first, rest;
    const std::vector<float> expected = weights(*train(with(kTiny, c.settings), whole, "whole" + c.settings[0]));
    train(with(with(kTiny, c.settings), {"max_minutes=1e-9"}), first, "parts" + c.settings[0]);
    EXPECT_EQ(first.outcome.steps, 8);
    const auto run = train(with(kTiny, c.settings), rest, "parts" + c.settings[0], true);
    EXPECT_EQ(rest.outcome.steps, 32);
    EXPECT_EQ(rest.outcome.bit_exact, c.exact);
    EXPECT_EQ(weights(*run) == expected, c.exact);
    const std::string log = test::read_text(folder_ / ("parts" + c.settings[0]) + "/log.txt");
    EXPECT_EQ(mentions(log, "not bit-exact: host-forgetful has no save(), so new episodes begin"), !c.exact) << log;
  }
}

TEST_F(HostTask, PlaysTheSameEpisodesAndPictures) {
  auto games = [&](const std::string& name, bool sampled) {
    TrainedAgent t;
    t.instances = std::make_unique<Instances>(make_environment(name), EnvOptions{.time_limit = 40, .sticky = 0.2, .noops = 3});
    PolicyArgs p;
    p.hidden = 8, p.memory = sampled ? "lstm" : "none", p.memory_units = 5;
    if (t.instances->observation_shape().rank() == 3) p.network = "small";
    p.observation = t.instances->observation_shape(), p.dtype = t.instances->spec().dtype, p.actions = t.instances->spec().actions;
    seed(7);
    t.policy = std::make_shared<Policy>(p);
    t.args.seed = 11, t.args.instances = t.args.horizon = t.args.minibatch = t.args.epochs = 1;
    t.observations = RunningMoments(size_t(t.instances->spec().observation.numel()));
    const auto held = t.hold("cpu");
    Collector collector(held->step, t.policy, t.tensors(), *t.instances, t.args);
    collector.begin();
    std::vector<float> lengths = collector.play(name.ends_with("cartpole") ? 130 : 1, sampled)->lengths;
    std::ranges::sort(lengths);
    AgentPlayer player(held->step, t.policy, t.tensors(), *t.instances, t.args, {.sampled = sampled, .decisions = 8});
    return std::pair(lengths, record_episodes(player, *t.instances, 3, 1, 24).gif);
  };
  for (const bool sampled : {true, false}) {
    const auto graph = games("cartpole", sampled);
    EXPECT_EQ(graph, games("host-cartpole", sampled));
    EXPECT_EQ(graph.first.size(), 200u);
  }
  EXPECT_EQ(games("pong-pixels-42", false), games("host-pong-pixels-42", false)) << "stacked frames";
}

}  // namespace
}  // namespace ridge
