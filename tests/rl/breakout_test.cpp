#include <gtest/gtest.h>

#include <cmath>

#include "rl/matches.h"

namespace ridge::test {
namespace {

// Rewards are the points of the bricks that are gone, and an episode ends after five balls.
TEST(Breakout, CountsItsBricks) {
  constexpr int64_t kRows = 16, kDecisions = 1500, kBricks = 48;
  const Instances game(make_environment("breakout"));
  seed(2);
  const ScanStep step = [&](const std::vector<Tensor>& c, const std::vector<Tensor>&) -> ScanOutput {
    const Tensor o = game.observe(c), ball = slice(o, 1, 0, 1) * number(78), paddle = slice(o, 1, 4, 5) * number(68),
                 u = uniform_at(game.counter(c), game.instance(c), 100);
    const Tensor aim = reshape(ball - paddle, {kRows}) + (u - number(0.5)) * number(120);  // follows the ball, badly
    const Instances::Decision d = game.step(c, where(aim > number(5), integer(2), where(aim < number(-5), integer(1), integer(0))));
    return {d.state, {game.observe(d.state), d.reward, d.terminated, d.episode_return}};
  };
  const ScanOutput out = run_loop(step, game.start(numbers_from(0, kRows)), kDecisions);
  const std::vector<float> seen = out.outputs[0].to_floats(), reward = out.outputs[1].to_floats(), over = out.outputs[2].to_floats(),
                           total = out.outputs[3].to_floats();
  int64_t episodes = 0;
  double points = 0;
  for (int64_t i = 0; i < kRows; ++i) {
    double score = 0;
    for (int64_t t = 0; t < kDecisions; ++t) {
      const size_t at = size_t(t * kRows + i);
      const float* o = seen.data() + at * (6 + kBricks);
      ASSERT_LE(std::fabs(o[0]), 1.f);
      ASSERT_LE(std::fabs(o[2]), 1.f);
      score += reward[at];
      if (over[at]) {
        ASSERT_EQ(total[at], float(score));
        points += score, score = 0, ++episodes;
        continue;
      }
      double gone = 0;
      for (int64_t b = 0; b < kBricks; ++b) gone += (1 - o[6 + b]) * (b / 8 < 2 ? 7 : b / 8 < 4 ? 4 : 1);
      ASSERT_EQ(std::fmod(score - gone, 192), 0) << "decision " << t;  // a whole wall is worth 16 × (1 + 4 + 7)
    }
  }
  EXPECT_GT(episodes, 0);
  EXPECT_GT(points / double(episodes), 2);
}

// Its difficulty, measured with scripted agents. The rules are frozen: a change that moves these scores invalidates every result.
Matches play_breakout(const Agent& agent) {
  seed(1);
  return play(Instances(make_environment("breakout")), agent, 200);
}

Tensor follow_ball(const Instances& game, const EnvState& s) {
  const Tensor o = game.observe(s), ahead = reshape(slice(o, 1, 0, 1) * number(78) - slice(o, 1, 4, 5) * number(68), {o.shape()[0]});
  return where(ahead > number(5), integer(2), where(ahead < number(-5), integer(1), integer(0)));
}

TEST(BreakoutAgents, RandomPlayHitsFewBricks) {
  const Matches m = play_breakout(
      [](const Instances& game, const EnvState& s) { return cast(floor(uniform_at(game.counter(s), game.instance(s), 100) * number(3)), DType::i64); });
  EXPECT_NEAR(m.mean_score(), 1.2, 0.4);
  EXPECT_NEAR(m.mean_length(), 110, 10);
}

TEST(BreakoutAgents, StandingStillHitsFewBricks) {
  const Matches m = play_breakout([](const Instances& game, const EnvState& s) { return full(game.age(s).shape(), 0, DType::i64); });
  EXPECT_NEAR(m.mean_score(), 1.8, 0.5);
}

// It seldom loses a ball, but the last bricks take it longer than a match may.
TEST(BreakoutAgents, FollowingTheBallClearsAWall) {
  const Matches m = play_breakout(follow_ball);
  EXPECT_NEAR(m.mean_score(), 212, 15);
  EXPECT_GT(m.mean_length(), 8000);
}

TEST(BreakoutAgents, TheRulesAreFrozen) { EXPECT_EQ(make_environment("breakout")->spec().parameters, "breakout d4b252da"); }

TEST(Breakout, DrawsItsBricks) {
  const auto game = make_environment("breakout-pixels");
  const EnvState s = game->reset(numbers_from(0, 2), {});
  const Tensor picture = game->observe(s);
  ASSERT_EQ(picture.shape(), (Shape{2, 84, 84}));
  const std::vector<float> p = picture.to_floats();
  EXPECT_GT(p[20 * 84 + 5], 100.f);  // a brick
  EXPECT_EQ(p[60 * 84 + 5], 0.f);    // nothing
  EXPECT_EQ(game->render(s).shape(), (Shape{2, 160, 160, 3}));
}

}  // namespace
}  // namespace ridge::test
