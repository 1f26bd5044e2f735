// The search on a fake device with known times: it finds the best point within 3 % with at most a fifth of the measurements, under noise, and adopts neither
// wrong results nor gains that are not there.
#include "tune/search.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "machine/expect_error.h"
#include "train/run_planner.h"
#include "tune/load_watch.h"
#include "tune/recently_used.h"

namespace ridge {
namespace {

// Times are a product of one factor per value, and of given factors for pairs of values; noise is one-sided, as other work only ever adds time.
struct FakeTarget : TuneTarget {
  TuneSpace space;
  std::vector<std::vector<double>> factors;
  std::function<double(const TunePoint&)> pairs = [](const TunePoint&) { return 1.0; };
  std::function<std::string(const TunePoint&)> wrong = [](const TunePoint&) { return std::string(); };
  double noise = 0, outliers = 0;
  uint64_t seed = 1;
  uint64_t drawn = 0;
  int busy_first = 0, busy_from = 1 << 30, samples = 0;  // the samples that fall on a busy machine take half as long again
  double clock = 0, checking = 0;

  double truth(const TunePoint& p) const {
    double seconds = 0.01 * pairs(p);
    for (size_t d = 0; d < p.size(); ++d) seconds *= factors[d][p[d]];
    return seconds;
  }
  double draw() { return double(uniform_from(random_word({seed, 0, 7}, drawn++))); }
  std::string check(const TunePoint& p) override { return clock += checking, wrong(p); }
  TuneSample measure(const TunePoint& p) override {
    EXPECT_EQ(wrong(p), "") << "a wrong candidate is never timed";
    double seconds = truth(p) * (1 - noise * std::log(1 - draw()));
    if (draw() < outliers) seconds *= 3;
    const bool busy = samples < busy_first || samples >= busy_from;
    ++samples;
    if (busy) seconds *= 1.5;
    clock += seconds;
    return {seconds, busy};
  }
  double now() override { return clock; }
  double best() const {
    double least = 1e9;
    for (const TunePoint& p : space.all())
      if (wrong(p).empty()) least = std::min(least, truth(p));
    return least;
  }
};

FakeTarget fake(std::vector<std::vector<double>> factors) {
  FakeTarget t;
  t.factors = std::move(factors);
  for (size_t d = 0; d < t.factors.size(); ++d) {
    TuneDimension dimension{std::string(1, char('a' + d)), {}};
    for (size_t v = 0; v < t.factors[d].size(); ++v) dimension.values.push_back(std::to_string(v));
    t.space.dimensions.push_back(dimension);
  }
  return t;
}

// 5 x 4 x 2 x 2 = 80 and 3 x 3 x 3 x 3 = 81 points; the last two have choices that only pay off together.
std::vector<FakeTarget> targets() {
  std::vector<FakeTarget> all = {
      fake({{1, 0.9, 0.8, 1.1, 1.6}, {1, 1.1, 1.2, 1.4}, {1, 0.93}, {1, 1.5}}), fake({{1, 1.3, 1.7}, {1, 0.97, 1.2}, {1, 1.2, 0.95}, {1, 0.9, 2}}),
      fake({{1, 0.7, 0.65, 0.6, 0.75}, {1, 1.02, 0.99, 1.3}, {1, 0.98}, {1.6, 1}}), fake({{1, 1.05, 1.2, 1.5}, {1, 1.1, 1.3, 1.6, 2}, {1, 0.8}, {1, 1.2}})};
  all[2].pairs = [](const TunePoint& p) { return p[0] >= 2 && p[3] == 0 ? 1.3 : 1.0; };
  all[3].pairs = [](const TunePoint& p) { return p[2] == 1 && p[0] == 1 ? 0.9 : 1.0; };
  return all;
}

TEST(TuneSearch, FindsTheBestWithAFifthOfTheMeasurements) {
  constexpr int kRepeats = 13;  // of an exhaustive search that would be as sure: four rounds and nine pairs
  for (size_t number = 0; number < targets().size(); ++number)
    for (const double noise : {0.0, 0.01, 0.05})
      for (uint64_t seed = 1; seed <= 8; ++seed) {
        FakeTarget t = targets()[number];
        t.noise = noise, t.outliers = noise, t.seed = seed;
        const TuneResult r = search(t.space, t);
        EXPECT_LE(t.truth(r.best), (noise > 0.02 ? 1.1 : 1.03) * t.best()) << "space " << number << " noise " << noise << " seed " << seed << " " << r.ended;
        EXPECT_LE(5 * r.points, t.space.points());
        if (noise <= 0.01) {
          EXPECT_LE(5 * r.samples, t.space.points() * kRepeats) << "space " << number << " noise " << noise << " seed " << seed;
        }
      }
}

TEST(TuneSearch, KeepsThePlanUnlessSomethingIsClearlyFaster) {
  int adopted = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    FakeTarget t = fake({{1, 1, 0.99}, {1, 1, 1}, {1, 0.995}, {1, 1}});  // 1.5 % at most: not worth it
    t.noise = 0.03, t.outliers = 0.05, t.seed = seed;
    const TuneResult r = search(t.space, t);
    adopted += r.adopted;
    EXPECT_TRUE(r.adopted || r.best == t.space.start());
    EXPECT_NE(r.other, r.best) << "a runner-up is another point";
  }
  EXPECT_LE(adopted, 10);
  FakeTarget t = fake({{1, 0.97}, {1, 1.1}});
  const TuneResult r = search(t.space, t);
  EXPECT_TRUE(r.adopted);
  EXPECT_EQ(t.space.text(r.best), "a=1");
  EXPECT_NEAR(r.gain(), 1 / 0.97, 1e-9);
}

TEST(TuneSearch, RefusesWrongResultsHoweverFast) {
  FakeTarget t = fake({{1, 0.5, 0.9}, {1, 0.8}, {1, 0.1}});
  t.wrong = [](const TunePoint& p) { return p[2] == 1 ? "another loss" : p[0] == 1 && p[1] == 1 ? "too little memory" : ""; };
  const TuneResult r = search(t.space, t);
  EXPECT_EQ(t.space.text(r.best), "a=1");
  EXPECT_GE(r.refused, 2);
  for (const TuneTrial& trial : r.trials) EXPECT_EQ(trial.refused.empty(), trial.point[2] == 0 && !(trial.point[0] == 1 && trial.point[1] == 1));

  t.wrong = [](const TunePoint& p) { return p == TunePoint{0, 0, 0} ? "not finite" : ""; };
  const TuneResult none = search(t.space, t);
  EXPECT_FALSE(none.adopted);
  EXPECT_EQ(none.points, 0);
  EXPECT_NE(none.ended.find("not finite"), none.ended.npos);
}

TEST(TuneSearch, RepeatsSamplesOfABusyMachine) {
  FakeTarget t = fake({{1, 0.8}, {1, 1.2}});
  t.busy_first = 3;
  const TuneResult r = search(t.space, t);
  EXPECT_EQ(t.space.text(r.best), "a=1");
  EXPECT_FALSE(r.busy);
  EXPECT_EQ(r.trials[0].busy.size(), 3u);
  EXPECT_NEAR(r.gain(), 1.25, 1e-9) << "of quiet samples only";

  t.busy_first = 1 << 30, t.samples = 0;
  EXPECT_TRUE(search(t.space, t).busy);
}

TEST(TuneSearch, SaysThatTheMachineWasBusyWhenTheStartWins) {
  FakeTarget t = fake({{1, 1.3}, {1, 1.2}});
  t.busy_first = 3;
  const TuneResult quiet = search(t.space, t);
  EXPECT_FALSE(quiet.adopted || quiet.busy);

  t.busy_first = 1 << 30, t.samples = 0;
  const TuneResult busy = search(t.space, t);
  EXPECT_FALSE(busy.adopted);
  EXPECT_TRUE(busy.busy);

  // Only the first sample of the start is quiet, so what is faster does not look so.
  FakeTarget later = fake({{1, 0.8}});
  later.busy_from = 1;
  const TuneResult missed = search(later.space, later);
  EXPECT_FALSE(missed.adopted);
  EXPECT_TRUE(missed.busy);
}

// The plan is kept unless something is certainly faster; then the text must not deny what the list of choices shows.
TEST(TuneSearch, ItsReasonFitsItsFigures) {
  const TuneSpace space{{{"threads", {"2", "1"}, false}}};
  TuneResult r;
  r.best = {0}, r.start_seconds = r.best_seconds = 0.010, r.other = {1}, r.other_seconds = 0.009, r.busy = true, r.points = 2, r.ended = "x";
  EXPECT_TRUE(mentions(tuning_reason(space, r), "10 ms as planned; threads=1 looked faster with 9.00 ms, which repeats in turns did not make certain next to"))
      << tuning_reason(space, r);
  r.other_seconds = 0.0099;
  EXPECT_TRUE(mentions(tuning_reason(space, r), "nothing is 2 % faster than 10 ms a step")) << tuning_reason(space, r);
  r.best = {1}, r.adopted = true, r.best_seconds = 0.009;
  EXPECT_TRUE(mentions(tuning_reason(space, r), "9.00 ms a step and 10 ms as planned, 1.11 x as fast")) << tuning_reason(space, r);
}

TEST(TuneSearch, EndsAtTheRoofAndWhenTheTimeIsUp) {
  FakeTarget t = fake({{1, 0.5}, {1, 0.9}, {1, 0.9}});
  const TuneResult roof = search(t.space, t, {.roof_seconds = 0.0049});
  EXPECT_EQ(t.space.text(roof.best), "a=1");
  EXPECT_NE(roof.ended.find("roof"), roof.ended.npos);

  // A start at the roof is not compared with anything.
  FakeTarget there = fake({{1, 1.5}, {1, 0.9}});
  const TuneResult at_once = search(there.space, there, {.roof_seconds = 0.0099});
  EXPECT_EQ(at_once.points, 1);
  EXPECT_NE(at_once.ended.find("roof"), at_once.ended.npos);

  const TuneResult late = search(t.space, t, {.seconds = 0.05});
  EXPECT_NE(late.ended.find("time"), late.ended.npos);
  EXPECT_LE(late.seconds, 0.05 + 0.2) << "only the comparison that decides runs longer";

  EXPECT_EQ(search(t.space, t, {.points = 2}).points, 2);
}

TEST(LoadWatch, LooksNoMoreOftenThanSaysSomething) {
  double clock = 0, share = 0.5;
  int looks = 0;
  LoadWatch load([&] { return ++looks, share; }, [&] { return clock; });
  EXPECT_FALSE(load.busy()) << "nothing is known yet";
  clock = 0.1;
  EXPECT_FALSE(load.busy());
  clock = 0.2;
  EXPECT_TRUE(load.busy());
  share = 0.05, clock = 0.3;
  EXPECT_TRUE(load.busy()) << "as of the last look";
  clock = 0.4;
  EXPECT_FALSE(load.busy());
  EXPECT_EQ(looks, 2);
}

TEST(RecentlyUsed, KeepsWhatWasUsedLastWithinItsLimit) {
  RecentlyUsed<int> held;
  for (size_t i = 0; i < 4; ++i) held.add({i}, int(i), 10);
  ASSERT_TRUE(held.find({0}));
  EXPECT_EQ(*held.find({0}), 0);
  held.shrink_to(25);
  EXPECT_TRUE(held.find({3}) && held.find({0})) << "the last one made, and the last one used";
  EXPECT_FALSE(held.find({1}) || held.find({2}));
  held.shrink_to(19);
  EXPECT_FALSE(held.find({3}));
  held.erase({0});
  EXPECT_FALSE(held.find({0}));
  held.shrink_to(0);
}

TEST(TuneSearch, MeasuresAllForProof) {
  FakeTarget t = targets()[1];
  const TuneResult r = search(t.space, t);
  const ExhaustiveResult all = measure_all(t.space, t, r.best);
  EXPECT_EQ(all.points, 81);
  EXPECT_EQ(all.samples, 3 * 81);
  EXPECT_NEAR(all.best_seconds, t.best(), 1e-12);
  EXPECT_NEAR(all.chosen_seconds, t.truth(r.best), 1e-12);
  EXPECT_GT(all.median_seconds, all.best_seconds);
  EXPECT_FALSE(all.busy);
  // The first samples, which take half as long again on a busy machine, are repeated.
  t.busy_first = 3, t.samples = 0;
  const ExhaustiveResult repeated = measure_all(t.space, t, r.best);
  EXPECT_EQ(repeated.samples, 3 * 81 + 3);
  EXPECT_NEAR(repeated.median_seconds, all.median_seconds, 1e-12);
  EXPECT_FALSE(repeated.busy);
  t.busy_first = 1 << 30;
  EXPECT_TRUE(measure_all(t.space, t, r.best).busy);
}

}  // namespace
}  // namespace ridge
