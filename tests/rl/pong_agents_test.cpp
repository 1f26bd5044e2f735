// Pong's difficulty, measured with scripted agents over 1,000 matches each. The rules are frozen: a change that moves these scores invalidates every recipe.
#include <gtest/gtest.h>

#include "rl/matches.h"

namespace ridge::test {
namespace {

constexpr int64_t kMatches = 1000, kStay = 0, kUp = 1, kDown = 2;
constexpr double kPlane = 60, kWall = 78, kLimit = 72, kTop = 3.5, kTopSlant = 3.3, kPaddleSpeed = 2.4, kResponse = 0.3, kReach = 10, kZones = 8;

// What an agent sees, in the units of the rules.
struct View {
  Tensor x, y, vx, vy, own, own_speed, opponent;
  explicit View(const Tensor& observation) {
    auto column = [&](int64_t i, double scale) { return reshape(slice(observation, 1, i, i + 1), {observation.shape()[0]}) * number(scale); };
    x = column(0, kPlane), y = column(1, kWall), vx = column(2, kTop), vy = column(3, kTopSlant);
    own = column(4, kLimit), own_speed = column(5, kPaddleSpeed), opponent = column(6, kLimit);
  }
  Tensor coming() const { return vx > number(0); }
  Tensor frames() const { return ceil((number(kPlane) - x) / maximum(vx, number(1e-3))); }  // until the ball is at the agent's paddle
  Tensor impact() const { return folded(y + vy * frames()); }
  // Where a ball that is not reflected would be, reflected by the walls.
  static Tensor folded(const Tensor& y) {
    const Tensor t = mod(y + number(kWall), number(4 * kWall));
    return where(t > number(2 * kWall), number(4 * kWall) - t, t) - number(kWall);
  }
};

Tensor towards(const Tensor& distance, double slack) {
  return where(distance > number(slack), integer(kDown), where(distance < number(-slack), integer(kUp), integer(kStay)));
}

// Stops at the target: what remains of the paddle's momentum counts.
Tensor go(const View& v, const Tensor& target, double slack) { return towards(target - (v.own + v.own_speed * number(0.9 * (1 / kResponse - 1))), slack); }

Tensor random_agent(const Instances& game, const EnvState& s) {
  return cast(floor(uniform_at(game.counter(s), game.instance(s), 100) * number(3)), DType::i64);
}
Tensor still_agent(const Instances& game, const EnvState& s) { return full(game.age(s).shape(), 0, DType::i64); }
Tensor tracker(const Instances& game, const EnvState& s) {
  const View v(game.observe(s));
  return towards(v.y - v.own, 4);
}
Tensor impact_agent(const Instances& game, const EnvState& s) {
  const View v(game.observe(s));
  return where(v.coming(), go(v, v.impact(), 3), integer(kStay));
}

// Meets the ball with the outermost zone, so that it goes far from the opponent at full speed. The last three decisions are chosen by trying all of them.
Tensor aiming_agent(const Instances& game, const EnvState& s) {
  constexpr int kDecisions = 3, kPlans = 27;
  const View v(game.observe(s));
  const int64_t rows = v.x.shape()[0];
  const Tensor at = v.impact(), frames = v.frames();
  auto lands = [&](double side) { return View::folded(at + number(side * kTopSlant * std::ceil(2 * kPlane / kTop))); };
  const Tensor side = where(abs(lands(1) - v.opponent) > abs(lands(-1) - v.opponent), number(1), number(-1));
  const Tensor beside = side * number(kReach * (1 - 1 / kZones)), wanted = at - beside;
  const Tensor target = where(abs(wanted) <= number(kLimit), wanted, at + beside);

  std::vector<float> asked[kDecisions];  // of every plan
  std::vector<int64_t> first;
  for (int plan = 0; plan < kPlans; ++plan) {
    int rest = plan;
    for (auto& decision : asked) decision.push_back(rest % 3 == kUp ? -kPaddleSpeed : rest % 3 == kDown ? kPaddleSpeed : 0), rest /= 3;
    first.push_back(plan % 3);
  }
  auto each = [&](const Tensor& t) { return reshape(t, {rows, 1}); };
  Tensor y = each(v.own), speed = each(v.own_speed), error = full({rows, kPlans}, 1000);
  for (int frame = 1; frame <= 4 * kDecisions; ++frame) {
    speed = speed + number(kResponse) * (Tensor({1, kPlans}, std::span<const float>(asked[(frame - 1) / 4])) - speed);
    y = minimum(maximum(y + speed, number(-kLimit)), number(kLimit));
    error = where(equal(each(frames), number(frame)), abs(y - each(target)), error);
  }
  const Tensor best = take(Tensor({kPlans}, std::span<const int64_t>(first)), argmin(error, 1));
  const Tensor approach = where(v.coming(), go(v, target, 2), go(v, full({rows}, 0), 6));
  return where(logical_and(v.coming(), frames <= number(4 * kDecisions)), best, approach);
}

Matches play_pong(const Agent& agent, int64_t matches = kMatches) {
  seed(1);
  return play(Instances(make_environment("pong")), agent, matches);
}

void expect_between(double low, double value, double high, const char* what) {
  EXPECT_GE(value, low) << what;
  EXPECT_LE(value, high) << what;
  testing::Test::RecordProperty(what, std::to_string(value));
}

}  // namespace

TEST(PongAgents, RandomLoses) {
  const Matches m = play_pong(random_agent);
  expect_between(-20.8, m.mean_score(), -19.5, "score");
  expect_between(700, m.mean_length(), 1300, "decisions");
}

TEST(PongAgents, StandingStillLoses) { expect_between(-21, play_pong(still_agent).mean_score(), -20, "score"); }

TEST(PongAgents, FollowingTheBallIsNearParity) { expect_between(-8, play_pong(tracker).mean_score(), 4, "score"); }

TEST(PongAgents, GoingToTheImpactPointIsNotEnough) { expect_between(-2, play_pong(impact_agent).mean_score(), 8, "score"); }

TEST(PongAgents, AimingWins) { expect_between(20.5, play_pong(aiming_agent).mean_score(), 21, "score"); }

TEST(PongAgents, NoRandomLinearPolicyWins) {
  constexpr int64_t kPolicies = 500, kFeatures = 9;
  const auto policy = [](const Tensor& weights) {  // [instances, 3, 9]
    return [=](const Instances& game, const EnvState& s) {
      const Tensor o = game.observe(s), one = full({o.shape()[0], 1}, 1), features = reshape(concat({o, one}, 1), {o.shape()[0], 1, kFeatures});
      return argmax(sum(weights * features, {2}), 2 - 1);
    };
  };
  seed(7);
  const std::vector<float> drawn = normal({kPolicies, 3, kFeatures}).to_floats();
  std::vector<float> twice = drawn;
  twice.insert(twice.end(), drawn.begin(), drawn.end());
  const Matches tried = play_pong(policy(Tensor({2 * kPolicies, 3, kFeatures}, std::span<const float>(twice))), 2 * kPolicies);
  size_t best = 0;
  auto score = [&](size_t i) { return tried.score[i] + tried.score[i + kPolicies]; };
  for (size_t i = 1; i < kPolicies; ++i)
    if (score(i) > score(best)) best = i;
  const auto from = drawn.begin() + long(best) * 3 * kFeatures;
  const Tensor weights({1, 3, kFeatures}, std::span<const float>(from, from + 3 * kFeatures));
  expect_between(-21, play_pong(policy(weights)).mean_score(), 5, "score");
}

// Frozen: results and recipes refer to these rules.
TEST(PongAgents, TheRulesAreFrozen) { EXPECT_EQ(pong_hash(), "00e7ed94"); }

}  // namespace ridge::test
