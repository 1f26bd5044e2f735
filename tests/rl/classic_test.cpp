// Classic control against trajectories of Gymnasium (tests/fixtures/environments/make.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/reference/evaluate.h"
#include "io/safetensors.h"
#include "rl/matches.h"
#include "support/source_dir.h"

namespace ridge::test {
namespace {

struct Recorded {
  int64_t trajectories, steps, variables;
  std::vector<double> state, action, reward, terminated;

  explicit Recorded(const std::string& name) {
    const SafetensorsFile file(source_dir() + "/tests/fixtures/environments/classic.safetensors");
    auto read = [&](const std::string& key) {
      const SafetensorView& v = file.at(name + "." + key);
      std::vector<double> values(v.data.size() / 8);
      std::memcpy(values.data(), v.data.data(), v.data.size());
      if (key == "state") trajectories = v.shape[0], steps = v.shape[1] - 1, variables = v.shape[2];
      return values;
    };
    state = read("state"), action = read("action"), reward = read("reward"), terminated = read("terminated");
  }
  double before(int64_t i, int64_t t, int64_t k) const { return state[size_t((i * (steps + 1) + t) * variables + k)]; }
  double after(int64_t i, int64_t t, int64_t k) const { return before(i, t + 1, k); }
  size_t at(int64_t i, int64_t t) const { return size_t(i * steps + t); }
  int64_t until(int64_t i) const {  // the decision that ends trajectory i's first episode, or the last one
    for (int64_t t = 0; t < steps; ++t)
      if (terminated[at(i, t)] != 0) return t;
    return steps - 1;
  }
};

Tensor as_action(const Environment& e, const Tensor& a) {
  return e.spec().actions.kind == ActionSpace::Kind::continuous ? reshape(a, {a.shape()[0], 1}) : cast(a, DType::i64);
}

const char* const kNames[] = {"cartpole", "acrobot", "pendulum", "mountain-car", "mountain-car-continuous"};

class Classic : public testing::TestWithParam<const char*> {};

// All steps in one loop, in double precision: no rounding to f32 anywhere.
TEST_P(Classic, FollowsGymnasiumOnTheReference) {
  const auto env = make_environment(GetParam());
  const Recorded r(GetParam());
  const int64_t n = r.trajectories;
  std::vector<Tensor> first;
  for (int64_t k = 0; k < r.variables; ++k) first.push_back(detail::placeholder({DType::f32, {n}}, "state"));
  const Tensor actions = detail::placeholder({DType::f32, {r.steps, n}}, "actions");
  const ScanOutput out = scan(
      [&](const std::vector<Tensor>& c, const std::vector<Tensor>& x) -> ScanOutput {
        const Environment::Next next = env->step(c, as_action(*env, x[0]), {});
        ScanOutput o{next.state, next.state};
        o.outputs.insert(o.outputs.end(), {next.reward, cast(next.terminated, DType::f32)});
        return o;
      },
      first, {actions});
  const std::shared_ptr<detail::Lazy> lazy = detail::common_lazy(out.outputs);
  std::vector<NodeId> roots;
  for (const Tensor& t : out.outputs) roots.push_back(detail::node_in(lazy, t));
  std::unordered_map<NodeId, reference::Array> values;
  auto bind = [&](const Tensor& t, const std::vector<double>& v) { values[lazy->node_of.at(t.state().get())] = {t.state()->type, v, {}}; };
  std::vector<double> by_step(r.action.size());
  for (int64_t i = 0; i < n; ++i)
    for (int64_t t = 0; t < r.steps; ++t) by_step[size_t(t * n + i)] = r.action[r.at(i, t)];
  bind(actions, by_step);
  for (int64_t k = 0; k < r.variables; ++k) {
    std::vector<double> v;
    for (int64_t i = 0; i < n; ++i) v.push_back(r.before(i, 0, k));
    bind(first[size_t(k)], v);
  }
  const std::vector<reference::Array> got = reference::evaluate(lazy->graph, roots, values);
  auto wrap = [](double x) { return x - 2 * M_PI * std::round(x / (2 * M_PI)); };
  for (int64_t i = 0; i < n; ++i)
    for (int64_t t = 0; t < r.steps; ++t) {
      const size_t at = size_t(t * n + i);
      for (int64_t k = 0; k < r.variables; ++k) {
        const double difference = got[size_t(k)].f[at] - r.after(i, t, k);
        ASSERT_NEAR(std::string(GetParam()) == "acrobot" && k < 2 ? wrap(difference) : difference, 0, 1e-9)
            << "trajectory " << i << ", step " << t << ", " << k;
      }
      if (t > r.until(i)) continue;
      ASSERT_NEAR(got[size_t(r.variables)].f[at], r.reward[r.at(i, t)], 1e-9);
      ASSERT_EQ(got[size_t(r.variables) + 1].f[at], r.terminated[r.at(i, t)]);
    }
}

// Single steps in f32 from every recorded state.
TEST_P(Classic, FollowsGymnasiumInSinglePrecision) {
  const auto env = make_environment(GetParam());
  const Recorded r(GetParam());
  const int64_t n = r.trajectories * r.steps;
  EnvState s;
  std::vector<float> action;
  for (int64_t k = 0; k < r.variables; ++k) {
    std::vector<float> v;
    for (int64_t i = 0; i < r.trajectories; ++i)
      for (int64_t t = 0; t < r.steps; ++t) v.push_back(float(r.before(i, t, k)));
    s.push_back(Tensor({n}, std::span<const float>(v)));
  }
  for (double a : r.action) action.push_back(float(a));
  const Environment::Next next = env->step(s, as_action(*env, Tensor({n}, std::span<const float>(action))), {});
  std::vector<Tensor> all = next.state;
  all.insert(all.end(), {next.reward, next.terminated});
  detail::evaluate(all);  // in one program
  const std::vector<float> reward = next.reward.to_floats(), over = next.terminated.to_floats();
  std::vector<std::vector<float>> state;
  for (const Tensor& t : next.state) state.push_back(t.to_floats());
  int64_t different = 0;
  for (int64_t i = 0; i < r.trajectories; ++i)
    for (int64_t t = 0; t <= r.until(i); ++t) {
      const size_t at = r.at(i, t);
      ASSERT_NEAR(reward[at], r.reward[at], 1e-5 * std::max(1.0, std::fabs(r.reward[at])) + 100 * double(over[at] != float(r.terminated[at])));
      different += over[at] != float(r.terminated[at]);
      for (int64_t k = 0; k < r.variables; ++k) {
        const double got = state[size_t(k)][at], want = r.after(i, t, k), angle = std::string(GetParam()) == "acrobot" && k < 2 ? 2 * M_PI : 0;
        const double error = std::min(std::fabs(got - want), std::fabs(std::fabs(got - want) - angle) + 1e9 * double(angle == 0));
        ASSERT_LE(error, 1e-5 * std::max(1.0, std::fabs(want))) << "trajectory " << i << ", step " << t << ", " << k;
      }
    }
  EXPECT_EQ(different, 0);  // none of the recorded states is within 1e-5 of a limit
}

TEST_P(Classic, PlaysAndDraws) {
  const Instances game(make_environment(GetParam()));
  seed(4);
  const bool real = game.spec().actions.kind == ActionSpace::Kind::continuous;
  const ScanStep step = [&](const std::vector<Tensor>& c, const std::vector<Tensor>&) -> ScanOutput {
    const Tensor u = uniform_at(game.counter(c), game.instance(c), 100);
    const Tensor action = real ? reshape(u * number(2) - number(1), {7, 1}) : cast(floor(u * number(double(game.spec().actions.choices[0]))), DType::i64);
    const Instances::Decision d = game.step(c, action);
    return {d.state, {game.observe(c), d.episode_length}};
  };
  const int64_t steps = game.options().time_limit + 1;
  const ScanOutput out = run_loop(step, game.start(numbers_from(0, 7)), steps);
  for (float x : out.outputs[0].to_floats()) ASSERT_TRUE(std::isfinite(x));
  const std::vector<float> lengths = out.outputs[1].to_floats();
  for (size_t i = 0; i < 7; ++i) {  // every instance finishes an episode
    float most = 0;
    for (size_t t = 0; t < size_t(steps); ++t) most = std::max(most, lengths[t * 7 + i]);
    EXPECT_GT(most, 0);
    EXPECT_LE(most, float(game.options().time_limit));
  }
  const Tensor picture = game.environment().render(game.environment_state(out.carry));
  ASSERT_EQ(picture.shape().rank(), 4);
  EXPECT_EQ(picture.shape()[0], 7);
  EXPECT_EQ(picture.shape()[3], 3);
  const std::vector<float> p = picture.to_floats();
  EXPECT_GT(std::count(p.begin(), p.end(), 60.f), 0) << "something dark is seen";
}

INSTANTIATE_TEST_SUITE_P(Environments, Classic, testing::ValuesIn(kNames), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace ridge::test
