// Laws of a resumed run: it ends with the same bits as an uninterrupted one, and a run that cannot be resumed says why.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/error.h"
#include "support/file_faults.h"
#include "support/variable.h"
#include "train/small_run.h"

namespace ridge {
namespace {

using test::expect_same;
using test::Fault;
using test::FileFaults;
using test::mentions;
using test::SmallRun;
using test::TempFolder;
using test::Trace;
using test::write_text;

// Ends a run before a phase as a crash would, except that destructors run.
struct Crash {};
auto crash_at(Phase phase, int64_t step) {
  return [=](Phase p, int64_t s) {
    if (p == phase && s == step) throw Crash{};
  };
}

const Trace& undisturbed() {
  static const Trace trace = [] {
    TempFolder folder;
    SmallRun{.folder = folder / "run"}();
    return Trace(folder / "run");
  }();
  return trace;
}

std::string refusal(SmallRun run) {
  try {
    run();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage) << e.what();
    return e.what();
  }
  return "";
}

bool says(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST(Resume, EndsWithTheSameBits) {
  struct {
    Phase phase;
    int64_t step;
  } const kCrashes[] = {{Phase::data, 1},    {Phase::step, 9},  {Phase::validation, 10}, {Phase::checkpoint, 15},
                        {Phase::sample, 15}, {Phase::data, 29}, {Phase::checkpoint, 30}};
  int threads = 1;
  for (const auto& crash : kCrashes) {
    SCOPED_TRACE(testing::Message() << name(crash.phase) << " at " << crash.step);
    TempFolder folder;
    SmallRun run{.folder = folder / "run", .threads = 2, .before = crash_at(crash.phase, crash.step)};
    EXPECT_THROW(run(), Crash);
    run.resume = true, run.before = {}, run.threads = threads ^= 3;  // 2, 1, 2, …
    const Outcome out = run();
    EXPECT_TRUE(out.resumed && out.bit_exact) << testing::PrintToString(run.notices);
    EXPECT_EQ(out.steps, 30);
    expect_same(Trace(folder / "run"), undisturbed());
  }
}

TEST(Resume, WorksAtEveryStep) {
  TempFolder folder;
  SmallRun run{.folder = folder / "run", .before = crash_at(Phase::step, 1)};
  EXPECT_THROW(run(), Crash);
  run.resume = true;
  for (int64_t step = 6; step < 30; step += 5) {
    run.before = crash_at(Phase::data, step);
    EXPECT_THROW(run(), Crash);
  }
  run.before = {};
  run();
  expect_same(Trace(folder / "run"), undisturbed());
}

// In any phase: the step is finished, a checkpoint saved, and the resumed run continues as if nothing had happened.
TEST(Resume, WorksAfterASignal) {
  struct {
    Phase phase;
    int64_t step;
    int signal;
  } const kSignals[] = {{Phase::data, 0, SIGTERM},      {Phase::step, 7, SIGINT},         {Phase::validation, 10, SIGTERM}, {Phase::sample, 15, SIGINT},
                        {Phase::checkpoint, 0, SIGINT}, {Phase::checkpoint, 20, SIGTERM}, {Phase::step, 29, SIGTERM},       {Phase::checkpoint, 30, SIGINT}};
  for (const auto& s : kSignals) {
    SCOPED_TRACE(testing::Message() << name(s.phase) << " at " << s.step);
    TempFolder folder;
    SmallRun run{.folder = folder / "run", .handle_signals = true};
    run.before = [&](Phase phase, int64_t step) {
      if (phase == s.phase && step == s.step) ::raise(s.signal);
    };
    Outcome out = run();
    run.before = {}, run.resume = true;
    if (out.end != Outcome::End::finished) {  // a signal during the last checkpoint does not interrupt the run
      EXPECT_EQ(out.end, s.signal == SIGINT ? Outcome::End::interrupted : Outcome::End::terminated);
      EXPECT_LE(out.steps, s.step + 1);
      std::vector<std::string> notices;
      EXPECT_EQ(CheckpointStore(folder / "run/checkpoints").newest(notices)->step, out.steps);
      out = run();
    }
    EXPECT_EQ(out.steps, 30);
    expect_same(Trace(folder / "run"), undisturbed());
  }
}

// A step of several micro-batches is left where the signal arrives, and made again.
TEST(Resume, WorksAfterASignalBetweenMicroBatches) {
  TempFolder folder;
  SmallRun whole{.folder = folder / "whole", .steps = 12, .micro = 1};
  EXPECT_EQ(whole().steps, 12);
  SmallRun run{.folder = folder / "run", .steps = 12, .handle_signals = true, .micro = 1};
  run.before = [](Phase phase, int64_t step) {
    if (phase == Phase::step && step == 7) ::raise(SIGTERM);
  };
  const Outcome out = run();
  EXPECT_EQ(out.end, Outcome::End::terminated);
  EXPECT_EQ(out.steps, 7);
  EXPECT_FALSE(out.state_lost_since);
  run.before = {}, run.resume = true;
  EXPECT_EQ(run().steps, 12);
  expect_same(Trace(folder / "run"), Trace(folder / "whole"));
}

// A validation that a signal interrupted is made up for, and its best result is recorded.
TEST(Resume, CatchesUpOnAMissedValidation) {
  TempFolder folder;
  SmallRun run{.folder = folder / "run", .handle_signals = true};
  run.before = [](Phase phase, int64_t step) {
    if (phase == Phase::validation && step == 10) ::raise(SIGTERM);
  };
  EXPECT_EQ(run().steps, 10);
  run.resume = true, run.before = crash_at(Phase::step, 17);
  EXPECT_THROW(run(), Crash);
  const Trace trace(folder / "run");
  EXPECT_EQ(trace.state["best_step"], 10);
  EXPECT_EQ(trace.best, 10);
}

TEST(Resume, KeepsSkippedBatchesAndRollBacks) {
  auto bad = [](int64_t batch) { return batch >= 11 && batch <= 13 ? std::numeric_limits<float>::quiet_NaN() : 1.0f; };
  TempFolder folder;
  SmallRun whole{.folder = folder / "whole", .factor = bad};
  EXPECT_EQ(whole().roll_backs, 1);
  // Before and after the first checkpoint that follows the roll-back.
  for (int64_t step : {12, 17}) {
    const std::string name = "run" + std::to_string(step);
    int passed = 0;
    SmallRun run{.folder = folder / name, .factor = bad, .before = [&](Phase p, int64_t s) {
                   if (p == Phase::step && s == step && (step > 13 || ++passed == 2)) throw Crash{};
                 }};
    EXPECT_THROW(run(), Crash);
    run.before = {}, run.resume = true;
    const Outcome out = run();
    EXPECT_EQ(out.roll_backs, 1);
    EXPECT_EQ(out.skipped, 3);
    expect_same(Trace(folder / name), Trace(folder / "whole"));
  }
}

TEST(Resume, UsesThePreviousCheckpointIfTheNewestIsDamaged) {
  TempFolder folder;
  SmallRun run{.folder = folder / "run", .before = crash_at(Phase::step, 17)};
  EXPECT_THROW(run(), Crash);
  write_text(folder / "run/checkpoints/step_00000015/model.safetensors", "damaged");
  run.resume = true, run.before = {};
  run();
  EXPECT_TRUE(mentions(run.notices, "step_00000015") && mentions(run.notices, "skipped")) << testing::PrintToString(run.notices);
  EXPECT_TRUE(mentions(run.notices, "resumed at step 10")) << testing::PrintToString(run.notices);
  expect_same(Trace(folder / "run"), undisturbed());
}

// A failing save costs that checkpoint but not the run, whichever call fails: tries every call of the save after step 5.
TEST(Resume, TrainingContinuesIfACheckpointCannotBeSaved) {
  const FileCalls calls = FileFaults::calls();
  int before = 0, after = 0;
  {
    TempFolder folder;
    FileFaults faults(Fault::none, 0);
    SmallRun run{.folder = folder / "run", .files = &calls};
    run.on_checkpoint = [&](int64_t step) {
      if (step == 0) before = FileFaults::count();
      if (step == 5) after = FileFaults::count();
    };
    run();
  }
  ASSERT_GT(after - before, 20);
  constexpr Fault kFaults[] = {Fault::enospc, Fault::eio, Fault::short_then_full, Fault::short_write};
  for (int at = before; at < after; ++at) {
    const Fault fault = kFaults[at % 4];
    SCOPED_TRACE(testing::Message() << "fault " << int(fault) << " at call " << at);
    TempFolder folder;
    SmallRun run{.folder = folder / "run", .files = &calls};
    {
      FileFaults faults(fault, at);
      EXPECT_EQ(run().end, Outcome::End::finished);
      EXPECT_GT(FileFaults::count(), at);
    }
    expect_same(Trace(folder / "run"), undisturbed());
  }
}

// A disk that becomes full after some writes and stays full.
struct FillingDisk {
  static inline int left = 0;
  static ssize_t write(int file, const void* data, size_t bytes) {
    if (left-- > 0) return ::write(file, data, bytes);
    errno = ENOSPC;
    return -1;
  }
};

TEST(Resume, WorksAfterAFullDisk) {
  FileCalls calls = kSystemFileCalls;
  calls.write = FillingDisk::write;
  for (int writes : {60, 130, 200}) {
    SCOPED_TRACE(writes);
    TempFolder folder;
    FillingDisk::left = writes;
    SmallRun run{.folder = folder / "run", .files = &calls};
    EXPECT_TRUE(run().state_lost_since);
    EXPECT_TRUE(mentions(run.notices, "No space left on device") && mentions(run.notices, "free some space"));
    EXPECT_TRUE(mentions(run.notices, "training continues"));
    run.files = &kSystemFileCalls, run.resume = true;
    run();
    expect_same(Trace(folder / "run"), undisturbed());
  }
}

// Without a pass, sums may be in another order.
TEST(Resume, ReportsOtherPasses) {
  for (const bool off_first : {true, false}) {
    TempFolder folder;
    SmallRun run{.folder = folder / "run", .steps = 4, .before = crash_at(Phase::step, 3), .checkpoint_interval = 2};
    auto crash = [&](const char* passes) {
      const test::Variable off("RIDGE_PASSES", passes);
      EXPECT_THROW(run(), Crash);
    };
    crash(off_first ? "-fuse" : "");
    run.resume = true, run.notices.clear();
    crash(off_first ? "-fuse" : "");
    EXPECT_FALSE(mentions(run.notices, "not bit-exact")) << testing::PrintToString(run.notices);
    crash(off_first ? "" : "-fuse");
    EXPECT_TRUE(mentions(run.notices, off_first ? "not bit-exact: passes was -fuse, is now not set" : "not bit-exact: passes was not set, is now -fuse"))
        << testing::PrintToString(run.notices);
  }
}

TEST(Resume, ExplainsFailures) {
  TempFolder folder;
  SmallRun run{.folder = folder / "run"};
  run();
  EXPECT_TRUE(says(refusal(run), "already contains a run"));
  run.resume = true;
  EXPECT_EQ(run().own_steps, 0) << "nothing is left to do";
  run.vocab = 23, run.steps = 40;
  const std::string other = refusal(run);
  EXPECT_TRUE(says(other, "vocabulary 19") && says(other, "vocabulary 23")) << other;
  EXPECT_TRUE(says(refusal({.folder = folder / "none", .resume = true}), "checkpoint to resume from"));
  std::filesystem::create_directories(folder / "foreign/checkpoints");
  write_text(folder / "foreign/checkpoints/model.bin", "somebody's");
  EXPECT_TRUE(says(refusal({.folder = folder / "foreign", .resume = true}), "checkpoint to resume from"));
  expect_same(Trace(folder / "run"), undisturbed());  // nothing was changed
  // If all checkpoints are damaged, the folder still counts as a run: the user has to choose another folder.
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run/checkpoints"))
    if (entry.is_directory()) write_text((entry.path() / "model.safetensors").string(), "damaged");
  run.vocab = 19;
  const std::string damaged = refusal(run);
  EXPECT_TRUE(says(damaged, "checkpoint to resume from") && says(damaged, "in another folder with --out DIR")) << damaged;
}

TEST(Resume, ContinuesBeyondTheOriginalEnd) {
  TempFolder folder;
  SmallRun run{.folder = folder / "run"};
  run();
  run.resume = true, run.steps = 35;
  const Outcome out = run();
  EXPECT_EQ(out.steps, 35);
  EXPECT_EQ(out.end, Outcome::End::finished);
}

}  // namespace
}  // namespace ridge
