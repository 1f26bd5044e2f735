// Whether a coarser format pays is tried once for a kind of layer, and kept.
#include "train/format_trial.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "machine/features.h"
#include "runtime/thread_team.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

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

TEST_F(FormatTrials, IsTriedOnceAndKept) {
  const bool native = isa_tier() == IsaTier::avx512_bf16;
  EXPECT_FALSE(try_formats(of_width(128), 4, team_, false).rates) << "nothing is known yet";
  const FormatTrial now = try_formats(of_width(128), 4, team_, true), later = try_formats(of_width(128), 4, team_, false);
  ASSERT_EQ(bool(now.rates), native);
  ASSERT_EQ(bool(later.rates), native);
  if (!native) return;
  for (Precision format : {Precision::fp32, Precision::bf16}) {
    ASSERT_TRUE(now.rates({}, format) && later.rates({}, format)) << name(format);
    EXPECT_NEAR(*later.rates({}, format) / *now.rates({}, format), 1, 1e-4);
    EXPECT_FALSE(now.rates({Device::Kind::cuda, 0}, format)) << "a GPU is something else";
  }
  EXPECT_FALSE(now.rates({}, Precision::fp16)) << "not a format that is multiplied here";
  EXPECT_FALSE(try_formats(of_width(256), 4, team_, false).rates) << "another layer";
}

TEST_F(FormatTrials, NarrowLayersAreNotTried) {
  const FormatTrial trial = try_formats(of_width(64), 4, team_, true);
  EXPECT_FALSE(trial.rates);
  EXPECT_EQ(trial.reason.empty(), isa_tier() != IsaTier::avx512_bf16) << trial.reason;
}

}  // namespace
}  // namespace ridge
