// A failing output never affects the run: it is reported once, retried, and then switched off; the run computes the same.
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

constexpr const char* kMaxListed = "an output failed and will be retried, training continues: ";
constexpr const char* kOff = "an output is switched off after failing for ";

int64_t count_of(const std::vector<std::string>& lines, std::string_view start) {
  return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) { return line.starts_with(start); });
}

// An output that throws while it is broken.
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

TEST(Outputs, FailuresAreReportedOnceRetriedAndSwitchedOff) {
  Breakable first, second, third;
  double now = 0;
  Outputs all({&first, &second, &third}, [&] { return now; });
  const std::vector<Progress> steps(256);
  auto tell_at = [&](double seconds) { now = seconds, all.on_steps(steps); };
  tell_at(0);
  second.broken = true;
  tell_at(1), tell_at(2), tell_at(3), tell_at(10.9);  // many failures in a short time
  EXPECT_EQ(first.notices, std::vector<std::string>{std::string(kMaxListed) + "[test] no room"});
  EXPECT_EQ(third.notices, first.notices);
  EXPECT_EQ(second.calls, 5 * 256);
  second.broken = false;
  tell_at(11);
  second.broken = true;
  tell_at(20), tell_at(40), tell_at(40.9);  // a long time, but only two tries
  EXPECT_EQ(first.notices.size(), 1u);
  tell_at(41);
  EXPECT_EQ(first.notices.size(), 2u);
  EXPECT_EQ(first.notices.back(), "an output is switched off after failing for 21 s: [test] no room");
  second.broken = false;
  const int calls = second.calls;
  all.on_step({}), all.on_validation({}), all.on_sample(1, ""), all.on_checkpoint(1, "", 0), all.on_notice("line");
  EXPECT_EQ(second.calls, calls);
  EXPECT_EQ(first.notices.back(), "line");
}

// Events that an output only buffers or skips do not show that it works again.
TEST(Outputs, RecoverAfterASuccessfulWrite) {
  TempFolder folder;
  Breakable broken;
  for (const bool writes : {false, true}) {
    TensorboardView events(folder / "file/events");
    TerminalView terminal({.write = [&](std::string_view) { broken.call(); }});
    JsonView json([&](std::string_view) { broken.call(); });
    for (TrainerView* view : {static_cast<TrainerView*>(&events), static_cast<TrainerView*>(&terminal), static_cast<TrainerView*>(&json)}) {
      Breakable other;
      double now = 0;
      Outputs all({view, &other}, [&] { return now; });
      auto break_it = [&](bool on) {
        broken.broken = on;
        fs::remove_all(folder / "file");
        if (on) test::write_text(folder / "file", "x");
      };
      auto tell_at = [&](double seconds) {
        now = seconds;
        all.on_validation({.step = 1});
        all.on_step({.step = 7, .steps = 1000});  // buffered, or not due
      };
      broken.broken = false;
      if (view != &events) all.on_step({.step = 1, .steps = 1000});
      break_it(true);
      tell_at(0), tell_at(5);
      if (writes) break_it(false), tell_at(6), break_it(true);
      tell_at(10);
      EXPECT_EQ(count_of(other.notices, kMaxListed), 1);
      EXPECT_EQ(count_of(other.notices, kOff), !writes);
    }
  }
}

// The last event is retried once, because there is no later chance; then the loss is reported.
TEST(Outputs, RetryTheLastFiles) {
  for (const int failures : {0, 1, 2}) {
    Breakable view;
    Outputs all({&view});
    int calls = 0;
    const bool written = all.write_last("summary.json", [&] {
      if (++calls <= failures) throw Error(ErrorCode::io, "[test] no room");
    });
    EXPECT_EQ(written, failures < 2);
    EXPECT_EQ(calls, failures == 0 ? 1 : 2);
    EXPECT_EQ(view.notices, failures < 2 ? std::vector<std::string>{} : std::vector<std::string>{"summary.json was not written: [test] no room"});
  }
}

// More steps than the buffer holds while its folder is missing.
TEST(Outputs, KeepTensorBoardThroughAShortOutage) {
  TempFolder folder;
  for (const bool comes_back : {true, false}) {
    test::write_text(folder / "file", "x");
    TensorboardView events(folder / "file/events");
    Breakable other;
    double now = 0;
    Outputs all({&events, &other}, [&] { return now; });
    all.on_steps(std::vector<Progress>(1000));
    EXPECT_EQ(count_of(other.notices, kMaxListed), 1);
    now = 6;
    all.on_validation({});
    if (comes_back) fs::remove(folder / "file");
    now = 12;
    all.on_validation({});
    EXPECT_EQ(count_of(other.notices, kOff), !comes_back);
    EXPECT_EQ(fs::is_directory(folder / "file/events"), comes_back);
    fs::remove_all(folder / "file");
  }
}

// Outputs fail one after another, even while one's failure is being reported to the others.
TEST(Outputs, MayAllFail) {
  Breakable first, second;
  first.broken = second.broken = true;
  double now = 0;
  Outputs all({&first, &second}, [&] { return now += 5; });
  for (int i = 0; i < 10; ++i) all.on_step({});
  EXPECT_LE(first.calls, 5);
  EXPECT_LE(second.calls, 5);
  Outputs({}).on_notice("to nobody");
}

TEST(Outputs, DoNotChangeResults) {
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
  EXPECT_EQ(count_of(run.notices, kMaxListed), 1);
  EXPECT_GE(broken.calls, Outputs::kTries);
  expect_same(Trace(plain.folder), Trace(run.folder));
}

TEST(Outputs, LosingTensorBoardKeepsTheRun) {
  TempFolder folder;
  test::write_text(folder / "file", "x");
  for (const int64_t steps : {30, 700}) {
    SmallRun run{.folder = folder / std::to_string(steps), .steps = steps};
    run.checkpoint_interval = steps / 2;
    TensorboardView events(folder / "file/events");
    run.watcher = &events;
    EXPECT_EQ(run().steps, steps);
    EXPECT_EQ(count_of(run.notices, kMaxListed), 1);
  }
  // The output has all events once the obstacle is gone.
  SmallRun run{.folder = folder / "healed"};
  TensorboardView events(folder / "file/events");
  run.watcher = &events;
  run.before = [&](Phase phase, int64_t step) {
    if (phase == Phase::validation && step == 20) fs::remove(folder / "file");
  };
  run();
  ASSERT_TRUE(fs::is_directory(folder / "file/events"));
  EXPECT_EQ(count_of(run.notices, kMaxListed), 1);
  EXPECT_EQ(count_of(run.notices, kOff), 0);
}

// Nothing can read stdout: it is on a full disk, or a pipe whose reader has gone.
TEST(Outputs, LosingTheTerminalKeepsTheRun) {
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
  EXPECT_EQ(count_of(run.notices, std::string(kMaxListed) + "[stdout] the output cannot be written: No space left on device"), 1);
}

TEST(Outputs, LosingSamplesKeepsTheRun) {
  TempFolder folder;
  SmallRun run{.folder = folder / "run", .steps = 90};
  int asked = 0;
  run.sample = [&]() -> std::string { ++asked, fail(ErrorCode::memory, "[test] no memory for a sample"); };
  EXPECT_EQ(run().steps, 90);
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(count_of(run.notices, "a sample failed, training continues: [test]"), 1);
  EXPECT_EQ(count_of(run.notices, "a sample failed, training continues without samples: [test]"), 1);
}

// A roll-back reopens the metrics file.
TEST(Outputs, LosingMetricsInARollBackKeepsTheRun) {
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
  EXPECT_EQ(count_of(run.notices, "metrics are switched off, training continues: [metrics]"), 1);
}

}  // namespace
}  // namespace ridge
