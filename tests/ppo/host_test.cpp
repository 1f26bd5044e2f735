// Agents in host environments: the same bits as in the same environment written as tensor code.
#include <chrono>
#include <thread>

#include "machine/expect_error.h"
#include "ppo/agent_runs.h"
#include "ppo/playing.h"
#include "ridge/host_environment.h"
#include "support/temp_folder.h"
#include "support/variable.h"
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
    for (const int64_t i : which) advance(i, m.choices[i] ? 1.0f : -0.5f, m);
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

 protected:
  void advance(int64_t i, float way, const HostMemory& m) {
    State& s = states_[size_t(i)];
    s.at += way, ++s.age;
    m.reward[i] = s.at / 20, m.terminated[i] = s.at > 25, m.truncated[i] = s.age > 30;
  }
  struct State {
    float at = 0, age = 0;
  };
  std::vector<State> states_;
  bool saves_;
  EnvSpec spec_;
};

// The same with a force instead of a choice, or seen as a picture.
class Force : public Line {
 public:
  explicit Force(int64_t instances) : Line(instances, true) { spec_.actions = {ActionSpace::Kind::continuous, {}, {-1}, {1}}; }
  void step(Which which, const HostMemory& m) override {
    for (const int64_t i : which) advance(i, m.controls[i], m);
  }
};

class Picture : public Line {
 public:
  explicit Picture(int64_t instances) : Line(instances, true) { spec_.observation = {42, 42}, spec_.dtype = DType::u8; }
  void observe(Which which, const HostMemory& m) const override {
    for (const int64_t i : which)
      for (int64_t k = 0; k < 42 * 42; ++k) m.bytes[42 * 42 * i + k] = uint8_t(k % 42 < int64_t(states_[size_t(i)].at) ? 200 + k % 50 : 0);
  }
};

int64_t broken_instance = 0, calls_before_error = 0;
bool hangs = false;  // instead of throwing

class Broken : public Line {
 public:
  explicit Broken(int64_t instances) : Line(instances, true) {}
  void step(Which which, const HostMemory& m) override {
    const bool trains = states_.size() == 8;  // others evaluate
    if (trains && std::ranges::find(which, broken_instance) != which.end() && calls_++ == calls_before_error) {
      while (hangs) std::this_thread::sleep_for(std::chrono::hours(1));
      throw std::runtime_error("the door is locked");
    }
    Line::step(which, m);
  }

 private:
  int64_t calls_ = 0;
};

class HostTask : public AgentTask {
 protected:
  // Halves need two threads, whatever cores other Ridge processes hold.
  static void SetUpTestSuite() { cores_.emplace(), own_cores_.emplace("XDG_RUNTIME_DIR", cores_->path()); }
  static void TearDownTestSuite() { own_cores_.reset(), cores_.reset(); }
  static inline std::optional<test::TempFolder> cores_;
  static inline std::optional<test::Variable> own_cores_;

  void SetUp() override {
    AgentTask::SetUp();
    const std::vector<std::string> known = environment_names();
    for (const char* name : {"cartpole", "pendulum", "pong-pixels-42"})
      if (const std::string own = std::string("host-") + name; std::ranges::find(known, own) == known.end())
        register_environment(own, [name = std::string(name)](int64_t rows) { return host_environment(make_environment(name), rows); });
    if (std::ranges::find(known, "host-line") != known.end()) return;
    register_environment("host-line", [](int64_t rows) { return std::make_unique<Line>(rows, true); });
    register_environment("host-forgetful", [](int64_t rows) { return std::make_unique<Line>(rows, false); });
    register_environment("host-broken", [](int64_t rows) { return std::make_unique<Broken>(rows); });
    register_environment("host-force", [](int64_t rows) { return std::make_unique<Force>(rows); });
    register_environment("host-picture", [](int64_t rows) { return std::make_unique<Picture>(rows); });
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

// What a network remembers belongs to its episode: it ends with it, also where a resumed run begins new ones.
TEST_F(HostTask, NewEpisodesOfAResumedRunBeginWithoutMemories) {
  for (const bool saves : {true, false}) {
    PpoArgs args = small_ppo();
    args.segment = args.horizon;
    PolicyArgs policy;
    policy.hidden = 8, policy.memory = "lstm", policy.memory_units = 5;
    const char* const environment = saves ? "host-line" : "host-forgetful";
    Playing one(environment, policy, args), other(environment, policy, args);
    for (int64_t step = 0; step < args.updates(); ++step) one.batch(step);
    hand_over(*one.collector, *other.collector, (folder_ / environment) + ".safetensors");
    other.collector->seek(args.updates(), {});
    const std::vector<Tensor> batch = other.batch(args.updates());
    for (size_t i = 8; i < batch.size(); ++i) EXPECT_EQ(sum(abs(batch[i])).item() > 0, saves) << environment;
  }
}

TEST_F(HostTask, LearnsTheSameWhetherHalvesTakeTurnsOrNot) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"env=host-line", "recurrent=lstm", "recurrent_units=6", "frame_stack=3", "sticky=0.2"},
        {"env=host-forgetful", "scale_rewards=true", "noops=2", "normalize_observations=true", "instances=4"},
        {"env=host-line", "units=64", "instances=30", "minibatch=48", "decisions=960"},
        {"env=host-line", "units=33", "instances=62", "minibatch=62", "decisions=992"},
        {"env=host-force", "time_limit=7", "units=64", "instances=128", "minibatch=512", "decisions=4096"},
        {"env=host-picture", "network=small", "frame_stack=2", "instances=36", "horizon=4", "minibatch=36", "decisions=288"}}) {
    std::vector<std::string> tiny = kTiny;
    if (more[0] == "env=host-picture") std::erase(tiny, "units=8");
    SCOPED_TRACE(testing::PrintToString(more));
    RunSummary s;
    const auto whole = train(with(with(tiny, more), {"env_halves=false"}), s), halves = train(with(with(tiny, more), {"env_halves=true"}), s);
    EXPECT_EQ(whole->decided("env_halves"), "false");
    EXPECT_EQ(halves->decided("env_halves"), "true");
    EXPECT_EQ(weights(*halves), weights(*whole));
  }
}

TEST_F(HostTask, HalvesAreChosenByMeasurementAndKept) {
  auto planned = [&](const std::vector<std::string>& more, const std::string& folder = {}) {
    const config::Resolved s = settings(with(kTiny, more));
    RunOptions o;
    o.seed = 3, o.measure = true, o.resume = !folder.empty();
    if (o.resume) o.folder = folder_ / folder;
    const auto run = start_run(find_task(kPpoName), s, o);
    return *std::ranges::find(run->decisions, "env_halves", &Decision::setting);
  };
  const Decision measured = planned({"env=host-line", "threads=2"});
  EXPECT_EQ(measured.decided_by, "measured");
  const bool halves = measured.value == "true";
  EXPECT_TRUE(mentions(halves ? measured.why : measured.runner_up, "in halves: ")) << measured.why << measured.runner_up;
  EXPECT_TRUE(mentions(halves ? measured.runner_up : measured.why, "all instances together: ")) << measured.why << measured.runner_up;

  // One row is multiplied in another way than two: what time decides must not change what is learnt.
  const Decision other = planned({"env=host-line", "instances=2"});
  EXPECT_EQ(other.value, "false");
  EXPECT_EQ(other.why, "halves would compute other bits");

  for (const char* impossible : {"instances=7", "env=host-cartpole"}) {
    const Decision d = planned({"env=host-line", "minibatch=16", impossible});
    EXPECT_EQ(d.value, "false");
    EXPECT_TRUE(mentions(d.why, "an even number of instances")) << d.why;
    const Error refused = error_of([&] { planned({"env=host-line", "minibatch=16", impossible, "env_halves=true"}); });
    EXPECT_TRUE(refused.code() == ErrorCode::usage && mentions(refused.what(), "an even number of instances")) << refused.what();
  }
  EXPECT_TRUE(mentions(error_of([&] { planned({"env=cartpole", "env_halves=true"}); }).what(), "it is for host environments"));

  for (const char* choice : {"true", "false"}) {
    RunSummary s;
    const std::string folder = std::string("halves-") + choice;
    train(with(kTiny, {"env=host-line", std::string("env_halves=") + choice, "max_minutes=1e-9"}), s, folder);
    const Decision kept = planned({"env=host-line"}, folder);
    EXPECT_EQ(kept.value, choice);
    EXPECT_EQ(kept.decided_by, "the run so far");
    train(with(kTiny, {"env=host-line"}), s, folder, true);
    EXPECT_TRUE(s.outcome.bit_exact);
  }
}

// Whichever half an error is in, and whenever, the run ends with its message, and the next one is not disturbed.
TEST_F(HostTask, AnErrorInAHalfEndsTheRunWithItsMessage) {
  RunSummary s;
  const std::vector<std::string> line = with(kTiny, {"env=host-line", "env_halves=true"});
  const std::vector<float> expected = weights(*train(line, s));
  for (const int64_t instance : {0, 3, 4, 7})
    for (const int64_t call : {0, 1, 15, 16, 20}) {
      broken_instance = instance, calls_before_error = call;
      const Error e = error_of([&] { train(with(kTiny, {"env=host-broken", "env_halves=true"}), s); });
      EXPECT_EQ(e.code(), ErrorCode::value);
      EXPECT_TRUE(mentions(e.what(), "host-broken: step() of instance") && mentions(e.what(), "failed: the door is locked. ") && mentions(e.what(), "--resume"))
          << e.what();
    }
  EXPECT_EQ(weights(*train(line, s)), expected);
}

TEST_F(HostTask, AHalfThatHangsEndsTheProcessWithItsName) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the thread team does not survive a fork
  const auto hang = [&] {
    RunSummary s;
    broken_instance = 6, calls_before_error = 20, hangs = true;
    train(with(kTiny, {"env=host-broken", "env_halves=true", "env_timeout=0.1"}), s);
  };
  EXPECT_EXIT(hang(), testing::ExitedWithCode(1), "host-broken: step\\(\\) of instances? .*has not returned for 0.1 seconds.*can be resumed");
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
