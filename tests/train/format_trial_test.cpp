// Whether a lower-precision format is faster is measured once per kind of layer, and the result is kept.
#include "tasks/gpt/format_trial.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "machine/features.h"
#include "support/temp_folder.h"
#include "threads/thread_team.h"

namespace ridge {
namespace {

constexpr int64_t kRoom = int64_t(1) << 30;

GptConfig of_width(int64_t width) {
  GptConfig c;
  c.vocab = 40, c.block = 16, c.layers = 3, c.heads = 4, c.width = width;
  return c;
}

class FormatTrials : public testing::Test {
 protected:
  void SetUp() override { setenv("RIDGE_CACHE", (folder_ / "cache").c_str(), 1); }
  void TearDown() override { unsetenv("RIDGE_CACHE"); }
  test::TempFolder folder_;
  ThreadTeam team_{TeamOptions{.threads = 1}};
};

TEST_F(FormatTrials, AreRunOnceAndStored) {
  const bool native = has_bf16(isa_tier());
  EXPECT_FALSE(try_formats(of_width(128), 4, team_, kRoom, Figures::kept).rates) << "nothing is known yet";
  const FormatTrial now = try_formats(of_width(128), 4, team_, kRoom, Figures::measured), later = try_formats(of_width(128), 4, team_, kRoom, Figures::kept);
  ASSERT_EQ(bool(now.rates), native);
  ASSERT_EQ(bool(later.rates), native);
  if (!native) return;
  EXPECT_EQ(*now.rates({}, Precision::fp32), 1);
  EXPECT_NEAR(*later.rates({}, Precision::bf16) / *now.rates({}, Precision::bf16), 1, 1e-4);
  EXPECT_FALSE(now.rates({Device::Kind::cuda, 0}, Precision::bf16)) << "a GPU is something else";
  EXPECT_FALSE(now.rates({}, Precision::fp16)) << "not a format that is multiplied here";
  EXPECT_FALSE(try_formats(of_width(256), 4, team_, kRoom, Figures::kept).rates) << "another layer";
}

// Like the seeds of an experiment, on a machine where nothing can be stored.
TEST_F(FormatTrials, LastForTheProcessWithoutAStore) {
  setenv("RIDGE_CACHE", "/dev/null/nothing", 1);
  const FormatTrial now = try_formats(of_width(160), 4, team_, kRoom, Figures::measured), later = try_formats(of_width(160), 4, team_, kRoom, Figures::kept);
  ASSERT_EQ(bool(now.rates), bool(later.rates));
  if (now.rates) {
    EXPECT_EQ(*now.rates({}, Precision::bf16), *later.rates({}, Precision::bf16));
  }
}

TEST_F(FormatTrials, StayWithinTheAvailableMemory) {
  const FormatTrial trial = try_formats(of_width(192), 4, team_, 1000, Figures::measured);
  EXPECT_FALSE(trial.rates);
  EXPECT_EQ(trial.reason.empty(), !has_bf16(isa_tier()));
}

// One head as wide as a whole large model: the trial stays small.
TEST_F(FormatTrials, SplitWideHeads) {
  GptConfig c = of_width(4096);
  c.heads = 1;
  EXPECT_EQ(bool(try_formats(c, 1, team_, int64_t(200) << 20, Figures::measured).rates), has_bf16(isa_tier()));
}

TEST_F(FormatTrials, SkipNarrowLayers) {
  const FormatTrial trial = try_formats(of_width(64), 4, team_, kRoom, Figures::measured);
  EXPECT_FALSE(trial.rates);
  EXPECT_EQ(trial.reason.empty(), !has_bf16(isa_tier())) << trial.reason;
}

}  // namespace
}  // namespace ridge
