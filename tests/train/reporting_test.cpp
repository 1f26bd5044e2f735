// Laws of a run's reports: each step is reported once and in order, in the file and to observers, however fast the steps are and however the run ends; and of
// the default save interval.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "base/error.h"
#include "train/device_like_backend.h"
#include "train/small_run.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;
using test::mentions;
using test::SmallRun;
using test::TempFolder;

std::vector<int64_t> rows_of(const fs::path& folder) {
  std::vector<int64_t> steps;
  std::ifstream in(folder / "metrics.jsonl");
  for (std::string line; std::getline(in, line);)
    if (const auto row = nlohmann::json::parse(line); row.contains("loss")) steps.push_back(row.at("step"));
  return steps;
}

std::vector<int64_t> counted(int64_t last) {
  std::vector<int64_t> steps;
  for (int64_t i = 1; i <= last; ++i) steps.push_back(i);
  return steps;
}

// Anything reported after step n comes after that step's report and before any later one.
struct Watcher : TrainerView {
  fs::path folder;
  std::vector<int64_t> steps, validations, samples, checkpoints;
  int64_t newest = 0;

  void on_step(const Progress& p) override { steps.push_back(p.step), newest = p.newest ? p.step : newest; }
  void on_validation(const ValidationResult& r) override { expect_here(r.step), validations.push_back(r.step); }
  void on_sample(int64_t step, const std::string&) override { expect_here(step), samples.push_back(step); }
  void on_checkpoint(int64_t step, const std::string&, double) override {
    expect_here(step), checkpoints.push_back(step);
    EXPECT_EQ(rows_of(folder), counted(step)) << "the rows of a checkpoint's steps are in the file when it is complete";
  }
  void expect_here(int64_t step) const {
    EXPECT_EQ(int64_t(steps.size()), step);
    EXPECT_EQ(newest, step);
  }
};

TEST(Reporting, ReportsEveryStepOnceAndInOrder) {
  TempFolder folder;
  Watcher watcher;
  watcher.folder = folder / "run";
  SmallRun run{.folder = watcher.folder};
  run.watcher = &watcher;
  run();
  EXPECT_EQ(watcher.steps, counted(30));
  EXPECT_EQ(watcher.newest, 30);
  EXPECT_EQ(watcher.validations, (std::vector<int64_t>{10, 20, 30}));
  EXPECT_EQ(watcher.samples, (std::vector<int64_t>{15, 30}));
  EXPECT_EQ(watcher.checkpoints, (std::vector<int64_t>{0, 5, 10, 15, 20, 25, 30}));
  EXPECT_EQ(rows_of(run.folder), counted(30));
}

// The file has the same numbers as the observers get, to nine digits; null if one is not finite.
TEST(Reporting, WritesWhatItReports) {
  struct Keeper : TrainerView {
    std::vector<Progress> steps;
    void on_step(const Progress& p) override { steps.push_back(p); }
  } keeper;
  TempFolder folder;
  SmallRun run{.folder = folder / "run"};
  run.watcher = &keeper, run.factor = [](int64_t batch) { return batch == 7 ? std::numeric_limits<float>::quiet_NaN() : 1.f; };
  run();
  std::ifstream in(run.folder / "metrics.jsonl");
  size_t at = 0;
  for (std::string line; std::getline(in, line);) {
    const auto row = nlohmann::json::parse(line);
    if (!row.contains("loss")) continue;
    ASSERT_LT(at, keeper.steps.size());
    const Progress& p = keeper.steps[at++];
    EXPECT_EQ(row.at("step"), p.step);
    EXPECT_EQ(row.contains("applied"), !p.applied);
    EXPECT_EQ(p.applied, p.step != 8);
    for (const auto& [key, shown] : {std::pair("loss", p.loss),
                                     {"gradient_norm", p.gradient_norm},
                                     {"lr", p.lr},
                                     {"ms", p.ms},
                                     {"tokens_s", p.tokens_s},
                                     {"compute_tokens_s", p.compute_tokens_s},
                                     {"data_wait_s", p.data_wait_s}}) {
      EXPECT_EQ(row.at(key).is_null(), !std::isfinite(shown)) << line;
      if (!std::isfinite(shown)) continue;
      EXPECT_NEAR(row.at(key).get<double>(), shown, 1e-8 * std::abs(shown)) << line;
    }
  }
  EXPECT_EQ(at, 30u);
}

TEST(Reporting, WritesRowsOfARunThatFails) {
  TempFolder folder;
  SmallRun run{.folder = folder / "run"};
  run.factor = [](int64_t batch) -> float {
    if (batch == 17) fail(ErrorCode::io, "[test] no such batch");
    return 1;
  };
  EXPECT_THROW(run(), Error);
  EXPECT_EQ(rows_of(run.folder), counted(17));
  run.factor = {}, run.resume = true;
  run();
  EXPECT_EQ(rows_of(run.folder), counted(30));
}

// A disk without space for rows costs no training; it is reported once, and the loss of rows at the end.
TEST(Reporting, TrainingContinuesIfRowsCannotBeWritten) {
  TempFolder folder;
  SmallRun run{.folder = folder / "run"};
  fs::create_directories(run.folder);
  fs::create_symlink("/dev/full", run.folder / "metrics.jsonl");
  const Outcome out = run();
  EXPECT_EQ(out.end, Outcome::End::finished);
  EXPECT_FALSE(out.state_lost_since);
  EXPECT_EQ(std::count_if(run.notices.begin(), run.notices.end(), [](const std::string& n) { return n.starts_with("metrics are kept in memory"); }), 1);
  EXPECT_EQ(std::count(run.notices.begin(), run.notices.end(), "the last metrics could not be written and are lost"), 1);
  std::vector<std::string> damage;
  const auto newest = CheckpointStore(run.folder / "checkpoints").newest(damage);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, 30);
}

// More rows than there is space for: the run continues to its end and its last checkpoint.
TEST(Reporting, TrainingContinuesWithoutRoomForRows) {
  TempFolder folder;
  SmallRun run{.folder = folder / "run", .steps = 700};
  run.checkpoint_interval = 350;
  fs::create_directories(run.folder);
  fs::create_symlink("/dev/full", run.folder / "metrics.jsonl");
  EXPECT_EQ(run().steps, 700);
  EXPECT_EQ(std::count_if(run.notices.begin(), run.notices.end(), [](const std::string& n) { return n.starts_with("there is no more room for metrics"); }), 1);
  std::vector<std::string> damage;
  const auto newest = CheckpointStore(run.folder / "checkpoints").newest(damage);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, 700);
}

// Every row has the total time spent waiting for data: almost nothing if batches are ready, more if making one takes longer than a step.
TEST(Reporting, CountsWaitingForData) {
  auto waits = [](const fs::path& folder) {
    std::vector<double> all;
    std::ifstream in(folder / "metrics.jsonl");
    for (std::string line; std::getline(in, line);)
      if (const auto row = nlohmann::json::parse(line); row.contains("loss")) all.push_back(row.at("data_wait_s"));
    return all;
  };
  TempFolder folder;
  SmallRun quick{.folder = folder / "quick"}, slow{.folder = folder / "slow"};
  slow.factor = [](int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));  // longer than a step, instrumented or not
    return 1.0f;
  };
  quick();
  const Outcome out = slow();
  const std::vector<double> few = waits(quick.folder), many = waits(slow.folder);
  ASSERT_EQ(few.size(), 30u);
  ASSERT_EQ(many.size(), 30u);
  EXPECT_TRUE(std::is_sorted(few.begin(), few.end()) && std::is_sorted(many.begin(), many.end()));
  EXPECT_GE(few.front(), 0);
  EXPECT_GT(many.back(), few.back());
  EXPECT_NEAR(out.data_wait_seconds, many.back(), 1e-8 * many.back());
  EXPECT_LE(out.data_wait_seconds, out.phase_seconds[int(Phase::data)] + 1e-3) << "and that is the time of the phase";
}

// Rates use wall-clock time: no rate exceeds what the wait for data allows. The steps' own times exclude that wait.
TEST(Reporting, RatesIncludeWaitingForData) {
  TempFolder folder;
  DeviceLikeBackend device;
  for (Backend* backend : {&default_backend(), static_cast<Backend*>(&device)}) {
    struct Keeper : TrainerView {
      std::vector<Progress> steps;
      void on_step(const Progress& p) override { steps.push_back(p); }
    } keeper;
    SmallRun run{.folder = folder / (backend == &device ? "far" : "near"), .steps = 15, .backend = backend};
    run.watcher = &keeper, run.min_seconds = 1e-3;
    run.factor = [](int64_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(60));  // longer than a step, instrumented or not
      return 1.0f;
    };
    const Outcome out = run();
    ASSERT_EQ(keeper.steps.size(), 15u);
    double own_seconds = 0;
    for (const Progress& p : keeper.steps) {
      own_seconds += 1e-3 * p.ms;
      EXPECT_LE(p.tokens_s * p.data_wait_s, double(p.step * test::kSamples) * (1 + 1e-9)) << "step " << p.step;  // the last 31 steps are all steps so far
      EXPECT_NEAR(p.wall_ms * p.tokens_s, 1e3 * test::kSamples, 1e-6);
    }
    const Progress& last = keeper.steps.back();
    if (out.phase_seconds[int(Phase::step)] < 0.5 * out.data_wait_seconds) {  // on a busy machine steps can take longer than their data
      EXPECT_GT(last.compute_tokens_s, 1.2 * last.tokens_s) << "the wait counts as the steps' own time";
      EXPECT_GT(out.compute_tokens_s, 1.2 * out.tokens_s);
    }
    EXPECT_NEAR(out.compute_tokens_s * own_seconds, 15.0 * test::kSamples, 1e-6) << "the end says what the steps said";
    EXPECT_NEAR(out.roof * own_seconds, 15 * run.min_seconds, 1e-9);
    EXPECT_LT(own_seconds, std::max(5 * out.phase_seconds[int(Phase::step)], 0.3 * out.data_wait_seconds))
        << "each step's time has more of the wait than the one before";
    EXPECT_LE(out.tokens_s * out.data_wait_seconds, 15.0 * test::kSamples);
    EXPECT_LT(own_seconds + (backend == &device ? 0 : out.data_wait_seconds), out.seconds);  // they overlap on an asynchronous device
  }
}

// A utilisation above 100 % is not shown: files say why it is missing, as the screen does.
TEST(Reporting, MetricsNeverShowARoofAboveOne) {
  TempFolder folder;
  for (const double min_seconds : {1e3, 1e-9}) {
    SmallRun run{.folder = folder / fmt::format("{}", min_seconds)};
    run.min_seconds = min_seconds;
    run();
    std::ifstream in(run.folder / "metrics.jsonl");
    int64_t steps = 0;
    for (std::string line; std::getline(in, line);) {
      const auto row = nlohmann::json::parse(line);
      if (!row.contains("ms")) continue;
      ++steps;
      EXPECT_EQ(row.at("roof").is_null(), min_seconds > 1) << line;
      EXPECT_EQ(row.contains("above_roof"), min_seconds > 1) << line;
      EXPECT_EQ(row.value("above_roof", ""), min_seconds > 1 ? "measured while slower" : "");
    }
    EXPECT_GT(steps, 0);
  }
}

// A slow step is reported as slow, and only that one.
TEST(Reporting, ReportsTheTimeOfEachStep) {
  struct SlowOnce : DeviceLikeBackend {
    bool slow = false;
    void wait_for(int64_t mark) override {
      if (std::exchange(slow, false)) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      DeviceLikeBackend::wait_for(mark);
    }
  } device;
  struct Slowest : TrainerView {
    double ms = 0;
    void on_step(const Progress& p) override { ms = std::max(ms, p.ms); }
  } slowest;
  TempFolder folder;
  SmallRun run{.folder = folder / "run", .backend = &device};
  run.watcher = &slowest;
  run.before = [&](Phase phase, int64_t step) { device.slow |= phase == Phase::step && step == 12; };
  const Outcome out = run();
  EXPECT_GE(slowest.ms, 200);
  EXPECT_LT(out.ms, slowest.ms) << "a median";
}

// A step's time is broken down; on an asynchronous device this uses the updates of steps that are waited for anyway.
TEST(Reporting, MeasuresUpdates) {
  TempFolder folder;
  DeviceLikeBackend device;
  for (Backend* backend : {&default_backend(), static_cast<Backend*>(&device)}) {
    const Outcome out = SmallRun{.folder = folder / (backend == &device ? "far" : "near"), .backend = backend}();
    EXPECT_GT(out.update_seconds, 0);
    EXPECT_LE(out.update_seconds, out.phase_seconds[int(Phase::step)]);
  }
}

// By default validations take at most a twentieth of the time, counting a sample as a third of a training sample, except for the one at the end; with little
// validation data they are frequent.
TEST(Reporting, ValidatesWithinItsShareOfTheTime) {
  for (const int64_t batches : {1, 2, 10, 40})
    for (const int64_t steps : {1, 30, 100, 300}) {
      SCOPED_TRACE(testing::Message() << batches << " batches, " << steps << " steps");
      TempFolder folder;
      SmallRun run{.folder = folder / "run", .steps = steps};
      run.validation_interval.reset(), run.validation_batches = batches, run.checkpoint_interval = steps;
      Watcher watcher;
      watcher.folder = run.folder, run.watcher = &watcher;
      run();
      const double count = double(watcher.validations.size()), share = count * double(batches) / 3 / double(steps);
      ASSERT_GE(count, 1);
      EXPECT_EQ(watcher.validations.back(), steps);
      EXPECT_TRUE(share <= 0.05 || count == 1) << share;
      EXPECT_TRUE(count >= 10 || (count + 1) * double(batches) / 3 / double(steps) > 0.045 || count == 1) << count << " are fewer than there is time for";
    }
}

constexpr double kForever = std::numeric_limits<double>::infinity();

// Which checkpoints a run writes. The best weights are among them, however rarely it saves.
std::vector<int64_t> saved_steps(SmallRun run) {
  std::vector<int64_t> saved;
  run.on_checkpoint = [&](int64_t step) { saved.push_back(step); };
  const Outcome outcome = run();
  std::vector<std::string> damage;
  const CheckpointStore store(run.folder / "checkpoints");
  const auto best = store.best(damage), newest = store.newest(damage);
  EXPECT_TRUE(best && best->step == outcome.best_step);
  EXPECT_TRUE(newest && newest->step == 30);
  EXPECT_EQ(rows_of(run.folder), counted(30));
  return saved;
}

TEST(Saving, PausesBetweenCheckpoints) {
  using Steps = std::vector<int64_t>;
  TempFolder folder;
  DeviceLikeBackend device;
  SmallRun run{.folder = folder / "near"};
  run.checkpoint_interval = {}, run.checkpoint_rest = kForever, run.expected_step_seconds = 1;
  EXPECT_EQ(saved_steps(run), (Steps{0, 10, 20, 30})) << "the start, each best and the end";
  run.folder = folder / "far", run.backend = &device;
  EXPECT_EQ(saved_steps(run), (Steps{0, 30})) << "a best is copied and not yet written";
  run.folder = folder / "worse", run.factor = [](int64_t batch) { return batch < 20 ? 1.f : -5.f; };  // its last batches teach it the wrong thing
  EXPECT_EQ(saved_steps(run), (Steps{0, 20, 30})) << "the last best comes before the end";
  run.folder = folder / "rested", run.factor = {}, run.checkpoint_rest = 0;
  EXPECT_EQ(saved_steps(run), (Steps{0, 3, 6, 9, 10, 12, 15, 18, 20, 21, 24, 27, 30}));
  run.folder = folder / "paced", run.checkpoint_rest = 7.5;
  EXPECT_EQ(saved_steps(run), (Steps{0, 7, 10, 14, 20, 21, 28, 30})) << "an interval in steps, whatever the clock says";
  run.folder = folder / "unknown", run.checkpoint_rest = 20, run.expected_step_seconds = 0;
  EXPECT_EQ(saved_steps(run), (Steps{0, 30})) << "so small a model makes quick steps, measured or not";
  run.folder = folder / "asked", run.checkpoint_rest = kForever, run.checkpoint_interval = 5;
  EXPECT_EQ(saved_steps(run), (Steps{0, 5, 10, 15, 20, 25, 30}));
}

}  // namespace
}  // namespace ridge
