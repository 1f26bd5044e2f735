// Laws of the guards in a whole run: if anything in losses, gradients or data is not finite, none of it reaches the disk, and the run recovers or says why it
// ends.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "train/guards.h"
#include "train/small_run.h"

namespace ridge {
namespace {

using test::expect_finite;
using test::expect_same;
using test::mentions;
using test::SmallRun;
using test::TempFolder;
using test::Trace;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
constexpr float kTooSteep = 1e30f;  // a finite loss whose squared gradients overflow
constexpr float kPoisons[] = {kNan, kInf, -kInf, kTooSteep};

auto poison_at(std::vector<int64_t> batches, float poison) {
  return [=](int64_t batch) { return std::count(batches.begin(), batches.end(), batch) ? poison : 1.0f; };
}

TEST(Poison, OneBadBatchCostsOneStep) {
  for (float poison : kPoisons) {
    SCOPED_TRACE(poison);
    TempFolder folder;
    SmallRun run{.folder = folder / "run", .factor = poison_at({3, 7, 8, 20}, poison)};
    const Outcome out = run();
    EXPECT_EQ(out.end, Outcome::End::finished);
    EXPECT_EQ(out.steps, 30);
    EXPECT_EQ(out.skipped, 4);
    EXPECT_EQ(out.roll_backs, 0);
    EXPECT_TRUE(std::isfinite(out.final_train_loss) && std::isfinite(*out.final_val_loss));
    EXPECT_TRUE(mentions(run.notices, "step 4 skipped"));
    expect_finite(folder.path());
  }
}

// After a roll-back the run matches, bit for bit, a run on data without those batches.
TEST(Poison, SkipsThreeBadBatches) {
  TempFolder folder;
  SmallRun bad{.folder = folder / "bad", .factor = poison_at({11, 12, 13}, kNan)};
  const Outcome out = bad();
  EXPECT_EQ(out.end, Outcome::End::finished);
  EXPECT_EQ(out.roll_backs, 1);
  EXPECT_EQ(out.skipped, 3);
  EXPECT_TRUE(mentions(bad.notices, "rolled back to step 10")) << testing::PrintToString(bad.notices);
  EXPECT_TRUE(mentions(bad.notices, "11, 12, 13"));
  expect_finite(folder.path());

  SmallRun good{.folder = folder / "good", .left_out = {11, 12, 13}};
  EXPECT_EQ(good().skipped, 0);
  const Trace a(folder / "bad"), b(folder / "good");
  EXPECT_TRUE(a.files == b.files);
  EXPECT_EQ(a.metrics, b.metrics);
}

TEST(Poison, PersistentBadDataEndsTheRun) {
  for (float poison : kPoisons) {
    SCOPED_TRACE(poison);
    TempFolder folder;
    SmallRun run{.folder = folder / "run", .factor = [=](int64_t batch) { return batch < 12 ? 1 : poison; }};
    const Outcome out = run();
    EXPECT_EQ(out.end, Outcome::End::diverged);
    EXPECT_EQ(out.roll_backs, 3);
    EXPECT_EQ(out.skipped, 12);
    EXPECT_NE(out.reason.find("not finite"), std::string::npos) << out.reason;
    expect_finite(folder.path());
    std::vector<std::string> notices;
    const auto newest = CheckpointStore(folder / "run/checkpoints").newest(notices);
    ASSERT_TRUE(newest);
    EXPECT_EQ(newest->step, 10);

    // Once the data is fixed, the run continues from there.
    run.factor = {}, run.resume = true;
    EXPECT_EQ(run().end, Outcome::End::finished);
    expect_finite(folder.path());
  }
}

TEST(Poison, BadDataFromTheFirstStepEndsTheRun) {
  TempFolder folder;
  const Outcome out = SmallRun{.folder = folder / "run", .factor = [](int64_t) { return kNan; }}();
  EXPECT_EQ(out.end, Outcome::End::diverged);
  EXPECT_EQ(out.steps, 3);
  expect_finite(folder.path());
}

TEST(Poison, NothingBadReachesTheDisk) {
  std::mt19937 random(11);
  int finished = 0, rolled_back = 0;
  for (int round = 0; round < 10; ++round) {
    TempFolder folder;
    std::map<int64_t, float> bad;
    for (int64_t batch = 0; batch < 60; ++batch)
      if (random() % 10 < unsigned(1 + round / 2)) bad[batch] = kPoisons[random() % 4];
    SmallRun run{.folder = folder / "run", .factor = [&](int64_t batch) { return bad.contains(batch) ? bad[batch] : 1.0f; }};
    const Outcome out = run();
    EXPECT_TRUE(out.end == Outcome::End::finished || out.end == Outcome::End::diverged);
    EXPECT_GT(out.skipped, 0);
    finished += out.end == Outcome::End::finished, rolled_back += out.roll_backs > 0;
    expect_finite(folder.path());
  }
  EXPECT_GT(finished, 0);
  EXPECT_GT(rolled_back, 0);
}

// A scale that is far too large is halved until it fits: many skipped steps in a row, none of them a strike.
TEST(Poison, LossScaleSearchIsNotAFailure) {
  TempFolder folder;
  SmallRun run{.folder = folder / "run", .steps = 80, .precision = Precision::fp16, .loss_scale = {.initial = 0x1p60, .cap = 0x1p60}};
  const Outcome out = run();
  EXPECT_EQ(out.end, Outcome::End::finished);
  EXPECT_GT(out.skipped, Guards::kStrikes * (Guards::kRollBacks + 1));
  EXPECT_EQ(out.roll_backs, 0);
  EXPECT_LT(out.final_train_loss, out.first_loss);
  expect_finite(folder.path());
}

}  // namespace
}  // namespace ridge
