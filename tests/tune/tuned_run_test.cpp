// Runs with tuned choices: they are used, explained, stored in the checkpoint, and a resumed run gives the same bits whatever became of the store.
#include <gtest/gtest.h>

#include "base/error.h"
#include "machine/machine.h"
#include "support/task_test.h"
#include "train/run_trial.h"
#include "tune/tuned_choice.h"

namespace ridge {
namespace {

using test::TaskTest;
using test::with;
using test::Words;

class TunedRun : public TaskTest {
 protected:
  TunedRun() : TaskTest("cfc") {}

  static MeasurementStore store() { return MeasurementStore(fingerprint(detect_machine({}))); }

  std::unique_ptr<TaskRun> plan(const Words& words, RunOptions o = {}) const {
    o.measure = false;
    const config::Resolved s = settings(words);
    return find_task("cfc").plan(s, o);
  }
  // As ridge tune import does: choices that are used even where nothing may be measured.
  void import(const std::string& key, const TunedWords& words) const {
    MeasurementStore own = store();
    keep_choice(own, key, {.words = words, .what = "a test", .planned_seconds = 0.002, .seconds = 0.001, .measured = 9, .points = 80});
    const std::string exported = choices_json(own, {"here", "{}"});
    own.forget();
    EXPECT_EQ(import_choices(own, exported, "choices.json"), 1);
  }
  static const Decision& decision(const TaskRun& run, std::string_view setting) {
    static const Decision none;
    for (const Decision& d : run.decisions)
      if (d.setting == setting) return d;
    return none;
  }
};

const Words kRun = {"preset=sine", "length=8", "units=6", "backbone_units=6", "batch=8", "steps=6", "warmup=2", "checkpoint_interval=3"};
const TunedWords kWordsOfChoice = {{"parts", "2"}, {"recompute", "elementwise"}, {"passes", "-streaming,-place"}};

TEST_F(TunedRun, ResumesWithTheSameBits) {
  const auto planned = plan(kRun);
  EXPECT_EQ(decision(*planned, "tuning").value, "") << "nothing is stored, and such a short run is not searched";
  import(planned->tuning_key, kWordsOfChoice);

  RunSummary whole, first, rest;
  const auto run = train(kRun, whole, "whole");
  EXPECT_EQ(run->step->plan().micro, 4);
  EXPECT_EQ(run->step->plan().choices.passes, "-place,-streaming");
  EXPECT_EQ(decision(*run, "tuning").decided_by, "imported");
  EXPECT_EQ(decision(*run, "tuning").value, "parts=2 passes=-streaming,-place recompute=elementwise");
  EXPECT_EQ(decision(*run, "micro-batch").value, "2 x 4");
  EXPECT_EQ(decision(*run, "micro-batch").decided_by, "imported");
  EXPECT_EQ(decision(*run, "recompute").value, "elementwise");

  train(with(kRun, {"max_minutes=1e-9"}), first, "parts");
  EXPECT_LT(first.outcome.steps, 6);
  store().forget(kTuneKeys);
  const auto resumed = train(kRun, rest, "parts", true);
  EXPECT_TRUE(rest.outcome.resumed && rest.outcome.bit_exact);
  EXPECT_EQ(resumed->step->plan().choices, run->step->plan().choices);
  EXPECT_EQ(weights(*resumed), weights(*run));
  EXPECT_EQ(plan(kRun)->step->plan().micro, 8) << "a new run plans again";
}

// A run whose choices were searched for is stopped; what its store and the machine say later does not matter.
TEST_F(TunedRun, ResumesWithTheSameBitsAfterASearch) {
  const Words words = with(kRun, {"batch=64", "length=32"});
  RunSummary first, rest, whole;
  {
    const config::Resolved s = settings(with(words, {"max_minutes=1e-9"}));
    RunOptions o;
    o.data = s.get<Words>("data").front(), o.seed = uint64_t(s.get<int64_t>("seed")), o.measure = false, o.tune_seconds = 0.2, o.folder = folder_ / "parts";
    const std::unique_ptr<TaskRun> run = start_run(find_task("cfc"), s, o);
    EXPECT_EQ(decision(*run, "tuning").decided_by, "measured");
    first = train_in_folder(*run, s, {.show = false, .config = config_text(s, o.folder)}).summary;
    EXPECT_LT(first.outcome.steps, 6);
    // The same choices for a run that is never stopped.
    MeasurementStore own = store();
    std::optional<TunedChoice> found = kept_choice(own, run->tuning_key);
    ASSERT_TRUE(found);
    found->imported = true;
    keep_choice(own, run->tuning_key, *found);
  }
  const auto never_stopped = train(words, whole, "whole");
  store().forget(kTuneKeys);
  const auto resumed = train(words, rest, "parts", true);
  EXPECT_TRUE(rest.outcome.resumed && rest.outcome.bit_exact);
  EXPECT_EQ(resumed->step->plan().choices, never_stopped->step->plan().choices);
  EXPECT_EQ(weights(*resumed), weights(*never_stopped));
}

TEST_F(TunedRun, IsWeakerThanSettingsAndOff) {
  import(plan(kRun)->tuning_key, kWordsOfChoice);
  EXPECT_EQ(plan(with(kRun, {"tune=off"}))->step->plan().micro, 8);
  EXPECT_EQ(plan(with(kRun, {"deterministic=true"}))->step->plan().micro, 4) << "imported choices are the same in every run";
  const auto level = plan(with(kRun, {"recompute=attention", "accumulation=4"}));
  EXPECT_EQ(level->step->plan().recompute, Recompute::attention);
  EXPECT_EQ(level->step->plan().micro, 2);
  EXPECT_EQ(decision(*level, "recompute").decided_by, "command line");
}

TEST_F(TunedRun, NeighboursShareAndOthersDoNot) {
  const std::string key = plan(kRun)->tuning_key;
  EXPECT_EQ(plan(with(kRun, {"batch=7", "units=7"}))->tuning_key, key);
  for (const char* other : {"batch=16", "units=60", "layers=2", "length=64"}) EXPECT_NE(plan(with(kRun, {other}))->tuning_key, key) << other;
}

// Sizes that train the most parameters per second.
class SizesOfARun : public TunedRun {
 protected:
  // The task, with sizes of which the larger are better, and what is alive of each of its runs.
  static Task counted() {
    Task task = find_task("cfc");
    alive_.clear(), most_alive_ = 0, planned_ = 0, measured_ = false;
    task.sizes = {{"units", {6, 12}}, {"backbone_units", {6, 12}}};
    task.plan = [](const config::Resolved& s, const RunOptions& o) {
      std::unique_ptr<TaskRun> run = find_task("cfc").plan(s, o);
      std::erase_if(alive_, [](const std::weak_ptr<int>& token) { return token.expired(); });
      const auto token = std::make_shared<int>(0);
      alive_.push_back(token), most_alive_ = std::max(most_alive_, alive_.size()), ++planned_;
      run->trainer.accepted = [token] {};
      measured_ |= run->flops_rate > 0;
      return run;
    };
    return task;
  }
  static inline std::vector<std::weak_ptr<int>> alive_;
  static inline size_t most_alive_ = 0;
  static inline int planned_ = 0;
  static inline bool measured_ = false;
};

TEST_F(SizesOfARun, AreGuessedWithoutThisMachine) {
  const Task task = counted();
  const config::Resolved s = settings(with(kRun, {"tune=auto"}));
  import(plan(kRun)->tuning_key, kWordsOfChoice);  // a choice for this machine
  std::vector<double> seconds;
  std::vector<TunePoint> found;
  for (const double limit : {1e-9, 100.0}) {
    const SizeSearch search = search_sizes(task, s, {}, {.latency = 1, .seconds = limit, .guess = [&](const TaskRun& run) {
                                                           seconds.push_back(double(run.step->kernels().size()));
                                                           EXPECT_EQ(run.step->plan().micro, 8) << "no choices of this machine";
                                                           EXPECT_EQ(run.step->plan().choices.precision, Precision::fp32);
                                                           return 1e-3;
                                                         }});
    found.push_back(search.result.best);
    EXPECT_EQ(search.result.ended, "no single change is faster");
  }
  EXPECT_EQ(found[0], found[1]) << "whatever the time";
  EXPECT_EQ(found[0], (TunePoint{1, 1}));
  EXPECT_FALSE(measured_);
}

TEST_F(SizesOfARun, AreThoseThatTheModelUses) {
  const Words small = {"preset=sine", "length=8", "batch=8"};
  const auto names = [&](const Words& more) {
    const SizeSearch search = search_sizes(find_task("cfc"), settings(with(small, more)), {}, {.latency = 1, .guess = [](const TaskRun&) { return 1e-3; }});
    EXPECT_TRUE(search.present_fits) << search.result.ended;
    EXPECT_EQ(search.result.refused, 0);
    Words all;
    for (const TuneDimension& d : search.space.dimensions) all.push_back(d.name);
    return all;
  };
  EXPECT_EQ(names({"cell=gru"}), (Words{"batch", "units"}));
  EXPECT_EQ(names({"wiring=auto:12,2"}), (Words{"batch"}));
  EXPECT_EQ(names({}), (Words{"batch", "units", "backbone_units", "backbone_layers"}));
}

TEST_F(SizesOfARun, LetGoOfRunsAndMarkABusyMachine) {
  const Task task = counted();
  RunOptions o;
  o.measure = false;
  int looks = 0;
  const SizeSearch search = search_sizes(task, settings(kRun), o, {.latency = 10, .seconds = 0.1, .others = [&] { return ++looks < 2 ? 0.0 : 1.0; }});
  EXPECT_EQ(planned_, 2) << "the present sizes, and the start of the search, which takes all of its time";
  EXPECT_EQ(most_alive_, 1u);
  size_t busy = 0;
  for (const TuneTrial& t : search.result.trials) busy += t.busy.size();
  EXPECT_GT(busy, 0u) << search.result.ended;
  EXPECT_GT(search.best_rate, 0) << search.result.ended;
}

TEST_F(TunedRun, MeasuresItsFirstBatchAgainOnABusyMachine) {
  Task task = find_task("cfc");
  task.plan = [](const config::Resolved& s, const RunOptions& o) {
    if (s.get<std::string>("batch") != "8") fail(ErrorCode::usage, "one size is enough");
    return find_task("cfc").plan(s, o);
  };
  RunOptions o;
  o.measure = false;
  int looks = 0;
  const SizeCurve curve = measure_sizes(task, settings(kRun), o, "batch", 8, 0.01, [&] { return ++looks < 2 ? 1.0 : 0.0; });
  EXPECT_EQ(looks, 2) << "the first one sees other programs";
  ASSERT_EQ(curve.points.size(), 1u) << curve.ended;
  EXPECT_FALSE(curve.points[0].busy);
}

TEST_F(TunedRun, SearchesWholeStepsAndChecksTheirResults) {
  RunOptions o;
  o.tune_seconds = 0.05;
  TuneResult found;
  int64_t points = 0;
  o.tuned = [&](StepTrials& trials, const TuneResult& r) { found = r, points = trials.space().points(); };
  const auto run = plan(with(kRun, {"units=30", "threads=1"}), o);
  EXPECT_GE(points, 60);
  ASSERT_GE(found.points, 1);
  for (const TuneTrial& t : found.trials) EXPECT_EQ(t.refused, "") << "every choice computes the same step";
  EXPECT_EQ(decision(*run, "tuning").decided_by, "measured");
  EXPECT_EQ(store().all("tune/step/").size(), 1u);
}

}  // namespace
}  // namespace ridge
