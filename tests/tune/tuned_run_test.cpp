// Runs with tuned choices: they are used, explained, stored in the checkpoint, and a resumed run gives the same bits whatever became of the store.
#include <gtest/gtest.h>

#include "machine/machine.h"
#include "support/task_test.h"
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
  EXPECT_EQ(store().all(kTuneKeys).size(), 1u);
}

}  // namespace
}  // namespace ridge
