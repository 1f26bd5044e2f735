// Host environments follow the rules of Instances: a graph environment wrapped as a host one is bit-equal to itself, for any number of threads; and what an
// environment does wrong is named.
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "base/rng.h"
#include "rl/host_game.h"
#include "rl/host_instances.h"
#include "rl/matches.h"
#include "support/errors.h"

namespace ridge::test {
namespace {

constexpr int64_t kRows = 21, kFirst = 1000, kDecisions = 60;
constexpr uint64_t kHostSeed = 5;

std::vector<std::byte> bytes_of(const Tensor& t) {
  const auto* from = static_cast<const std::byte*>(t.data());
  return {from, from + t.size() * size_of(t.dtype())};
}

template <class T>
std::vector<T> values_of(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// [decisions, instances, …] of: frames, rewards, terminated, truncated, returns, lengths, discounted returns; and last frames where an episode ended.
struct Played {
  std::vector<std::byte> frames, reward, terminated, truncated, returns, lengths, discounted, final_frames;
};

std::vector<std::byte> random_actions(const ActionSpace& space) {
  std::vector<std::byte> all;
  for (int64_t i = 0; i < kDecisions * kRows; ++i)
    for (int64_t k = 0; k < space.components(); ++k) {
      const uint32_t word = random_word({1, 2, 3}, uint64_t(i * space.components() + k));
      const auto at = all.size();
      if (space.kind == ActionSpace::Kind::continuous) {
        const auto value = float(space.low[size_t(k)] + (space.high[size_t(k)] - space.low[size_t(k)]) * double(uniform_from(word)));
        all.resize(at + sizeof value), std::memcpy(all.data() + at, &value, sizeof value);
      } else {
        const int64_t value = word % space.choices[size_t(k)];
        all.resize(at + sizeof value), std::memcpy(all.data() + at, &value, sizeof value);
      }
    }
  return all;
}

Played played_as_graph(const Instances& game, const std::vector<std::byte>& actions) {
  seed(kHostSeed);
  const ActionSpace& space = game.spec().actions;
  Shape shape{kDecisions, kRows};
  if (space.kind != ActionSpace::Kind::discrete) shape.push_back(space.components());
  const DType type = space.kind == ActionSpace::Kind::continuous ? DType::f32 : DType::i64;
  const ScanStep step = [&](const std::vector<Tensor>& c, const std::vector<Tensor>& x) -> ScanOutput {
    const Instances::Decision d = game.step(c, x[0]);
    ScanOutput out{d.state, {game.frame(c), d.reward, d.terminated, d.truncated, d.episode_return, d.episode_length, d.final_observation}};
    if (game.options().return_discount > 0) out.outputs.push_back(game.discounted_return(d.state));
    return out;
  };
  const std::vector<Tensor> o = scan(step, game.start(numbers_from(kFirst, kRows)), {Tensor::from_bytes(shape, type, actions.data())}).outputs;
  detail::evaluate(o);
  Played p{bytes_of(o[0]), bytes_of(o[1]), bytes_of(o[2]), bytes_of(o[3]), bytes_of(o[4]), bytes_of(o[5]), {}, bytes_of(o[6])};
  if (o.size() > 7) p.discounted = bytes_of(o[7]);
  const size_t frame = p.frames.size() / size_t(kDecisions * kRows);
  for (size_t i = 0; i < p.terminated.size(); ++i)
    if (p.terminated[i] == std::byte(0) && p.truncated[i] == std::byte(0)) std::memset(p.final_frames.data() + i * frame, 0, frame);
  return p;
}

// `cut`: instances before it and from it on are played separately.
Played played_on_host(const Instances& game, const std::vector<std::byte>& actions, int threads, int64_t cut = 0) {
  ThreadTeam team({.threads = threads, .wait = Wait::passive});
  HostInstances host(game, kRows);
  host.start(team, kHostSeed, kFirst);
  Played p;
  constexpr size_t n = kDecisions * kRows;
  const auto frame = size_t(host.frame_bytes()), each = actions.size() / n;
  for (std::vector<std::byte>* v : {&p.reward, &p.returns, &p.lengths}) v->resize(n * sizeof(float));
  if (game.options().return_discount > 0) p.discounted.resize(n * sizeof(float));
  p.terminated.resize(n), p.truncated.resize(n), p.final_frames.resize(n * frame);
  for (size_t t = 0; t < size_t(kDecisions); ++t) {
    p.frames.insert(p.frames.end(), host.frames(), host.frames() + size_t(kRows) * frame);
    auto numbers = [&](std::vector<std::byte>& v) { return v.empty() ? nullptr : reinterpret_cast<float*>(v.data()) + t * size_t(kRows); };
    HostInstances::Results r{numbers(p.reward),  p.terminated.data() + t * kRows,           p.truncated.data() + t * kRows, numbers(p.returns),
                             numbers(p.lengths), p.final_frames.data() + t * kRows * frame, numbers(p.discounted)};
    for (int64_t i = 0; i < kRows; ++i) EXPECT_EQ(host.counter()[size_t(i)], int64_t(t));
    const std::byte* action = actions.data() + t * kRows * each;
    if (cut > 0) host.decide(team, cut, kRows, action, r);
    host.decide(team, 0, cut > 0 ? cut : kRows, action, r);
  }
  return p;
}

Instances wrapped(const std::string& name, const EnvOptions& options) {
  auto make = [name](int64_t rows) { return host_environment(make_environment(name), rows); };
  return Instances(std::make_shared<rl::HostGame>(name, make), options);
}

void expect_equal(const Played& a, const Played& b) {
  EXPECT_EQ(values_of<float>(a.reward), values_of<float>(b.reward));
  EXPECT_EQ(a.terminated, b.terminated);
  EXPECT_EQ(a.truncated, b.truncated);
  EXPECT_EQ(values_of<float>(a.returns), values_of<float>(b.returns));
  EXPECT_EQ(values_of<float>(a.lengths), values_of<float>(b.lengths));
  EXPECT_EQ(values_of<float>(a.discounted), values_of<float>(b.discounted));
  EXPECT_TRUE(a.frames == b.frames);
  EXPECT_TRUE(a.final_frames == b.final_frames);
}

TEST(HostInstances, PlayAGraphEnvironmentBitForBit) {
  struct Case {
    const char* name;
    EnvOptions options;
  };
  for (const Case& c :
       {Case{"cartpole", {}},
        {"cartpole", {.frame_skip = 3, .time_limit = 5, .sticky = 0.3, .noops = 4, .reward_clip = 2, .reward_scale = 0.25, .return_discount = 0.9}},
        {"pong", {.time_limit = 20}},
        {"pong", {.frame_skip = 7, .time_limit = 25, .sticky = 0.25}},
        {"pendulum", {.frame_skip = 2, .time_limit = 13, .sticky = 0.5, .noops = 2}},
        {"mountain-car", {.time_limit = 7, .reward_clip = 0.5}}}) {
    SCOPED_TRACE(testing::Message() << c.name << " " << c.options.frame_skip);
    const Instances graph(make_environment(c.name), c.options), host = wrapped(c.name, c.options);
    EXPECT_TRUE(host.on_host() && !graph.on_host());
    EXPECT_EQ(host.describe(), graph.describe());
    const std::vector<std::byte> actions = random_actions(graph.spec().actions);
    const Played p = played_as_graph(graph, actions);
    expect_equal(played_on_host(host, actions, 1), p);
    expect_equal(played_on_host(host, actions, 1, 8), p);
    EXPECT_GT(std::ranges::count(p.terminated, std::byte(1)) + std::ranges::count(p.truncated, std::byte(1)), 20);
  }
}

// The first state may hold one tensor several times, as Pong's does: what is loaded goes into each part by itself.
TEST(HostEnvironments, OfTensorCodeLoadWhatTheySaved) {
  constexpr int64_t kTwo[] = {0, 1};
  const auto played = host_environment(make_environment("pong"), 2), fresh = host_environment(make_environment("pong"), 2);
  const float draws[] = {0.1f, 0.9f};
  const int64_t choices[] = {1, 2};
  float reward[2], seen[2][16];
  bool terminated[2], truncated[2];
  HostMemory memory;
  memory.draws = draws, memory.choices = choices, memory.reward = reward, memory.terminated = terminated, memory.truncated = truncated;
  played->reset(kTwo, memory), fresh->reset(kTwo, memory);
  for (int t = 0; t < 70; ++t) played->step(kTwo, memory);
  for (const int64_t i : kTwo) fresh->load(i, played->save(i));
  for (int t = 0; t < 2; ++t) {
    for (const auto& [game, numbers] : {std::pair(played.get(), seen[0]), {fresh.get(), seen[1]}}) memory.numbers = numbers, game->observe(kTwo, memory);
    for (int k = 0; k < 16; ++k) EXPECT_EQ(seen[0][k], seen[1][k]) << "number " << k;
    for (int64_t i : kTwo) EXPECT_EQ(played->save(i), fresh->save(i));
    played->step(kTwo, memory), fresh->step(kTwo, memory);
  }
}

TEST(HostInstances, ContinueFromWhatTheySaved) {
  const Instances game = wrapped("pong", {.time_limit = 15, .sticky = 0.25});
  const std::vector<std::byte> actions = random_actions(game.spec().actions);
  ThreadTeam team({.threads = 1});
  HostInstances one(game, kRows), other(game, kRows);
  auto decide = [&](HostInstances& host, int64_t decision) {
    std::vector<float> reward(kRows);
    host.decide(team, 0, kRows, actions.data() + size_t(decision) * (actions.size() / size_t(kDecisions)), {.reward = reward.data()});
    return reward;
  };
  auto seen = [](const HostInstances& host) { return std::vector<std::byte>(host.frames(), host.frames() + kRows * host.frame_bytes()); };
  one.start(team, kHostSeed, kFirst), other.start(team, kHostSeed, kFirst);
  for (int64_t t = 0; t < 20; ++t) decide(one, t);
  EXPECT_TRUE(other.restore(team, kHostSeed, one.save()));
  for (int64_t t = 20; t < 30; ++t) {
    ASSERT_TRUE(seen(one) == seen(other)) << t;
    EXPECT_EQ(decide(one, t), decide(other, t));
  }
}

// Adds up what it is given: seeds, draws and actions. Over when the sum of its actions passes a limit that the seed decides.
class Sums : public HostEnvironment {
 public:
  explicit Sums(int64_t instances) : states_(size_t(instances)) {
    spec_.observation = {2}, spec_.actions.choices = {3}, spec_.step_draws = 2, spec_.reset_draws = 1;
  }
  const EnvSpec& spec() const override { return spec_; }
  void reset(Which which, const HostMemory& m) override {
    for (const int64_t i : which) states_[size_t(i)] = {m.draws[i], 0, float(m.seeds[i] % 7)};
  }
  void step(Which which, const HostMemory& m) override {
    for (const int64_t i : which) {
      State& s = states_[size_t(i)];
      s.draws += m.draws[2 * i] - m.draws[2 * i + 1], s.actions += float(m.choices[i]);
      m.reward[i] = s.draws, m.terminated[i] = s.actions > 5 + s.limit, m.truncated[i] = s.draws < -1;
      if (m.choices[i] == bad_action) on_bad(i, m);
    }
  }
  void observe(Which which, const HostMemory& m) const override {
    for (const int64_t i : which) m.numbers[2 * i] = states_[size_t(i)].draws, m.numbers[2 * i + 1] = states_[size_t(i)].actions;
  }
  int64_t bad_action = -1;
  std::function<void(int64_t, const HostMemory&)> on_bad;

 protected:
  struct State {
    float draws = 0, actions = 0, limit = 0;
  };
  std::vector<State> states_;
  EnvSpec spec_;
};

Instances sums(const std::function<void(Sums&)>& change = {}) {
  return Instances(std::make_shared<rl::HostGame>("sums",
                                                  [change](int64_t n) {
                                                    auto made = std::make_unique<Sums>(n);
                                                    if (change) change(*made);
                                                    return made;
                                                  }),
                   {.frame_skip = 2, .time_limit = 9, .sticky = 0.2, .noops = 2, .return_discount = 0.9});
}

TEST(HostInstances, DependNeitherOnThreadsNorOnRanges) {
  const Instances game = sums();
  const std::vector<std::byte> actions = random_actions(game.spec().actions);
  const Played one = played_on_host(game, actions, 1);
  expect_equal(played_on_host(game, actions, 3), one);
  expect_equal(played_on_host(game, actions, 2, 13), one);
  EXPECT_GT(std::ranges::count(one.terminated, std::byte(1)), 10);
  EXPECT_GT(std::ranges::count(one.truncated, std::byte(1)), 10);
}

TEST(HostInstances, NameWhatAnEnvironmentDoesWrong) {
  auto failure = [](const std::function<void(int64_t, const HostMemory&)>& bad) {
    const Instances game = sums([&](Sums& s) { s.bad_action = 1, s.on_bad = bad; });
    std::vector<std::byte> actions = random_actions(game.spec().actions);
    return error_of([&] { played_on_host(game, actions, 2); });
  };
  const auto thrown = failure([](int64_t, const HostMemory&) { throw std::runtime_error("the door is locked"); });
  EXPECT_TRUE(has(thrown, "sums: step() of instance") && has(thrown, "the door is locked") && has(thrown, "--resume"));
  EXPECT_TRUE(has(failure([](int64_t, const HostMemory&) { throw 3; }), "not a std::exception"));
  const auto reward = failure([](int64_t i, const HostMemory& m) { m.reward[i] = std::nanf(""); });
  EXPECT_TRUE(has(reward, "sums: the reward of instance 10") && has(reward, "is nan"));
  const Instances unseen = sums([](Sums& s) { s.bad_action = 2, s.on_bad = [&s](int64_t, const HostMemory& m) { m.reward[0] = INFINITY; }; });
  EXPECT_TRUE(has(error_of([&] { played_on_host(unseen, random_actions(unseen.spec().actions), 1); }), "reward of instance 1000 is inf"));

  ThreadTeam team({.threads = 1});
  HostInstances host(sums(), 3);
  host.start(team, 1, 0);
  const int64_t actions[] = {1, 3, 0};
  const auto range = error_of([&] {
    for (int k = 0; k < 20; ++k) host.decide(team, 0, 3, reinterpret_cast<const std::byte*>(actions), {});
  });
  EXPECT_TRUE(has(range, "action 3 of instance 1") && has(range, "0 to 2"));
}

TEST(HostInstances, AWatchNamesAnEnvironmentThatHangs) {
  std::mutex mutex;
  std::condition_variable reported;
  std::string message;
  auto hang = [&](int64_t, const HostMemory&) {  // until the watch has spoken
    std::unique_lock lock(mutex);
    reported.wait(lock, [&] { return !message.empty(); });
  };
  const Instances game = sums([&](Sums& s) { s.bad_action = 2, s.on_bad = hang; });
  EnvOptions options = game.options();
  options.timeout = 0.02, options.noops = 0, options.sticky = 0;
  ThreadTeam team({.threads = 1});
  HostInstances host(Instances(game.environment_pointer(), options), 4, [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    message = text;
    reported.notify_all();
  });
  host.start(team, 1, 100);
  int64_t actions[] = {0, 1, 1, 0};
  host.decide(team, 0, 4, reinterpret_cast<const std::byte*>(actions), {});
  EXPECT_EQ(message, "");
  actions[3] = 2;
  host.decide(team, 2, 4, reinterpret_cast<const std::byte*>(actions), {});
  EXPECT_NE(message.find("sums: step() of instances 102 to 103 has not returned for 0.02 seconds"), message.npos) << message;
  EXPECT_NE(message.find("env_timeout=SECONDS"), message.npos) << message;
}

TEST(HostInstances, RegisteredEnvironmentsHaveNames) {
  register_environment("test-sums", [](int64_t n) { return std::make_unique<Sums>(n); });
  const auto made = make_environment("test-sums");
  EXPECT_EQ(made->spec().name, "test-sums");
  EXPECT_TRUE(Instances(made).on_host());
  EXPECT_TRUE(has(error_of([&] { make_environment("test-sum"); }), "test-sums"));
  EXPECT_TRUE(has(error_of([&] { register_environment("pong", [](int64_t n) { return std::make_unique<Sums>(n); }); }), "already"));
  EXPECT_TRUE(has(error_of([&] { Instances(made).start(numbers_from(0, 2)); }), "env=test-sums"));
  register_environment("test-other", [] { return make_environment("cartpole"); });
  EXPECT_TRUE(has(error_of([&] { make_environment("test-other"); }), "its spec has the name \"cartpole\""));
}

}  // namespace
}  // namespace ridge::test
