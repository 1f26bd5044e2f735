// An output that fails costs itself, never the run: it is told once, tried again, and switched off; what the run computes is the same.
#include "train/outputs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "base/error.h"
#include "train/small_run.h"
#include "train/tensorboard_view.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;
using test::expect_same;
using test::SmallRun;
using test::TempFolder;
using test::Trace;

constexpr const char* kTold = "an output failed and is tried again, training goes on: ";
constexpr const char* kOff = "an output is switched off, as it failed 3 times in a row: ";

int64_t count_of(const std::vector<std::string>& lines, std::string_view start) {
  return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) { return line.starts_with(start); });
}

// Throws as long as it is broken.
struct Breakable : TrainerView {
  bool broken = false;
  int calls = 0;
  std::vector<std::string> notices;
  void on_step(const Progress&) override { call(); }
  void on_validation(const ValidationResult&) override { call(); }
  void on_sample(int64_t, const std::string&) override { call(); }
  void on_checkpoint(int64_t, const std::string&, double) override { call(); }
  void on_notice(const std::string& line) override { call(), notices.push_back(line); }
  void call() {
    ++calls;
    if (broken) fail(ErrorCode::io, "[test] no room");
  }
};

TEST(Outputs, AreToldOfOnceTriedAgainAndSwitchedOff) {
  Breakable first, second, third;
  Outputs all({&first, &second, &third});
  const Progress p;
  all.on_step(p);
  second.broken = true;
  all.on_step(p), all.on_step(p);
  EXPECT_EQ(first.notices, std::vector<std::string>{std::string(kTold) + "[test] no room"});
  EXPECT_EQ(third.notices, first.notices);
  second.broken = false;
  all.on_step(p);  // two failures are not three
  second.broken = true;
  all.on_step(p), all.on_step(p);
  EXPECT_EQ(first.notices.size(), 1u);
  all.on_step(p);
  EXPECT_EQ(first.notices.size(), 2u);
  EXPECT_EQ(first.notices.back(), std::string(kOff) + "[test] no room");
  second.broken = false;
  const int calls = second.calls;
  all.on_step(p), all.on_validation({}), all.on_sample(1, ""), all.on_checkpoint(1, "", 0), all.on_notice("line");
  EXPECT_EQ(second.calls, calls);
  EXPECT_EQ(first.notices.back(), "line");
}

// One after another, also while they are told of one another.
TEST(Outputs, MayAllFail) {
  Breakable first, second;
  first.broken = second.broken = true;
  Outputs all({&first, &second});
  for (int i = 0; i < 10; ++i) all.on_step({});
  EXPECT_LE(first.calls, 5);
  EXPECT_LE(second.calls, 5);
  Outputs({}).on_notice("to nobody");
}

TEST(Outputs, ChangeNothingThatARunComputes) {
  TempFolder folder;
  SmallRun plain{.folder = folder / "plain"};
  plain();
  SmallRun run{.folder = folder / "run"};
  Breakable broken;
  broken.broken = true;
  run.watcher = &broken;
  const Outcome out = run();
  EXPECT_EQ(out.end, Outcome::End::finished);
  EXPECT_FALSE(out.state_lost_since);
  EXPECT_EQ(count_of(run.notices, kTold), 1);
  EXPECT_EQ(count_of(run.notices, kOff), 1);
  EXPECT_EQ(broken.calls, Outputs::kTries);
  expect_same(Trace(plain.folder), Trace(run.folder));
}

TEST(Outputs, LoseTensorBoardAndKeepTheRun) {
  TempFolder folder;
  test::write_text(folder / "file", "x");
  for (const int64_t steps : {30, 700}) {
    SmallRun run{.folder = folder / std::to_string(steps), .steps = steps};
    run.checkpoint_interval = steps / 2;
    TensorboardView events(folder / "file/events");
    run.watcher = &events;
    EXPECT_EQ(run().steps, steps);
    EXPECT_EQ(count_of(run.notices, kTold), 1);
    EXPECT_EQ(count_of(run.notices, kOff), steps > 500) << "what waits has room for the events of a short run";
  }
  // It has them all when what was in the way has gone.
  SmallRun run{.folder = folder / "healed"};
  TensorboardView events(folder / "file/events");
  run.watcher = &events;
  run.before = [&](Phase phase, int64_t step) {
    if (phase == Phase::validation && step == 20) fs::remove(folder / "file");
  };
  run();
  ASSERT_TRUE(fs::is_directory(folder / "file/events"));
  EXPECT_EQ(count_of(run.notices, kTold), 1);
  EXPECT_EQ(count_of(run.notices, kOff), 0);
}

// Nobody can read stdout: a full disk behind it, as a pipe whose reader is gone.
TEST(Outputs, LoseTheTerminalAndKeepTheRun) {
  TempFolder folder;
  SmallRun run{.folder = folder / "run"};
  std::fflush(stdout);
  const int before = ::dup(STDOUT_FILENO), full = ::open("/dev/full", O_WRONLY);
  ASSERT_TRUE(before >= 0 && full >= 0);
  ::dup2(full, STDOUT_FILENO);
  TerminalView terminal;
  run.watcher = &terminal;
  const Outcome out = run();
  ::dup2(before, STDOUT_FILENO), ::close(before), ::close(full);
  EXPECT_EQ(out.end, Outcome::End::finished);
  EXPECT_EQ(count_of(run.notices, std::string(kTold) + "[stdout] what is printed cannot be written: No space left on device"), 1);
  EXPECT_EQ(count_of(run.notices, kOff), 1);
}

TEST(Outputs, LoseSamplesAndKeepTheRun) {
  TempFolder folder;
  SmallRun run{.folder = folder / "run", .steps = 90};
  int asked = 0;
  run.sample = [&]() -> std::string { ++asked, fail(ErrorCode::memory, "[test] no memory for a sample"); };
  EXPECT_EQ(run().steps, 90);
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(count_of(run.notices, "a sample failed, training goes on: [test]"), 1);
  EXPECT_EQ(count_of(run.notices, "a sample failed, training goes on without samples: [test]"), 1);
}

// A roll-back opens the metrics anew.
TEST(Outputs, LoseMetricsInARollBackAndKeepTheRun) {
  TempFolder folder;
  SmallRun run{.folder = folder / "run"};
  run.factor = [](int64_t batch) { return batch >= 12 && batch < 15 ? std::numeric_limits<float>::quiet_NaN() : 1.f; };
  run.before = [&](Phase phase, int64_t step) {
    if (phase != Phase::step || step != 13) return;
    fs::remove(run.folder / "metrics.jsonl");
    fs::create_directory(run.folder / "metrics.jsonl");
  };
  const Outcome out = run();
  EXPECT_EQ(out.steps, 30);
  EXPECT_EQ(out.roll_backs, 1);
  EXPECT_EQ(count_of(run.notices, "metrics are switched off, training goes on: [metrics]"), 1);
}

}  // namespace
}  // namespace ridge
