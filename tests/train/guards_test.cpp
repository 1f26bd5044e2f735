// Laws of the guards: three strikes in a row cause a roll-back, three roll-backs are allowed, and the search for a loss scale is not a strike.
#include "train/guards.h"

#include <gtest/gtest.h>

#include <random>

namespace ridge {
namespace {

using Verdict = Guards::Verdict;
using Batches = std::vector<int64_t>;

TEST(Guards, RollBackAfterThreeFailuresInARow) {
  Guards g;
  EXPECT_EQ(g.judge(0, true, false), Verdict::good);
  EXPECT_EQ(g.judge(1, false, false), Verdict::skipped);
  EXPECT_EQ(g.judge(2, false, false), Verdict::skipped);
  EXPECT_EQ(g.judge(3, true, false), Verdict::good);
  EXPECT_TRUE(g.offending().empty());
  EXPECT_EQ(g.judge(4, false, false), Verdict::skipped);
  EXPECT_EQ(g.judge(5, false, false), Verdict::skipped);
  EXPECT_EQ(g.judge(9, false, false), Verdict::roll_back);
  EXPECT_EQ(g.offending(), (Batches{4, 5, 9}));
  EXPECT_EQ(g.skipped(), 5);
  EXPECT_EQ(g.roll_backs(), 1);
  EXPECT_EQ(g.judge(10, false, false), Verdict::skipped);  // the count restarts
  EXPECT_EQ(g.offending(), (Batches{10}));
}

TEST(Guards, StopInsteadOfAFourthRollBack) {
  Guards g;
  for (int64_t batch = 0; batch < 9; ++batch) EXPECT_EQ(g.judge(batch, false, false), batch % 3 == 2 ? Verdict::roll_back : Verdict::skipped);
  EXPECT_EQ(g.roll_backs(), Guards::kRollBacks);
  for (int64_t batch = 9; batch < 12; ++batch) EXPECT_EQ(g.judge(batch, false, false), batch == 11 ? Verdict::stop : Verdict::skipped);
  EXPECT_EQ(g.offending(), (Batches{9, 10, 11}));

  Guards resumed;
  resumed.restore(7, Guards::kRollBacks, {});
  EXPECT_EQ(resumed.skipped(), 7);
  for (int64_t batch = 0; batch < 3; ++batch) EXPECT_EQ(resumed.judge(batch, false, false), batch == 2 ? Verdict::stop : Verdict::skipped);
}

TEST(Guards, IgnoreTheLossScaleSearch) {
  Guards g;
  for (int64_t batch = 0; batch < 1000; ++batch) EXPECT_EQ(g.judge(batch, false, true), Verdict::skipped);
  EXPECT_EQ(g.skipped(), 1000);
  EXPECT_EQ(g.roll_backs(), 0);
  EXPECT_TRUE(g.offending().empty());
  EXPECT_EQ(g.judge(1000, false, false), Verdict::skipped);
  EXPECT_EQ(g.judge(1001, false, true), Verdict::skipped);  // neither a strike nor a good step between two strikes
  EXPECT_EQ(g.judge(1002, false, false), Verdict::skipped);
  EXPECT_EQ(g.judge(1003, false, false), Verdict::roll_back);
  EXPECT_EQ(g.offending(), (Batches{1000, 1002, 1003}));
}

// Checks against the law stated differently: for each step, count back the strikes since the last good step or roll-back.
TEST(Guards, MatchTheSpecificationForAnySequence) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Guards g;
    Batches strikes;
    int roll_backs = 0;
    for (int64_t batch = 0; batch < 60; ++batch) {
      const bool applied = random() % 4 == 0, search = !applied && random() % 3 == 0;
      Verdict expected = applied ? Verdict::good : Verdict::skipped;
      if (applied) strikes.clear();
      if (!applied && !search) strikes.push_back(batch);
      const Batches now = strikes;
      if (strikes.size() == 3) {
        expected = roll_backs == 3 ? Verdict::stop : Verdict::roll_back;
        ++roll_backs;
        strikes.clear();
      }
      ASSERT_EQ(g.judge(batch, applied, search), expected);
      if (expected == Verdict::stop) break;
      ASSERT_EQ(g.roll_backs(), roll_backs);
      if (expected == Verdict::roll_back) {
        ASSERT_EQ(g.offending(), now);
      }
    }
  }
}

}  // namespace
}  // namespace ridge
