// What holds in every game of Pong, however it is played.
#include <gtest/gtest.h>

#include <cmath>

#include "rl/matches.h"

namespace ridge::test {
namespace {

// Every decision of some instances under random actions, with the own state of the environment.
struct Game {
  std::vector<std::vector<float>> state;  // after each decision, by part, [decisions, instances]
  std::vector<float> reward, terminated, truncated, total;
};

Game random_game(const Instances& game, int64_t first, int64_t instances, int64_t decisions) {
  seed(2);
  const ScanStep step = [&](const std::vector<Tensor>& c, const std::vector<Tensor>&) -> ScanOutput {
    const Tensor action = cast(floor(uniform_at(game.counter(c), game.instance(c), 100) * number(3)), DType::i64);
    const Instances::Decision d = game.step(c, action);
    ScanOutput out{d.state, game.environment_state(d.state)};
    out.outputs.insert(out.outputs.end(), {d.reward, d.terminated, d.truncated, d.episode_return});
    return out;
  };
  const ScanOutput out = run_loop(step, game.start(numbers_from(first, instances)), decisions);
  Game g;
  const size_t parts = out.outputs.size() - 4;
  for (size_t i = 0; i < parts; ++i) g.state.push_back(out.outputs[i].to_floats());
  g.reward = out.outputs[parts].to_floats(), g.terminated = out.outputs[parts + 1].to_floats(), g.truncated = out.outputs[parts + 2].to_floats();
  g.total = out.outputs[parts + 3].to_floats();
  return g;
}

enum { kAgent, kAgentSpeed, kOpponent, kOpponentSpeed, kX, kY, kSpeedX, kSpeedY, kAim, kPause, kAgentPoints, kOpponentPoints };

TEST(Pong, KeepsItsInvariants) {
  constexpr int64_t kRows = 64, kDecisions = 3000;
  const Game g = random_game(Instances(make_environment("pong")), 0, kRows, kDecisions);
  int64_t matches = 0, serves[2] = {0, 0};
  double slant = 0;
  for (int64_t i = 0; i < kRows; ++i) {
    double score = 0;
    for (int64_t t = 0; t < kDecisions; ++t) {
      const size_t at = size_t(t * kRows + i), last = t > 0 ? at - size_t(kRows) : at;
      auto part = [&](int k) { return g.state[size_t(k)][at]; };
      ASSERT_LE(std::fabs(part(kY)), 78.f);
      ASSERT_LT(std::fabs(part(kX)), 80.f);
      ASSERT_LE(std::fabs(part(kAgent)), 72.f);
      ASSERT_LE(std::fabs(part(kOpponent)), 72.f);
      ASSERT_LE(std::fabs(part(kSpeedX)), 3.5f);      // a crossing of 120 takes at least 8 decisions of 4 frames
      ASSERT_LE(std::fabs(part(kAgentSpeed)), 2.4f);  // and the 144 between the paddle's ends 15
      ASSERT_TRUE(g.reward[at] == 0 || std::fabs(g.reward[at]) == 1);
      score += g.reward[at];
      if (g.terminated[at]) {
        ASSERT_EQ(g.total[at], score);
        ASSERT_EQ(std::max(std::fabs(part(kAgentPoints)), part(kOpponentPoints)), 0.f);  // a new match
        ASSERT_TRUE(score <= -1 && score >= -21) << score;                               // random play does not win
        // It ends with the opponent's 21st point, and the agent keeps those that it had.
        ASSERT_EQ(g.state[kOpponentPoints][last], 20.f);
        ASSERT_EQ(score, double(g.state[kAgentPoints][last]) - 21);
        ++matches, score = 0;
      } else {
        ASSERT_EQ(part(kAgentPoints) - part(kOpponentPoints), float(score));
        ASSERT_LT(std::max(part(kAgentPoints), part(kOpponentPoints)), 21.f);
      }
      if (t > 0 && g.state[kPause][last] > 0 && part(kPause) == 0) ++serves[part(kSpeedX) > 0], slant += part(kSpeedY);
      if (part(kPause) > 0) {
        ASSERT_TRUE(part(kX) == 0 && part(kY) == 0 && part(kSpeedX) == 0);
      }
    }
  }
  EXPECT_GT(matches, kRows);
  const double all = double(serves[0] + serves[1]);
  EXPECT_GT(all, 21 * double(matches));
  EXPECT_NEAR(double(serves[0]) / all, 0.5, 3 / std::sqrt(all));  // six standard deviations
  EXPECT_NEAR(slant / all, 0, 6 * 1.2 / std::sqrt(3 * all));
}

TEST(Pong, IsTheSameForAnyNumberOfInstances) {
  const Instances game(make_environment("pong"));
  const Game many = random_game(game, 0, 5000, 60), few = random_game(game, 4090, 9, 60);
  for (size_t k = 0; k < many.state.size(); ++k)
    for (size_t t = 0; t < 60; ++t)
      for (size_t i = 0; i < 9; ++i) ASSERT_EQ(few.state[k][t * 9 + i], many.state[k][t * 5000 + 4090 + i]) << "part " << k << ", decision " << t;
}

TEST(Pong, IsCutOffAtTheTimeLimit) {
  const Game g = random_game(Instances(make_environment("pong"), {.time_limit = 50}), 0, 8, 101);
  for (size_t t = 0; t < 101; ++t)
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(g.truncated[t * 8 + i], t % 50 == 49);
      EXPECT_EQ(g.terminated[t * 8 + i], 0);
    }
}

TEST(Pong, TakesAnOpponentsActions) {
  const Instances game(make_pong({.two_players = true}));
  seed(2);
  const ScanStep step = [&](const std::vector<Tensor>& c, const std::vector<Tensor>&) -> ScanOutput {
    const Tensor up = full({4, 1}, 1, DType::i64), down = full({4, 1}, 2, DType::i64);
    return {game.step(c, concat({up, down}, 1)).state, {}};
  };
  const EnvState s = game.environment_state(run_loop(step, game.start(numbers_from(0, 4)), 20).carry);
  EXPECT_EQ(s[kAgent].to_floats(), std::vector<float>(4, -72.f));
  EXPECT_EQ(s[kOpponent].to_floats(), std::vector<float>(4, 72.f));
}

// The pixels of a frame add up to the areas of what it shows, and are where it is.
TEST(Pong, DrawsWhatItsStateSays) {
  for (int64_t size : {84, 42}) {
    const auto pong = make_pong({.pixels = size});
    const double scale = double(size) / 160;
    EnvState s = pong->reset(numbers_from(0, 3), {});
    const std::vector<float> x = {0, 31.5f, -40.25f}, y = {10, -60, 33.5f}, agent = {0, -72, 50}, opponent = {8, 72, -20};
    auto set = [&](size_t part, const std::vector<float>& v) { s[part] = Tensor({3}, std::span<const float>(v)); };
    set(kAgent, agent), set(kOpponent, opponent), set(kX, x), set(kY, y), set(12, agent), set(13, opponent), set(14, x), set(15, y);
    const Tensor picture = pong->observe(s);
    ASSERT_EQ(picture.shape(), (Shape{3, size, size}));
    ASSERT_EQ(picture.dtype(), DType::u8);
    const std::vector<float> p = picture.to_floats();
    for (size_t i = 0; i < 3; ++i) {
      double ball = 0, ball_x = 0, ball_y = 0, paddles = 0;
      for (int64_t row = 0; row < size; ++row)
        for (int64_t column = 0; column < size; ++column) {
          const double v = p[(i * size_t(size) + size_t(row)) * size_t(size) + size_t(column)], at = (double(column) + 0.5) / scale - 80;
          if (std::fabs(at) < 55)
            ball += v, ball_x += v * at, ball_y += v * ((double(row) + 0.5) / scale - 80);
          else
            paddles += v;
        }
      EXPECT_NEAR(ball, 236 * 8 * scale * scale, 8) << size;  // rounded in up to 16 pixels
      EXPECT_NEAR(ball_x / ball, x[i], 80.0 / double(size));  // half a pixel
      EXPECT_NEAR(ball_y / ball, y[i], 80.0 / double(size));
      EXPECT_NEAR(paddles, 2 * 148 * 64 * scale * scale, 60) << size;
    }
    EXPECT_EQ(pong->render(s).shape(), (Shape{3, 160, 160, 3}));
  }
}

// A picture is the maximum of the two last frames, and a stack of them starts with the first frame of the episode.
TEST(Pong, StacksPicturesOfTwoFrames) {
  const Instances game(make_environment("pong-pixels-42"), {.time_limit = 30});
  EXPECT_EQ(game.observation_shape(), (Shape{4, 42, 42}));
  seed(2);
  const ScanStep step = [&](const std::vector<Tensor>& c, const std::vector<Tensor>&) -> ScanOutput {
    const Tensor action = cast(floor(uniform_at(game.counter(c), game.instance(c), 100) * number(3)), DType::i64);
    return {game.step(c, action).state, {game.observe(c), game.frame(c), game.age(c)}};
  };
  constexpr int64_t kSteps = 64, kRows = 2, kFrame = 42 * 42;
  const ScanOutput out = run_loop(step, game.start(numbers_from(0, kRows)), kSteps);
  const auto* seen = static_cast<const uint8_t*>(out.outputs[0].data());
  const auto* frame = static_cast<const uint8_t*>(out.outputs[1].data());
  const std::vector<int64_t> age = out.outputs[2].to_ints();
  for (int64_t t = 0; t < kSteps; ++t)
    for (int64_t i = 0; i < kRows; ++i)
      for (int64_t k = 0; k < 4; ++k) {
        EXPECT_EQ(age[size_t(t * kRows + i)], t % 30);
        const int64_t from = t - std::min(k, age[size_t(t * kRows + i)]);
        ASSERT_TRUE(
            std::equal(seen + ((t * kRows + i) * 4 + 3 - k) * kFrame, seen + ((t * kRows + i) * 4 + 4 - k) * kFrame, frame + (from * kRows + i) * kFrame))
            << "decision " << t << ", frame " << k;
      }
}

}  // namespace
}  // namespace ridge::test
