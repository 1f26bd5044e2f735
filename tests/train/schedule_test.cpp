// The learning rate schedule: linear warmup, then decay to the minimum by nanoGPT's formula.
#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ridge {
namespace {

using Kind = Schedule::Kind;
constexpr double kEps = 1e-15;  // rates of 1e-3 in double

TEST(Schedule, CosineMatchesNanoGpt) {
  const Schedule s{Kind::cosine, 1e-3, 1e-4, 100, 2000};
  EXPECT_NEAR(s.rate(0), 1e-3 / 101, kEps);
  EXPECT_NEAR(s.rate(99), 1e-3 * 100 / 101, kEps);
  EXPECT_EQ(s.rate(100), 1e-3);
  EXPECT_NEAR(s.rate(575), 1e-4 + 9e-4 * (2 + std::sqrt(2)) / 4, kEps);  // a quarter of the decay: (1 + cos 45°) / 2
  EXPECT_NEAR(s.rate(1050), 5.5e-4, kEps);
  EXPECT_GT(s.rate(1999), 1e-4);
  EXPECT_EQ(s.rate(2000), 1e-4);
  EXPECT_EQ(s.rate(1'000'000'000'000), 1e-4);
}

TEST(Schedule, LinearAndConstant) {
  const Schedule linear{Kind::linear, 1e-3, 1e-4, 10, 110};
  EXPECT_NEAR(linear.rate(4), 1e-3 * 5 / 11, kEps);
  EXPECT_EQ(linear.rate(10), 1e-3);
  EXPECT_NEAR(linear.rate(60), 5.5e-4, kEps);
  EXPECT_NEAR(linear.rate(109), 1e-4 + 9e-6, kEps);
  EXPECT_EQ(linear.rate(110), 1e-4);
  const Schedule constant{Kind::constant, 1e-3, 1e-4, 3, 10};
  EXPECT_NEAR(constant.rate(0), 1e-3 / 4, kEps);
  for (int64_t step : {3, 9, 10, 1000}) EXPECT_EQ(constant.rate(step), 1e-3);
}

TEST(Schedule, RisesThenFallsAndStaysInRange) {
  for (Kind kind : {Kind::cosine, Kind::linear, Kind::constant})
    for (int64_t warmup : {0, 1, 7, 50, 99, 100, 1000})
      for (int64_t steps : {1, 2, 100}) {
        const Schedule s{kind, 6e-4, 6e-5, warmup, steps};
        for (int64_t step = 0; step < steps + 10; ++step) {
          SCOPED_TRACE(testing::Message() << int(kind) << " warm-up " << warmup << " steps " << steps << " step " << step);
          const double rate = s.rate(step);
          EXPECT_TRUE(rate > 0 && rate <= s.lr);
          if (step >= steps) {
            EXPECT_EQ(rate, kind == Kind::constant ? s.lr : s.min_lr);
          } else if (step < warmup) {
            EXPECT_LT(rate, s.rate(step + 1) + (step + 1 >= steps ? s.lr : 0));
          } else {
            EXPECT_GE(rate, s.min_lr);
            EXPECT_GE(rate, s.rate(step + 1));
          }
        }
      }
}

}  // namespace
}  // namespace ridge
