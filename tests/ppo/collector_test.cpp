// What a rollout hands to the learner, and how its updates, rewards, evaluations and checkpoints go on from there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "ppo/playing.h"
#include "ridge/host_environment.h"
#include "tasks/ppo/kl_control.h"

namespace ridge {
namespace {

// Two numbers to choose, one of two and one of four; the state follows both, and an episode ends when it has gone far enough.
class TwoChoices final : public Environment {
 public:
  TwoChoices() {
    spec_.name = "two-choices", spec_.observation = {2}, spec_.actions = {ActionSpace::Kind::multi_discrete, {2, 4}, {}, {}}, spec_.reset_draws = 1;
  }
  const EnvSpec& spec() const override { return spec_; }
  EnvState reset(const Tensor&, const Draws& draws) const override { return {draws[0], draws[0] * 0.5}; }
  Next step(const EnvState& s, const Tensor& action, const Draws&) const override {
    auto chosen = [&](int64_t i) { return cast(reshape(slice(action, 1, i, i + 1), {action.shape()[0]}), DType::f32); };
    const Tensor first = s[0] + chosen(0), second = s[1] * 0.5 + chosen(1);
    return {{first, second}, second - 1, first > 6, {}};
  }
  Tensor observe(const EnvState& s) const override { return stack({s[0] * 0.2, s[1] * 0.3}, 1); }

 private:
  EnvSpec spec_;
};

// Before the first update, the learner must find the log-probabilities with which the actions were drawn, and the values: also where episodes end inside a
// segment, from stored states of a memory, from stacks of frames that begin in the rollout before, and in the second rollout.
TEST(Collector, GivesTheLearnerWhatThePolicyDid) {
  const std::vector<std::string> known = environment_names();
  if (std::ranges::find(known, "two-choices") == known.end()) register_environment("two-choices", [] { return std::make_shared<const TwoChoices>(); });
  struct Case {
    const char *environment, *memory;
    Precision precision = Precision::fp32;
  };
  for (const auto& [environment, memory, precision] : {Case{"cartpole", "none"},
                                                       {"cartpole", "lstm"},
                                                       {"cartpole", "cfc"},
                                                       {"cartpole", "mingru"},
                                                       {"cartpole", "ltc"},
                                                       {"cartpole", "none", Precision::bf16},
                                                       {"cartpole", "lstm", Precision::bf16},
                                                       {"pong-pixels-42", "none"},
                                                       {"two-choices", "none"},
                                                       {"two-choices", "gru"},
                                                       {"pong-pixels-42", "none", Precision::bf16}}) {
    SCOPED_TRACE(testing::Message() << environment << ", " << memory << ", " << name(precision));
    const bool pixels = std::string(environment) == "pong-pixels-42", bf16 = precision == Precision::bf16;
    PpoArgs args = small_ppo();
    if (pixels) args.instances = 2, args.horizon = 16, args.minibatch = 16;
    args.segment = std::string(memory) == "none" ? 1 : 16, args.normalize_observations = !pixels;
    PolicyArgs policy;
    policy.hidden = 16, policy.memory = memory, policy.memory_units = 8;
    if (pixels) policy.network = "small";
    Playing p(environment, policy, args, {.time_limit = pixels ? 13 : -1}, false, precision);
    double ended = 0;
    for (int64_t step = 0; step < 2 * args.updates(); ++step) {
      const std::vector<Tensor> batch = p.batch(step);
      const auto [log_p, value] = p.learner_apart(batch);
      EXPECT_LT(log_p, bf16 ? 2e-2 : 1e-5) << step;
      EXPECT_LT(value, bf16 ? 2e-2 : 1e-4) << step;
      const std::vector<float> advantage = batch[4].to_floats();
      double mean = 0, squares = 0;
      for (float a : advantage) mean += double(a) / double(advantage.size());
      for (float a : advantage) squares += std::pow(double(a) - mean, 2);
      EXPECT_NEAR(mean, 0, 1e-5);
      EXPECT_NEAR(squares / double(advantage.size() - 1), 1, 1e-3) << "normalised per minibatch";
      if (p.policy->has_memory()) ended += sum(batch[7]).item();
    }
    if (p.policy->has_memory()) {
      EXPECT_GT(ended, 0) << "no episode ended inside a segment: the test shows too little";
    }
  }
}

TEST(Collector, PassesOverARolloutCoverEveryDecisionOnce) {
  Playing p("cartpole", {}, small_ppo());
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<std::vector<float>> rows;
    for (int64_t m = 0; m < p.args.minibatches(); ++m) {
      const std::vector<float> x = p.batch(epoch * p.args.minibatches() + m)[0].to_floats();
      for (size_t i = 0; i < x.size(); i += 4) rows.push_back({x.begin() + long(i), x.begin() + long(i) + 4});
    }
    std::ranges::sort(rows);
    EXPECT_EQ(rows.size(), size_t(p.args.decisions()));
    EXPECT_EQ(std::ranges::adjacent_find(rows), rows.end()) << "no observation of this game repeats in so few decisions";
  }
}

// The decisions of all minibatches of an epoch, sorted by observation and action: each as its tensors one after another, without the advantage, which is
// relative to its minibatch, and what is the same for all.
std::vector<std::vector<float>> decisions_of(Playing& p, int64_t first_step) {
  std::vector<std::vector<float>> rows;
  for (int64_t m = 0; m < p.args.minibatches(); ++m) {
    const std::vector<Tensor> batch = p.batch(first_step + m);
    const int64_t count = p.args.minibatch / p.args.segment;
    std::vector<std::vector<float>> parts(static_cast<size_t>(count));
    for (size_t i = 0; i < batch.size(); ++i) {
      if (i == 4 || i == 6) continue;
      const std::vector<float> x = cast(batch[i], DType::f32).to_floats();
      const size_t width = x.size() / size_t(count);
      for (size_t r = 0; r < size_t(count); ++r) parts[r].insert(parts[r].end(), x.begin() + long(r * width), x.begin() + long((r + 1) * width));
    }
    rows.insert(rows.end(), parts.begin(), parts.end());
  }
  std::ranges::sort(rows);
  return rows;
}

// A GPU picks minibatches from tables in its own memory. Its decisions are those that the host would pick, in another order.
TEST(Collector, PicksTheSameDecisionsInDeviceMemory) {
  struct Case {
    const char *environment, *memory;
    int64_t time_limit;
  };
  for (const auto& [environment, memory, time_limit] :
       {Case{"cartpole", "none", 40}, {"cartpole", "gru", 9}, {"pong-pixels-42", "none", 12}, {"pendulum", "lstm", -1}}) {
    SCOPED_TRACE(testing::Message() << environment << " " << memory);
    const bool pixels = std::string(environment).find("pixels") != std::string::npos;
    PpoArgs args = small_ppo();
    if (pixels) args.instances = 2, args.horizon = 16, args.minibatch = 16;
    args.segment = std::string(memory) == "none" ? 1 : 8;
    args.normalize_observations = !pixels, args.normalize_values = args.scale_rewards = true;
    PolicyArgs policy;
    policy.hidden = 16, policy.memory = memory, policy.memory_units = 8;
    if (pixels) policy.network = "small";
    EnvOptions options;
    options.return_discount = args.gamma, options.time_limit = time_limit;
    Playing host(environment, policy, args, options), device(environment, policy, args, options, true);
    for (int64_t rollout = 0; rollout < 2; ++rollout)
      for (int64_t epoch = 0; epoch < args.epochs; ++epoch) {
        const int64_t first = rollout * args.updates() + epoch * args.minibatches();
        const auto want = decisions_of(host, first), got = decisions_of(device, first);
        ASSERT_EQ(want.size(), got.size());
        for (size_t r = 0; r < want.size(); ++r)
          for (size_t k = 0; k < want[r].size(); ++k) ASSERT_NEAR(want[r][k], got[r][k], 2e-4 * (1 + std::abs(want[r][k]))) << r << " " << k;
      }
    for (size_t k = 0; k < host.collector->observations().mean.size(); ++k)
      EXPECT_NEAR(host.collector->observations().mean[k], device.collector->observations().mean[k], 1e-5);
    EXPECT_NEAR(host.collector->values().variance[0], device.collector->values().variance[0], 1e-4 * host.collector->values().variance[0]);
    EXPECT_NEAR(host.collector->scalars()[2], device.collector->scalars()[2], 1e-4) << "explained variance";
  }
}

// With stacked pictures, the first observations after it hold frames of the rollout before.
TEST(Collector, ContinuesFromItsSavedState) {
  for (const bool pixels : {false, true})
    for (const bool on_device : {false, true}) {
      SCOPED_TRACE(testing::Message() << pixels << on_device);
      const char* const environment = pixels ? "pong-pixels-42" : "cartpole";
      PpoArgs args = small_ppo();
      if (pixels) args.instances = 2, args.horizon = 6, args.minibatch = 6;
      args.normalize_observations = !pixels, args.normalize_values = args.scale_rewards = true;
      PolicyArgs policy;
      if (pixels) policy.network = "small";
      EnvOptions options;
      options.return_discount = args.gamma, options.time_limit = pixels ? 5 : -1;
      Playing one(environment, policy, args, options, on_device), other(environment, policy, args, options, on_device);
      for (int64_t step = 0; step < args.updates(); ++step) one.batch(step);
      hand_over(*one.collector, *other.collector, testing::TempDir() + "/collector.safetensors");
      other.collector->seek(args.updates(), {});
      for (int64_t step = args.updates(); step < 2 * args.updates(); ++step) {
        const std::vector<Tensor> a = one.batch(step), b = other.batch(step);
        for (size_t i = 0; i < a.size(); ++i)
          EXPECT_EQ(std::memcmp(a[i].data(), b[i].data(), size_t(Type{a[i].dtype(), a[i].shape()}.bytes())), 0) << step << " " << i;
      }
    }
}

// A run that ended at its target goes on with a higher one: the evaluation that ended it may be within the margin of that too, and must not end it again.
TEST(Collector, GoesOnPastTheEvaluationThatEndedTheRun) {
  Playing p("cartpole", {}, small_ppo());
  p.collector->target = -std::numeric_limits<double>::infinity();  // any score, even none
  EXPECT_TRUE(p.collector->may_end());
  p.collector->go_on();
  EXPECT_FALSE(p.collector->may_end());
  for (int64_t step = 0; step + 1 < p.args.updates(); ++step) p.batch(step);
  EXPECT_FALSE(p.collector->may_end()) << "within the rollout";
  p.batch(p.args.updates() - 1);
  EXPECT_TRUE(p.collector->may_end());
}

// What a time-limited run keeps for its last evaluation follows the episodes seen so far, not the longest one allowed.
TEST(Collector, ExpectsEvaluationsOfUsualLength) {
  auto expected_length = [](const char* game, int64_t rollouts) {
    Playing p(game, {}, small_ppo());
    for (int64_t i = 0; i < rollouts; ++i)
      for (int64_t update = 0; update < p.args.updates(); ++update) p.collector->next(i * p.args.updates() + update);
    const Collector::Times& t = p.collector->times();
    return p.collector->validation_seconds() * double(t.rollouts * p.args.decisions()) / (100 * t.playing);
  };
  EXPECT_DOUBLE_EQ(expected_length("pong", 1), 1000) << "no match is over; a match may take 10,000 decisions";
  EXPECT_LT(expected_length("cartpole", 8), 100) << "a random policy balances the pole for about 20 decisions, 500 are allowed";
}

TEST(Collector, TellsActingFromTheEnvironmentAfterAWhile) {
  for (const bool on_device : {false, true}) {
    PpoArgs args = small_ppo();
    args.epochs = 1;
    Playing p("cartpole", {}, args, {}, on_device);
    const std::span<const std::string> names = p.collector->scalar_names();
    auto share = [&](const char* name) { return p.collector->scalars()[size_t(std::ranges::find(names, name) - names.begin())]; };
    auto roll_out = [&](int times) {
      for (int i = 0; i < times * int(args.updates()); ++i) p.collector->next(p.collector->position());
    };
    roll_out(45);
    EXPECT_TRUE(std::isnan(share("environment"))) << "nobody asked for it";
    p.collector->measure_environment_after = 1e9;
    roll_out(2);
    EXPECT_TRUE(std::isnan(share("environment"))) << "too early";
    p.collector->measure_environment_after = 0;
    roll_out(1);
    EXPECT_GT(share("environment"), 0);
    EXPECT_LE(share("environment"), share("playing"));
  }
}

TEST(Collector, PlaysTheSameNumberOfEpisodesInEveryInstance) {
  Playing p("cartpole", {}, small_ppo());
  const std::optional<PlayedEpisodes> played = p.collector->play(150, true);
  ASSERT_TRUE(played);
  EXPECT_EQ(played->returns.size(), 200u) << "two in each of 100 instances";
  for (size_t i = 0; i < played->returns.size(); ++i) EXPECT_EQ(played->returns[i], played->lengths[i]) << "a reward of 1 per decision";
  const std::optional<PlayedEpisodes> again = p.collector->play(150, true), greedy = p.collector->play(10, false);
  EXPECT_EQ(played->returns, again->returns) << "a function of weights, seed and the number of rollouts";
  EXPECT_EQ(greedy->returns.size(), 10u);
  EXPECT_FALSE(p.collector->play(10, true, [] { return true; }));
}

TEST(Collector, EvaluationsEndAndDiffer) {
  EnvOptions endless;
  endless.time_limit = 0;
  Playing p("pendulum", {}, small_ppo(), endless);  // no episode ends by itself
  const std::optional<PlayedEpisodes> played = p.collector->play(3, true);
  ASSERT_TRUE(played);
  EXPECT_EQ(played->capped, 3);
  Playing q("cartpole", {}, small_ppo());
  const std::vector<float> before = q.collector->play(100, true)->returns;
  for (int64_t step = 0; step < q.args.updates(); ++step) q.batch(step);
  EXPECT_NE(before, q.collector->play(100, true)->returns) << "the same weights, other episodes";
}

// A draw is a function of seed, stream, instance and counter. Evaluations have seeds of their own, and instances that training cannot have.
TEST(Collector, EvaluationsShareNoDraws) {
  PpoArgs args = small_ppo();
  args.epochs = 1, args.minibatch = args.instances * args.horizon;
  Playing p("cartpole", {}, args);
  std::set<uint64_t> seeds = {args.seed, ~args.seed};  // of training, and of ridge eval
  for (int64_t rollout = 0; rollout < 20; ++rollout) {
    EXPECT_TRUE(seeds.insert(p.collector->evaluation_seed()).second) << rollout;
    p.batch(rollout);
  }
  EXPECT_GE(kFirstShown, kFirstEvaluated + 100) << "evaluations play 100 instances";
  EXPECT_LT(kFirstShown, int64_t(1) << 32) << "an instance is the lane of its draws";
}

TEST(Collector, TheWeightOfTheEntropyFallsFromRolloutToRollout) {
  for (const bool on_device : {false, true}) {
    PpoArgs args = small_ppo();
    args.entropy = 0.03, args.final_entropy = -0.03;
    Playing p("cartpole", {}, args, {}, on_device);
    for (int64_t rollout = 0; rollout < 5; ++rollout)  // the last of four has the final weight
      for (int64_t update = 0; update < args.updates(); ++update)
        for (const float weight : p.batch(rollout * args.updates() + update)[6].to_floats())
          ASSERT_FLOAT_EQ(weight, 0.03f - 0.02f * float(std::min<int64_t>(rollout, 3))) << rollout << " " << update;
  }
}

// Rewards are divided by the deviation of the discounted returns of the rollouts before. Episodes of three decisions with a reward of 1 each make both known.
TEST(Collector, RewardsAreScaledByTheReturnsBefore) {
  for (const bool on_device : {false, true}) {
    PpoArgs args = small_ppo();
    args.scale_rewards = true, args.gamma = 0;  // then a value to learn is a reward
    EnvOptions options;
    options.time_limit = 3, options.return_discount = 0.9;
    Playing p("cartpole", {}, args, options, on_device);
    RunningMoments returns;
    float running = 0;
    int64_t age = 0;
    for (int64_t rollout = 0; rollout < 3; ++rollout) {
      const double expected = 1 / std::sqrt(returns.variance[0] + 1e-8);
      for (int64_t update = 0; update < args.updates(); ++update)
        for (const float goal : p.batch(rollout * args.updates() + update)[5].to_floats()) ASSERT_NEAR(goal, expected, 1e-4 * expected) << rollout;
      std::vector<float> all;
      for (int64_t t = 0; t < args.horizon; ++t) {
        const bool ends = ++age == 3;
        running = (ends ? 0 : running * 0.9f) + 1;
        if (ends) age = 0;
        all.insert(all.end(), size_t(args.instances), running);
      }
      returns.add(all);
    }
  }
}

// Hands out one rollout; its updates had these KL divergences, and NaN where they were skipped. Returns how many were handed out, and the rate afterwards.
std::pair<int, double> after_updates(Playing& p, const std::vector<double>& kl) {
  const std::vector<std::string>& names = p.held->step.scalars();
  int made = 0;
  for (int64_t update = 0; update < p.args.updates(); ++update) {
    if (p.collector->next(p.collector->position()).left_out) continue;
    StepMetrics m;
    m.scalars[size_t(std::ranges::find(names, "kl") - names.begin())] = kl[size_t(update)], m.applied = !std::isnan(kl[size_t(update)]);
    p.collector->collected(m), ++made;
  }
  return {made, p.collector->rate(1)};
}

// Two epochs of three updates. An epoch ends with its last update, whether all were applied or not.
TEST(Collector, TheRateFollowsTheKlDivergenceOfWholeEpochs) {
  PpoArgs args = small_ppo();
  args.adaptive_kl = 0.01;
  Playing p("cartpole", {}, args);
  constexpr double kSkipped = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(p.collector->rate(1), 1);
  EXPECT_DOUBLE_EQ(after_updates(p, {0.01, 0.01, 0.01, 0.006, 0.006, 0.019}).second, 1) << "near its target";
  EXPECT_DOUBLE_EQ(after_updates(p, {0.03, 0.03, 0.01, 0.01, 0.01, 0.01}).second, 1 / 1.5);
  EXPECT_DOUBLE_EQ(after_updates(p, {0.001, 0.002, 0.001, 0.001, 0.001, 0.001}).second, 1.5) << "both epochs raise it";
  EXPECT_DOUBLE_EQ(after_updates(p, {0.03, kSkipped, 0.03, 0.01, 0.01, 0.01}).second, 1) << "the mean of those that were applied";
  EXPECT_DOUBLE_EQ(after_updates(p, {kSkipped, kSkipped, kSkipped, 0.01, 0.01, 0.01}).second, 1) << "nothing is known";
  for (int i = 0; i < 10; ++i) after_updates(p, {9, 9, 9, 9, 9, 9});
  EXPECT_DOUBLE_EQ(p.collector->rate(1), kSmallestFactor);
  for (int i = 0; i < 20; ++i) after_updates(p, {0, 0, 0, 0, 0, 0});
  EXPECT_DOUBLE_EQ(p.collector->rate(1), kLargestFactor);
}

TEST(Collector, ALargeDivergenceLeavesOutTheRestOfARollout) {
  PpoArgs args = small_ppo();
  args.target_kl = 0.02, args.epochs = 3;
  Playing p("cartpole", {}, args);
  constexpr double kSkipped = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(after_updates(p, {0.01, 0.01, 0.03, 0.01, 0.01, 0.01, 9, 9, 9}).first, 9) << "the mean of an epoch counts, and the last epoch has no next one";
  EXPECT_EQ(after_updates(p, {0.01, 0.01, 0.01, 0.03, 0.03, 0.03, 0, 0, 0}).first, 6);
  EXPECT_EQ(after_updates(p, {0.03, kSkipped, 0.03, 0, 0, 0, 0, 0, 0}).first, 3) << "a skipped update does not delay the end of its epoch";
  EXPECT_EQ(after_updates(p, {0, 0, 0, 0, 0, 0, 0, 0, 0}).first, 9) << "the next rollout is complete again";
}

// The same rule, as numbers on the host and as tensors on a device.
TEST(KlControl, IsTheSameOnTheHostAndInPrograms) {
  PpoArgs args = small_ppo();
  args.adaptive_kl = 0.01, args.target_kl = 0.04;
  KlControl<double> host{1, 0, 0, 0, 0};
  KlControl<Tensor> device{full({}, 1), full({}, 0), full({}, 0), full({}, 0), full({}, 0)};
  std::mt19937 random(3);
  std::set<double> factors;
  for (int update = 0; update < 60; ++update) {
    const double kl = 0.06 * double(random() % 1000) / 1000 * double(update / 12 % 2);
    const bool applied = random() % 4 != 0;
    auto flag = [](bool b) { return full({}, b, DType::boolean); };
    host = after_update(host, true, applied, kl, args), device = after_update(device, flag(true), flag(applied), full({}, kl), args);
    for (const auto& [a, b] : {std::pair(host.factor, device.factor),
                               {host.sum, device.sum},
                               {host.applied, device.applied},
                               {host.made, device.made},
                               {host.stopped, device.stopped}})
      ASSERT_NEAR(a, b.item(), 1e-5 * (1 + a)) << update;
    factors.insert(host.factor);
  }
  EXPECT_GT(factors.size(), 5u);
  EXPECT_EQ(host.stopped, 1);
}

}  // namespace
}  // namespace ridge
