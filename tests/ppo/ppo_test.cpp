// The parts of PPO: advantages, the loss and its gradient, distributions of actions, and statistics.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "eager/eager_device.h"
#include "machine/expect_error.h"
#include "ppo/playing.h"

namespace ridge {
namespace {

std::vector<float> drawn(size_t n, double low, double high, unsigned number) {
  std::mt19937 random(number);
  std::uniform_real_distribution<double> between(low, high);
  std::vector<float> values(n);
  for (float& v : values) v = float(between(random));
  return values;
}

Tensor flags(const Shape& shape, const std::vector<char>& values) { return Tensor::from_bytes(shape, DType::boolean, values.data()); }

TEST(Advantages, MatchADoubleReference) {
  for (const auto& [time, instances] : {std::pair<int64_t, int64_t>{1, 1}, {1, 5}, {7, 1}, {33, 3}, {128, 2}}) {
    SCOPED_TRACE(testing::Message() << time << " x " << instances);
    const size_t n = size_t(time * instances);
    const double gamma = 0.97, lambda = 0.9;
    const std::vector<float> reward = drawn(n, -1, 1, 1), value = drawn(n, -2, 2, 2), final_value = drawn(n, -2, 2, 3),
                             last = drawn(size_t(instances), -2, 2, 4);
    std::vector<char> terminated(n), truncated(n);
    std::mt19937 random(5);
    for (size_t i = 0; i < n; ++i) {
      terminated[i] = random() % 5 == 0;
      truncated[i] = !terminated[i] && random() % 5 == 0;
    }
    const Shape shape{time, instances};
    const auto [advantage, goal] = advantages(Tensor(shape, reward), Tensor(shape, value), flags(shape, terminated), flags(shape, truncated),
                                              Tensor(shape, final_value), Tensor({instances}, last), gamma, lambda);
    const std::vector<float> a = advantage.to_floats(), g = goal.to_floats();
    for (int64_t e = 0; e < instances; ++e) {
      double later = 0;
      for (int64_t t = time - 1; t >= 0; --t) {
        const auto i = size_t(t * instances + e);
        const double next = t + 1 == time ? double(last[size_t(e)]) : double(value[i + size_t(instances)]);
        const double after = terminated[i] ? 0 : truncated[i] ? double(final_value[i]) : next;
        const double surprise = double(reward[i]) + gamma * after - double(value[i]);
        later = surprise + (terminated[i] || truncated[i] ? 0 : gamma * lambda * later);
        EXPECT_NEAR(double(a[i]), later, 2e-5) << t << " " << e;
        EXPECT_NEAR(double(g[i]), later + double(value[i]), 2e-5) << t << " " << e;
      }
    }
  }
}

TEST(RunningMoments, AreThoseOfAllRowsTogether) {
  const std::vector<float> all = drawn(300, -3, 5, 7);
  RunningMoments parts(3);
  parts.count = 0, parts.variance = {0, 0, 0};
  parts.add(std::span(all).first(30)), parts.add(std::span(all).subspan(30, 210)), parts.add({}), parts.add(std::span(all).subspan(240));
  for (size_t k = 0; k < 3; ++k) {
    double mean = 0, variance = 0;
    for (size_t i = 0; i < 100; ++i) mean += double(all[3 * i + k]) / 100;
    for (size_t i = 0; i < 100; ++i) variance += std::pow(double(all[3 * i + k]) - mean, 2) / 100;
    EXPECT_NEAR(parts.mean[k], mean, 1e-9);
    EXPECT_NEAR(parts.variance[k], variance, 1e-9);
  }
}

TEST(EpisodeScore, CountsEveryInstanceAlike) {
  EpisodeScore score(4, 8);  // the last two episodes of each
  EXPECT_EQ(score.quota(), 2);
  for (int i = 0; i < 50; ++i) score.add(0, -21, 10);  // a quick loser
  EXPECT_FALSE(score.score()) << "the other instances have finished nothing";
  for (int64_t e : {1, 2, 3}) score.add(e, 5, 100), score.add(e, 7, 200);
  ASSERT_TRUE(score.score());
  EXPECT_DOUBLE_EQ(*score.score(), (2 * -21.0 + 3 * (5 + 7)) / 8);
  EXPECT_DOUBLE_EQ(*score.length(), (2 * 10.0 + 3 * 300) / 8);
  score.add(1, 9, 300);  // replaces the older one
  EXPECT_DOUBLE_EQ(*score.score(), (2 * -21.0 + 7 + 9 + 2 * (5 + 7)) / 8);
}

PolicyArgs small_policy(ActionSpace actions, int64_t inputs = 3) {
  PolicyArgs a;
  a.hidden = 5, a.layers = 1, a.observation = {inputs}, a.actions = std::move(actions);
  return a;
}
const ActionSpace kThree{ActionSpace::Kind::discrete, {3}, {}, {}}, kPair{ActionSpace::Kind::multi_discrete, {2, 4}, {}, {}},
    kReal{ActionSpace::Kind::continuous, {}, {-2, 0}, {2, 1}};

TEST(Policy, DrawsActionsAsOftenAsTheyAreProbable) {
  seed(3);
  const Policy policy(small_policy(kThree));
  constexpr int64_t kRows = 40000;
  const Tensor logits = expand(Tensor({1, 3}, {0.0f, 1.0f, -1.0f}), {kRows, 3});
  const std::vector<int64_t> action = policy.sample(logits, iota({kRows}), full({kRows}, 5, DType::i64)).to_ints();
  const double total = 1 + std::exp(1) + std::exp(-1);
  for (int64_t k = 0; k < 3; ++k) {
    const double p = std::exp(k == 0 ? 0 : k == 1 ? 1 : -1) / total, found = double(std::ranges::count(action, k)) / kRows;
    EXPECT_NEAR(found, p, 4 * std::sqrt(p * (1 - p) / kRows)) << k;
  }
  const std::vector<int64_t> others = policy.sample(logits, iota({kRows}), full({kRows}, 6, DType::i64)).to_ints();
  EXPECT_NE(action, others) << "another instance";
}

TEST(Policy, DrawsComponentsIndependently) {
  seed(3);
  const Policy policy(small_policy(kPair));
  constexpr int64_t kRows = 20000;
  const std::vector<int64_t> action = policy.sample(full({kRows, 6}, 0), iota({kRows}), full({kRows}, 1, DType::i64)).to_ints();
  std::vector<int64_t> counts(8, 0);
  for (size_t i = 0; i < kRows; ++i) ++counts[size_t(4 * action[2 * i] + action[2 * i + 1])];
  for (int64_t c : counts) EXPECT_NEAR(double(c), kRows / 8.0, 5 * std::sqrt(kRows / 8.0));
  const std::vector<float> log_p = policy.log_probability(full({4, 6}, 0), Tensor({4, 2}, std::vector<int64_t>{0, 0, 1, 3, 0, 2, 1, 1})).to_floats();
  for (float l : log_p) EXPECT_NEAR(double(l), std::log(1.0 / 8), 1e-6);
  EXPECT_NEAR(policy.entropy(full({1, 6}, 0)).item(), std::log(8.0), 1e-6);
}

TEST(Policy, GaussianActionsAreLikelyAsDrawnAndBoundedForTheEnvironment) {
  seed(3);
  Policy policy(small_policy(kReal));
  for (NamedTensor& p : parameters(policy))
    if (p.name == "log_deviation") *p.tensor = Tensor({2}, {0.5f, -1.0f});
  const Tensor mean({1, 2}, {0.3f, -0.2f}), action({1, 2}, {4.0f, -0.1f});
  double expected = 0;
  for (const auto& [x, m, s] : {std::tuple{4.0, 0.3, std::exp(0.5)}, {-0.1, -0.2, std::exp(-1.0)}})
    expected += -0.5 * std::pow((x - m) / s, 2) - std::log(s) - 0.5 * std::log(2 * std::numbers::pi);
  EXPECT_NEAR(policy.log_probability(mean, action).item(), expected, 1e-5) << "of the action as drawn, outside of the bounds";
  const std::vector<float> bounded = policy.for_environment(action).to_floats();
  EXPECT_FLOAT_EQ(bounded[0], 2) << "4 is beyond the upper bound";
  EXPECT_NEAR(bounded[1], 0.45, 1e-6) << "-0.1 of -1 … 1 is 0.45 of 0 … 1";
  constexpr int64_t kRows = 20000;
  const std::vector<float> many = policy.sample(expand(mean, {kRows, 2}), iota({kRows}), full({kRows}, 1, DType::i64)).to_floats();
  double sum = 0, squares = 0;
  for (size_t i = 0; i < kRows; ++i) sum += double(many[2 * i]), squares += double(many[2 * i]) * double(many[2 * i]);
  EXPECT_NEAR(sum / kRows, 0.3, 5 * std::exp(0.5) / std::sqrt(kRows));
  EXPECT_NEAR(std::sqrt(squares / kRows - std::pow(sum / kRows, 2)), std::exp(0.5), 0.04);
}

// With layers of its own, the value depends on nothing that decides the actions, and the other way round.
TEST(Policy, ASeparateValueSharesNothing) {
  seed(5);
  PolicyArgs args = small_policy(kThree);
  Policy shared(args);
  args.separate = true;
  Policy separate(args);
  auto outputs = [](const Policy& policy) {
    const Policy::Output out = policy.step(Tensor({2, 3}, {0.5f, -1.0f, 2.0f, 0.1f, 0.7f, -0.3f}), {});
    return std::pair(out.distribution.to_floats(), out.value.to_floats());
  };
  auto changed = [&](Policy& policy, const std::string& part) {  // distribution, value
    const auto before = outputs(policy);
    std::vector<Tensor> kept;
    for (NamedTensor& p : parameters(policy)) {
      kept.push_back(*p.tensor);
      if (p.name.find(part) != std::string::npos) *p.tensor = *p.tensor + 0.1;
    }
    const auto after = outputs(policy);
    for (size_t i = 0; NamedTensor & p : parameters(policy)) *p.tensor = kept[i++];
    return std::pair(after.first != before.first, after.second != before.second);
  };
  EXPECT_EQ(changed(separate, "towers.0"), std::pair(true, false));
  EXPECT_EQ(changed(separate, "towers.1"), std::pair(false, true));
  EXPECT_EQ(changed(separate, "actor"), std::pair(true, false));
  EXPECT_EQ(changed(separate, "critic"), std::pair(false, true));
  EXPECT_EQ(changed(shared, "towers.0"), std::pair(true, true));
}

TEST(Policy, BeginsWithOrthogonalWeights) {
  seed(1);
  Policy policy(small_policy(kThree, 8));
  for (const NamedTensor& p : parameters(policy)) {
    const std::vector<float> w = p.tensor->to_floats();
    if (p.tensor->shape().rank() == 1) {
      for (float v : w) EXPECT_EQ(v, 0) << p.name;
      continue;
    }
    const double gain = p.name == "actor.weight" ? 0.01 : p.name == "critic.weight" ? 1 : std::numbers::sqrt2;
    const int64_t rows = p.tensor->shape()[0], columns = p.tensor->shape()[1];  // all are wider than high
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j <= i; ++j) {
        double dot = 0;
        for (int64_t k = 0; k < columns; ++k) dot += double(w[size_t(i * columns + k)]) * double(w[size_t(j * columns + k)]);
        EXPECT_NEAR(dot, i == j ? gain * gain : 0, 1e-6) << p.name << " " << i << " " << j;
      }
  }
}

// A minibatch of arbitrary numbers. With large changes of the policy, so that both sides of the clip occur.
std::vector<Tensor> some_batch(const Policy& policy, const PpoArgs& args) {
  std::vector<Tensor> batch;
  unsigned number = 11;
  for (const BatchSpec& s : ppo_batch(policy, args)) {
    const auto n = size_t(s.shape.numel());
    if (s.dtype == DType::i64) {
      const std::vector<int64_t>& choices = policy.args().actions.choices;
      std::vector<int64_t> values(n);
      for (size_t i = 0; i < n; ++i) values[i] = int64_t(i * 7) % choices[i % choices.size()];
      batch.emplace_back(s.shape, values);
    } else {
      batch.emplace_back(s.shape, drawn(n, batch.size() == 2 ? -1.6 : -1, batch.size() == 2 ? -0.6 : 1, number++));
    }
  }
  if (policy.has_memory()) {
    std::vector<float> reset(size_t(args.minibatch));
    for (size_t i = 0; i < reset.size(); ++i) reset[i] = i % 4 == 2 ? 1.0f : 0.0f;
    batch[7] = Tensor(batch[7].shape(), reset);
  }
  return batch;
}

TEST(PpoLoss, GradientsMatchFiniteDifferences) {
  for (const auto& [actions, memory] :
       {std::pair<ActionSpace, const char*>{kThree, "none"}, {kReal, "none"}, {kPair, "none"}, {kThree, "gru"}, {kThree, "separate"}}) {
    SCOPED_TRACE(memory);
    seed(4);
    PolicyArgs a = small_policy(actions);
    a.separate = std::string(memory) == "separate", a.memory = std::string(memory) == "gru" ? memory : "none", a.memory_units = 4;
    Policy policy(a);
    for (NamedTensor& p : parameters(policy)) *p.tensor = Tensor(p.tensor->shape(), drawn(size_t(p.tensor->size()), -0.7, 0.7, 21));
    PpoArgs args;
    args.minibatch = 12, args.segment = policy.has_memory() ? 4 : 1, args.value_clip = 0.3, args.horizon = 4, args.instances = 3;
    const std::vector<Tensor> batch = some_batch(policy, args);
    std::vector<NamedTensor> weights = parameters(policy);
    auto value = [&] { return Tensor(ppo_loss(policy, args, batch)).item(); };
    for (NamedTensor& p : weights) {
      SCOPED_TRACE(p.name);
      const Tensor wrt[] = {*p.tensor};
      const std::vector<float> exact = grad(Tensor(ppo_loss(policy, args, batch)), wrt)[0].to_floats();
      const Tensor kept = *p.tensor;
      const std::vector<float> before = kept.to_floats();
      constexpr double kStep = 4e-3;
      for (size_t i = 0; i < before.size(); i += 3) {
        double ends[2];
        for (int side = 0; side < 2; ++side) {
          std::vector<float> moved = before;
          moved[i] += float(side ? kStep : -kStep);
          *p.tensor = Tensor(kept.shape(), moved);
          ends[side] = value();
        }
        EXPECT_NEAR(double(exact[i]), (ends[1] - ends[0]) / (2 * kStep), 2e-3) << i;
      }
      *p.tensor = kept;
    }
  }
}

TEST(PpoArgs, NameSizesThatDoNotFitTogether) {
  PpoArgs a = small_ppo();
  a.minibatch = 50;
  EXPECT_TRUE(mentions(error_of([&] { check(a); }).what(), "192 decisions, which minibatch=50 does not divide"));
  a = small_ppo(), a.segment = 5;
  EXPECT_TRUE(mentions(error_of([&] { check(a); }).what(), "segment=5 does not divide horizon=32"));
}

}  // namespace
}  // namespace ridge
