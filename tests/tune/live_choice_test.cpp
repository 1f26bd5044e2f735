// Ways tried on the steps of a running training, with fake times: the faster one is adopted, no other, and trials keep within their share.
#include "tune/live_choice.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace ridge {
namespace {

struct FakeRun {
  std::vector<double> ways;  // seconds of a step
  double noise = 0;
  uint64_t seed = 1, drawn = 0;
  std::vector<LiveChoice::Switch> switches = {};
  double total = 0, other = 0;  // seconds, and those of steps by another way than the present one

  void run(LiveChoice& choice, int steps) {
    size_t present = switches.empty() ? 0 : switches.back().to;
    for (int i = 0; i < steps; ++i) {
      const size_t way = choice.use();
      const double draw = double(uniform_from(random_word({seed, 0, 3}, drawn++)));
      const double seconds = ways[way] * (1 - noise * std::log(1 - draw));
      total += seconds, other += way == present ? 0 : seconds;
      if (const auto change = choice.add(seconds)) switches.push_back(*change), present = change->to;
    }
  }
};

TEST(LiveChoice, AdoptsTheFastestAndGoesOnLooking) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    FakeRun run{.ways = {0.010, 0.012, 0.009}, .noise = 0.02, .seed = seed};
    LiveChoice choice(3, {.first = 1, .share = 0.02, .pause = 5});
    run.run(choice, 20000);
    ASSERT_EQ(run.switches.size(), 1u) << "seed " << seed;
    EXPECT_EQ(run.switches[0].from, 0u);
    EXPECT_EQ(run.switches[0].to, 2u);
    EXPECT_LT(run.switches[0].to_seconds, 0.98 * run.switches[0].from_seconds);
    EXPECT_LT(run.other, 0.02 * run.total) << "of the time";
    run.ways = {0.010, 0.005, 0.009};  // the machine has changed
    run.run(choice, 20000);
    ASSERT_EQ(run.switches.size(), 2u) << "seed " << seed;
    EXPECT_EQ(run.switches[1].to, 1u);
  }
}

TEST(LiveChoice, KeepsWhatIsNotClearlySlower) {
  int switched = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    FakeRun run{.ways = {0.010, 0.0099, 0.0101}, .noise = 0.05, .seed = seed};
    LiveChoice choice(3, {.first = 1, .share = 0.02, .pause = 100});
    run.run(choice, 15000);
    switched += int(run.switches.size());
  }
  EXPECT_LE(switched, 3) << "of 80 trials or more";
}

TEST(LiveChoice, WaitsForARunThatIsLongEnough) {
  FakeRun run{.ways = {1.0, 0.5}};
  LiveChoice choice(2);
  run.run(choice, 1000);
  EXPECT_EQ(run.other, 0) << "42 steps of a second are more than 2 % of 1000";
  run.run(choice, 2000);
  ASSERT_EQ(run.switches.size(), 1u);
  LiveChoice alone(1);
  run = {.ways = {1.0}};
  run.run(alone, 5000);
  EXPECT_TRUE(run.switches.empty());
}

}  // namespace
}  // namespace ridge
