// SLM-Lab's metrics of sessions and trials, against values worked out by hand, and the report of several seeds.
#include "tasks/ppo/trial.h"

#include <gtest/gtest.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "support/task_test.h"
#include "tasks/ppo/task.h"

namespace ridge {
namespace {

const SessionCurve kCurve = {{10, 20, 15, 30}, {100, 200, 300, 400}, {1, 2, 3, 4}};  // strengths against 5: 5, 15, 10, 25

TEST(Trial, MetricsOfASession) {
  const SessionMetrics m = session_metrics(kCurve, 5);
  EXPECT_DOUBLE_EQ(m.total_reward_ma, 18.75);
  EXPECT_DOUBLE_EQ(m.strength, 13.75);
  EXPECT_DOUBLE_EQ(m.max_strength, 25);
  EXPECT_DOUBLE_EQ(m.final_strength, 25);
  EXPECT_DOUBLE_EQ(m.sample_efficiency, (5.0 / 100 + 15.0 / 200 + 10.0 / 300 + 25.0 / 400) / 55);
  EXPECT_DOUBLE_EQ(m.training_efficiency, 100 * m.sample_efficiency);
  EXPECT_DOUBLE_EQ(m.stability, 1 - 5.0 / 30) << "one fall of 5";
}

TEST(Trial, WhatCannotBeMeasuredIsUnknown) {
  const SessionMetrics none = session_metrics({}, 5), one = session_metrics({{7}, {100}, {1}}, 5), flat = session_metrics({{5, 5}, {1, 2}, {1, 2}}, 5);
  EXPECT_TRUE(std::isnan(none.strength) && std::isnan(none.stability));
  EXPECT_DOUBLE_EQ(one.strength, 2);
  EXPECT_TRUE(std::isnan(one.stability)) << "there is nothing to fall from";
  EXPECT_TRUE(std::isnan(flat.sample_efficiency)) << "no strength at all";
  SessionCurve many;
  for (int i = 1; i <= 150; ++i) many.returns.push_back(i), many.decisions.push_back(i), many.updates.push_back(i);
  EXPECT_DOUBLE_EQ(session_metrics(many, 0).total_reward_ma, (51 + 150) / 2.0) << "the last 100";
}

TEST(Trial, Consistency) {
  const SessionCurve other = {{20, 20}, {100, 200}, {1, 2}};
  EXPECT_DOUBLE_EQ(consistency(std::vector{kCurve, kCurve}, 5), 1);
  EXPECT_NEAR(consistency(std::vector{kCurve, other}, 5), 1 - 2 * std::sqrt(50.0) / (10 + 15 + 10 + 25), 1e-12) << "sd with n - 1";
}

class TrialRuns : public test::TaskTest {
 protected:
  TrialRuns() : TaskTest(kPpoName) {}
};

// A seed without its target counts as slower than any other; the median says so when it is one of them.
TEST_F(TrialRuns, AreReportedSeedBySeed) {
  std::vector<ExperimentRun> runs;
  for (const auto& [seed, target] : {std::pair("3", "target_score=5"), {"4", "target_score=5"}, {"5", "target_score=500"}}) {
    RunSummary s;
    train({"preset=cartpole", "instances=4", "horizon=32", "minibatch=128", "update_epochs=1", "decisions=8192", "units=8", "eval_interval=16",
           std::string("seed=") + seed, target},
          s, std::string("many/seed_") + seed);
    runs.push_back(read_experiment_run(std::filesystem::path(folder_ / "many") / (std::string("seed_") + seed)));
  }
  ASSERT_TRUE(runs[0].target && runs[0].target->reached && runs[1].target->reached && !runs[2].target->reached);
  EXPECT_EQ(runs[0].units_per_step, 128);
  EXPECT_EQ(runs[0].target->units, runs[0].steps * 128);
  EXPECT_GE(*runs[0].target->evaluation, 4.5);
  const RunsReport report = report_agents(runs, 80);
  const auto json = nlohmann::json::parse(report.json);
  EXPECT_EQ(json["time_to_target"]["solved"], 2);
  EXPECT_EQ(json["time_to_target"]["median_decisions"], std::max(runs[0].target->units, runs[1].target->units));
  EXPECT_NEAR(json["random_baseline"]["mean"], 22, 5);
  for (const char* key :
       {"frame", "total_reward_ma", "strength", "max_strength", "final_strength", "sample_efficiency", "training_efficiency", "stability", "consistency"})
    EXPECT_TRUE(json["trial"].contains(key)) << key;
  EXPECT_EQ(json["sessions"].size(), 3u);
  EXPECT_NE(report.text.find("not solved: ended after 8,192 decisions"), std::string::npos) << report.text;
  EXPECT_NE(report.text.find("2 of 3 solved"), std::string::npos) << report.text;
  runs.erase(runs.begin());
  EXPECT_TRUE(nlohmann::json::parse(report_agents(runs, 80).json)["time_to_target"]["median_decisions"].is_null()) << "half of the seeds never got there";
}

}  // namespace
}  // namespace ridge
