// A run that cannot write its last checkpoint says so, however it ends, and since which step; the next run continues from what was written before.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <csignal>

#include "train/device_like_backend.h"
#include "train/small_run.h"

namespace ridge {
namespace {

using test::expect_same;
using test::mentions;
using test::SmallRun;
using test::TempFolder;
using test::Trace;

// Checkpoints fail for lack of space while `full` is set.
struct FullDisk {
  static inline std::atomic<bool> full = false;  // checkpoints are written on a separate thread
  static int mkdir(const char* path, mode_t mode) {
    if (!full) return ::mkdir(path, mode);
    errno = ENOSPC;
    return -1;
  }
  FileCalls calls = [] {
    FileCalls c = kSystemFileCalls;
    c.mkdir = mkdir;
    return c;
  }();
  FullDisk() { full = false; }
  ~FullDisk() { full = false; }
};

struct Ending {
  const char* what;
  Outcome::End end;
  int signal = 0;
  double max_minutes = 0;
  std::optional<double> target_loss = {};
};

class StateLost : public ::testing::TestWithParam<bool> {
 protected:
  SmallRun run_in(const std::string& folder) {
    SmallRun run{.folder = folder, .files = &disk_.calls};
    if (GetParam()) run.backend = &device_;
    return run;
  }
  FullDisk disk_;
  DeviceLikeBackend device_;
};

TEST_P(StateLost, IsReportedForEveryEnd) {
  TempFolder folder;
  SmallRun plain = run_in(folder / "plain");
  plain();
  for (const Ending& e :
       {Ending{"done", Outcome::End::finished}, Ending{"INT", Outcome::End::interrupted, SIGINT}, Ending{"TERM", Outcome::End::terminated, SIGTERM},
        Ending{"time", Outcome::End::time, 0, 1e-9}, Ending{"target", Outcome::End::target, 0, 0, 1e9}}) {
    SCOPED_TRACE(e.what);
    SmallRun run = run_in(folder / e.what);
    run.handle_signals = true, run.max_minutes = e.max_minutes, run.target_loss = e.target_loss;
    run.checkpoint_interval = 20;
    run.before = [&](Phase phase, int64_t step) {
      if (phase == Phase::checkpoint) FullDisk::full = step > 0;
      if (phase == Phase::step && step == 3 && e.signal) std::raise(e.signal);
    };
    const Outcome out = run();
    EXPECT_EQ(out.end, e.end) << out.reason;
    ASSERT_TRUE(out.state_lost_since);
    EXPECT_EQ(*out.state_lost_since, 0);
    EXPECT_TRUE(mentions(run.notices, "No space left on device"));
    std::vector<std::string> damage;
    const auto newest = CheckpointStore(run.folder / "checkpoints").newest(damage);
    ASSERT_TRUE(newest && damage.empty());
    EXPECT_EQ(newest->step, 0);

    FullDisk::full = false;
    SmallRun again = run_in(run.folder);
    again.resume = true, again.checkpoint_interval = 5;
    EXPECT_FALSE(again().state_lost_since);
    expect_same(Trace(plain.folder), Trace(again.folder));
  }
}

// Only what is unwritten at the end is lost: earlier failures cost nothing.
TEST_P(StateLost, IsNotReportedIfTheLastCheckpointExists) {
  TempFolder folder;
  SmallRun run = run_in(folder / "run");
  run.before = [](Phase phase, int64_t step) {
    if (phase == Phase::checkpoint) FullDisk::full = step == 10;
  };
  const Outcome out = run();
  EXPECT_EQ(out.end, Outcome::End::finished);
  EXPECT_FALSE(out.state_lost_since);
  EXPECT_TRUE(mentions(run.notices, "failed, training continues"));
}

TEST_P(StateLost, EndsARunAfterThreeFailures) {
  TempFolder folder;
  SmallRun run = run_in(folder / "run");
  run.validation_interval = 30;
  run.before = [](Phase phase, int64_t step) {
    if (phase == Phase::checkpoint) FullDisk::full = step > 5;
  };
  const Outcome out = run();
  EXPECT_EQ(out.end, Outcome::End::unsaved);
  EXPECT_EQ(out.state_lost_since, 5);
  // If checkpoints are written while training continues, the third failure is known only when the next one is due.
  EXPECT_EQ(out.steps, GetParam() ? 25 : 20);
}

INSTANTIATE_TEST_SUITE_P(HostAndDevice, StateLost, ::testing::Bool());

// Training without a folder or without checkpoints was the user's choice.
TEST(StateKept, WithoutAFolderNothingIsLost) {
  const Outcome out = SmallRun{}();
  EXPECT_FALSE(out.state_lost_since);
}

}  // namespace
}  // namespace ridge
