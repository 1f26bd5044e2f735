#include "train/experiment.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "support/temp_folder.h"
#include "train/loss_plot.h"
#include "train/run_table.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// A run with losses `offset` above 1 + 8 / step.
void write_run(const fs::path& folder, double offset, int steps = 40, bool ended = true) {
  std::string rows;
  for (int i = 1; i <= steps; ++i) {
    rows += nlohmann::json({{"step", i}, {"loss", 1 + 8.0 / i + offset}, {"tokens_s", 1000 + i}}).dump() + "\n";
    if (i % 10 == 0) rows += nlohmann::json({{"step", i}, {"val_loss", 1.1 + 8.0 / i + offset}}).dump() + "\n";
  }
  write(folder / "metrics.jsonl", rows);
  if (!ended) return;
  const nlohmann::json summary = {{"end", "finished"},
                                  {"final_train_loss", 1.2 + offset},
                                  {"best_val_loss", 1.3 + offset},
                                  {"steps", steps},
                                  {"seconds", 12.5},
                                  {"tokens_s", 2048.0},
                                  {"device", "cpu"},
                                  {"precision", "fp32"}};
  write(folder / "summary.json", summary.dump());
}

TEST(Experiment, MeanAndErrorOfTheMean) {
  EXPECT_EQ(mean_error({}).count, 0u);
  const std::vector<double> one = {3.5}, three = {1, 2, 6};
  EXPECT_EQ(mean_error(one).mean, 3.5);
  EXPECT_EQ(mean_error(one).error, 0);
  EXPECT_DOUBLE_EQ(mean_error(three).mean, 3);
  EXPECT_DOUBLE_EQ(mean_error(three).error, std::sqrt((4.0 + 1 + 9) / 2 / 3));
}

// As at the end of a run: the loss at the best score, and only steps that changed the weights.
TEST(Experiment, AnUnfinishedRunIsJudgedByItsScore) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  std::string rows = R"({"step":1,"loss":3})"
                     "\n"
                     R"({"step":2,"loss":90,"applied":false})"
                     "\n";
  const nlohmann::json accuracy = {{"name", "accuracy"}, {"unit", ""}, {"higher_is_better", true}};
  for (const auto& [step, loss, value] : {std::tuple(1, 0.5, 0.9), {2, 0.4, 0.8}}) {
    nlohmann::json row = {{"step", step}, {"val_loss", loss}, {"score", accuracy}};
    row["score"]["value"] = value;
    rows += row.dump() + "\n";
  }
  write(root / "metrics.jsonl", rows);
  write(root / "plan.json", R"({"unit": "samples"})");
  const ExperimentRun run = read_experiment_run(root);
  EXPECT_EQ(run.best_score, 0.9);
  EXPECT_EQ(run.best_val_loss, 0.5);
  EXPECT_EQ(run.final_train_loss, 3);
  EXPECT_EQ(run.unit, "samples");
  ExperimentRun other = run;
  other.tokens_s = 2000, other.folder = "other";
  const std::string same = run_table(group_seeds({run, other}), 200);
  EXPECT_NE(same.find("samples/s"), std::string::npos) << same;
  other.unit = "tokens";
  const std::string mixed = run_table(group_seeds({run, other}), 200);
  EXPECT_NE(mixed.find("2.00k tokens"), std::string::npos) << mixed;
  EXPECT_EQ(run_document(group_seeds({run}))["runs"][0]["unit"], "samples");
}

// What counts for a user is the error on test data: it is in the means and in the table, with digits that show small errors.
TEST(Experiment, FiguresOnTestDataAreInMeansAndTable) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  std::vector<ExperimentRun> runs;
  for (int seed = 1; seed <= 3; ++seed) {
    const fs::path run = root / fmt::format("sine/seed_{}", seed);
    write_run(run, 0.1 * seed);
    std::ifstream file(run / "summary.json");
    nlohmann::ordered_json summary = nlohmann::ordered_json::parse(file);
    summary["test"]["mse"] = 1e-6 * seed, summary["test"]["last_value"] = 0.5;
    if (seed < 3) summary["test"]["linear"] = 0.25;
    write(run / "summary.json", summary.dump());
    runs.push_back(read_experiment_run(run, "sine"));
  }
  const nlohmann::ordered_json info = final_info(runs)["sine"];
  EXPECT_DOUBLE_EQ(info["means"]["test_mse_mean"].get<double>(), 2e-6);
  EXPECT_NEAR(info["stderrs"]["test_mse_stderr"].get<double>(), 1e-6 / std::sqrt(3.0), 1e-12);
  EXPECT_EQ(info["final_info_dict"]["test_mse"], (std::vector<double>{1e-6, 2e-6, 3e-6}));
  EXPECT_EQ(info["final_info_dict"]["test_linear"].size(), 2u) << "of the runs that have it";
  EXPECT_EQ(info["means"]["test_last_value_mean"], 0.5);
  const std::string table = run_table(group_seeds(runs), 200);
  EXPECT_NE(table.find("test mse"), std::string::npos) << table;
  EXPECT_NE(table.find("2e-06 ± 5.8e-07"), std::string::npos) << table;
  EXPECT_DOUBLE_EQ(run_document(group_seeds(runs))["runs"][0]["test_mse"].get<double>(), 2e-6);
  ExperimentRun without = runs[0];
  without.test.clear(), without.folder = root / "other";
  EXPECT_EQ(run_table(group_seeds({without}), 200).find("test"), std::string::npos) << "other models have no such column";
}

TEST(Experiment, SmallLossesKeepTheirDigitsInAlignedColumns) {
  ExperimentRun a, b;
  a.folder = "a", a.final_train_loss = 4.3e-6, a.best_val_loss = 0.25;
  b.folder = "b", b.final_train_loss = 0.5, b.best_val_loss = 2.1e-7;
  const std::string table = run_table(group_seeds({a, b}), 200);
  EXPECT_NE(table.find("  4.30e-06         0.2500  "), std::string::npos) << table;
  EXPECT_NE(table.find("    0.5000       2.10e-07  "), std::string::npos) << table;
  b.folder = "a/seed_2", a.folder = "a/seed_1";
  EXPECT_NE(run_table(group_seeds({a, a}), 200).find("4.30e-06 ± 0.0000"), std::string::npos) << run_table(group_seeds({a, a}), 200);
}

TEST(Experiment, FinalInfoHasMeansAndErrors) {
  ExperimentRun a, b, c;
  a.dataset = b.dataset = "shakespeare_char", c.dataset = "enwik8";
  a.final_train_loss = 1, b.final_train_loss = 2, c.final_train_loss = 5;
  a.best_val_loss = 1.5, b.best_val_loss = 2.5;
  a.seconds = 10, b.seconds = 14, c.seconds = 20;
  const nlohmann::ordered_json info = final_info({a, c, b});
  ASSERT_EQ(info.size(), 2u);
  EXPECT_EQ(info.begin().key(), "shakespeare_char") << "in the order in which they come";
  const auto& first = info["shakespeare_char"];
  EXPECT_DOUBLE_EQ(first["means"]["final_train_loss_mean"], 1.5);
  EXPECT_DOUBLE_EQ(first["means"]["best_val_loss_mean"], 2);
  EXPECT_DOUBLE_EQ(first["means"]["total_train_time_mean"], 12);
  EXPECT_DOUBLE_EQ(first["stderrs"]["final_train_loss_stderr"], 0.5);
  EXPECT_EQ(first["final_info_dict"]["best_val_loss"], (std::vector<double>{1.5, 2.5}));
  EXPECT_FALSE(first["means"].contains("avg_inference_tokens_per_second_mean")) << "nothing was measured";
  EXPECT_EQ(info["enwik8"]["stderrs"]["total_train_time_stderr"], 0.0);
  EXPECT_FALSE(info["enwik8"]["means"].contains("best_val_loss_mean"));
  for (const auto& [name, dataset] : info.items()) EXPECT_TRUE(dataset["means"].is_object()) << name;
  EXPECT_EQ(final_info({}).dump(), "{}");
}

TEST(Experiment, ReadsARun) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  write_run(root / "run", 0);
  const ExperimentRun run = read_experiment_run(root / "run", "words");
  EXPECT_EQ(run.dataset, "words");
  EXPECT_EQ(run.end, "finished");
  EXPECT_EQ(run.steps, 40);
  EXPECT_EQ(run.train.size(), 40u);
  ASSERT_EQ(run.validation.size(), 4u);
  EXPECT_EQ(run.validation[1].first, 20);
  EXPECT_DOUBLE_EQ(run.validation[1].second, 1.5);
  EXPECT_DOUBLE_EQ(*run.best_val_loss, 1.3);
  EXPECT_DOUBLE_EQ(*run.tokens_s, 2048);
  EXPECT_EQ(run.device, "cpu");
}

TEST(Experiment, AnUnfinishedRunIsReadFromItsMetrics) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  write_run(root / "run", 0, 40, false);
  std::ofstream(root / "run" / "metrics.jsonl", std::ios::app) << "nonsense\n[1]\n{\"step\":41,\"loss\":null}\n{\"step\":42,\"lo";
  const ExperimentRun run = read_experiment_run(root / "run");
  EXPECT_EQ(run.end, "");
  EXPECT_EQ(run.steps, 41);
  EXPECT_EQ(run.train.size(), 40u);
  EXPECT_DOUBLE_EQ(*run.best_val_loss, 1.1 + 8.0 / 40);
  double sum = 0;
  for (int i = 1; i <= 40; ++i) sum += 1 + 8.0 / i;
  EXPECT_NEAR(*run.final_train_loss, sum / 40, 1e-9) << "the mean of up to 50 steps, as at the end";
  EXPECT_FALSE(run.seconds);
}

TEST(Experiment, RepeatedStepsReplaceEarlierOnes) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  write(root / "metrics.jsonl", "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":9}\n{\"step\":3,\"loss\":8}\n{\"step\":2,\"loss\":2}\n");
  EXPECT_EQ(read_experiment_run(root).train, (LossPoints{{1, 3}, {2, 2}}));
}

TEST(Experiment, RejectsOtherFolders) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  EXPECT_THROW(read_experiment_run(root), Error);
  EXPECT_THROW(read_experiment_run(root / "absent"), Error);
  EXPECT_TRUE(find_runs(root / "absent").empty());
}

// A truncated, overwritten or replaced summary affects neither the metrics nor other runs.
TEST(Experiment, ADamagedSummaryIsReportedAndMetricsAreUsed) {
  const test::TempFolder folder;
  const fs::path run = folder / "run";
  write_run(run, 0);
  for (const char* text :
       {"{", "", "[1]", "{\"end\": \"finished\", \"steps\": 1e999}", "{\"end\": \"\xff\"}", "{\"end\": \"finished\", \"steps\": \"x\"}", "{\"steps\": 1e30}"}) {
    SCOPED_TRACE(text);
    write(run / "summary.json", text);
    const ExperimentRun read = read_experiment_run(run);
    EXPECT_NE(read.damage.find((run / "summary.json").string()), std::string::npos) << read.damage;
    EXPECT_EQ(read.end, "");
    EXPECT_EQ(read.steps, 40);
    EXPECT_DOUBLE_EQ(*read.best_val_loss, 1.1 + 8.0 / 40);
    EXPECT_NE(run_table(group_seeds({read}), 200).find("damaged"), std::string::npos);
    EXPECT_EQ(run_document(group_seeds({read}))["runs"][0]["state"], "damaged");
  }
  write_run(run, 0);
  EXPECT_EQ(read_experiment_run(run).damage, "");
}

TEST(Experiment, SeedsOfOneRunBelongTogether) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  for (const char* run : {"run_0/words/seed_1", "run_0/words/seed_2", "run_0/text", "run_1/seed_1", "run_1/seed_2"}) write_run(root / run, 0.1);
  std::vector<ExperimentRun> runs;
  const std::vector<fs::path> found = find_runs(root);
  ASSERT_EQ(found.size(), 5u);
  for (const fs::path& path : found) runs.push_back(read_experiment_run(path));
  const std::vector<RunGroup> groups = group_seeds(runs);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].name, "text");
  EXPECT_EQ(groups[1].name, "words");
  EXPECT_EQ(groups[1].runs.size(), 2u);
  EXPECT_EQ(groups[2].name, "run_1");
  EXPECT_EQ(find_runs(root / "run_0" / "text").size(), 1u) << "a run is found when it is named itself";
}

TEST(Experiment, BandsAreMeansAndErrorsAtEachStep) {
  const std::vector<LossPoints> curves = {{{0, 4}, {10, 2}}, {{0, 6}, {5, 4}, {10, 4}}};
  const std::vector<BandPoint> band = band_of(curves);
  ASSERT_EQ(band.size(), 3u);
  EXPECT_DOUBLE_EQ(band[0].mean, 5);
  EXPECT_DOUBLE_EQ(band[0].error, 1);
  EXPECT_DOUBLE_EQ(band[1].mean, 3.5) << "3 between 4 and 2, and 4";
  EXPECT_DOUBLE_EQ(band[2].mean, 3);
  EXPECT_TRUE(band_of({}).empty());
  EXPECT_EQ(band_of(std::vector<LossPoints>{{{7, 1}}})[0].error, 0);
}

TEST(Experiment, ThinningKeepsTheMean) {
  LossPoints curve;
  double sum = 0;
  for (int64_t i = 1; i <= 3000; ++i) curve.emplace_back(i, std::sin(double(i))), sum += curve.back().second;
  const std::vector<BandPoint> band = band_of(std::span(&curve, 1), 300);
  ASSERT_EQ(band.size(), 300u);
  double thinned = 0;
  for (const BandPoint& p : band) thinned += 10 * p.mean;
  EXPECT_NEAR(thinned, sum, 1e-9);
  EXPECT_GE(band.front().step, 1);
  EXPECT_LE(band.back().step, 3000);
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
}

TEST(Experiment, PlotsHaveACurvePerRunAndABandForSeeds) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  for (int seed = 1; seed <= 3; ++seed) write_run(root / "wide" / ("seed_" + std::to_string(seed)), 0.1 * seed);
  write_run(root / "narrow", 0.5);
  write_loss_plots(root, {root / "wide/seed_1", root / "wide/seed_2", root / "wide/seed_3", root / "narrow"});
  for (const char* name : {"train_loss.svg", "val_loss.svg"}) {
    std::ifstream file(root / name);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_TRUE(text.starts_with("<svg"));
    EXPECT_TRUE(text.ends_with("</svg>\n"));
    EXPECT_EQ(count(text, "<path"), 3u) << name << ": two curves and one band";
    EXPECT_NE(text.find("wide: best"), std::string::npos);
    EXPECT_NE(text.find("narrow: best"), std::string::npos);
    EXPECT_EQ(text.find("nan"), std::string::npos);
  }
}

TEST(Experiment, PlotsHandleOddRuns) {
  const LossPanel panels[] = {{"none", {}},
                              {"empty", {{"a", {}}, {"b", {{}}}}},
                              {"one point", {{"a", {{{5, 1}}}}}},
                              {"flat", {{"a", {{{1, 0}, {2, 0}}}}}},
                              {"negative", {{"a", {{{1, -3}, {2, 2}}}}}},
                              {"around zero", {{"a", {{{1, -0.1}, {2, 2}}}}}},
                              {"huge", {{"a", {{{1, 1e300}, {int64_t(1) << 60, 1e-300}}}}}},
                              {"many", std::vector<PlotSeries>(30, {"x & <y>", {{{1, 2}, {9, 1}}}})}};
  const std::string text = loss_svg("odd", panels);
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(text.find("inf"), std::string::npos);
  EXPECT_EQ(text.find(">-0<"), std::string::npos) << "a tick at zero has no sign";
  EXPECT_NE(text.find("and 18 more"), std::string::npos);
}

// An agent's curves are over decisions; only evaluations have a best score.
TEST(Experiment, CurvesOfAgentsAreOverDecisions) {
  ExperimentRun run;
  run.folder = "agent", run.unit = "steps", run.units_per_step = 64, run.score = {"score", "", true};
  run.scores = {{10, 5}, {20, 9}, {30, 7}}, run.train_score = {{10, 4}, {20, 12}, {30, 6}}, run.train = {{10, 1}};
  const std::vector<RunGroup> groups = group_seeds({run});
  const std::vector<LossPanel> panels = score_panels(groups);
  ASSERT_EQ(panels.size(), 2u);
  for (const LossPanel& panel : panels) EXPECT_EQ(panel.series[0].curves[0].back().first, 30 * 64) << panel.title;
  const std::string text = loss_svg("agent", panels);
  EXPECT_NE(text.find(">decisions<"), std::string::npos);
  EXPECT_EQ(text.find(">step<"), std::string::npos);
  EXPECT_NE(text.find("agent: best 9.0000"), std::string::npos);
  EXPECT_NE(text.find("agent: last 6.0000"), std::string::npos);
  run.unit = "tokens";
  EXPECT_EQ(train_panel(group_seeds({run})).x_title, "step");
}

TEST(Experiment, TablesFitTheWidth) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  for (int seed = 1; seed <= 2; ++seed) write_run(root / "a_rather_long_name_of_a_run" / ("seed_" + std::to_string(seed)), 0.1 * seed);
  write_run(root / "b", 0, 40, false);
  std::vector<ExperimentRun> runs;
  for (const fs::path& path : find_runs(root)) runs.push_back(read_experiment_run(path));
  const std::vector<RunGroup> groups = group_seeds(runs);
  for (const int width : {40, 60, 80, 120, 200}) {
    const std::string table = run_table(groups, width);
    EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
    for (size_t begin = 0, end = 0; (end = table.find('\n', begin)) != std::string::npos; begin = end + 1)
      EXPECT_LE(display_width(table.substr(begin, end - begin)), width);
  }
  const std::string wide = run_table(groups, 200);
  EXPECT_NE(wide.find("1.4500 ± 0.0500"), std::string::npos) << wide;
  EXPECT_NE(wide.find("not ended"), std::string::npos) << wide;
  std::vector<ExperimentRun> twins = {groups[1].runs[0], groups[1].runs[0]};
  twins[0].folder = "20260101_120000_tiny_builtin", twins[0].dataset = twins[0].folder.string();
  twins[1].folder = "20260101_120000_tiny_other", twins[1].dataset = twins[1].folder.string();
  const std::string narrow = run_table(group_seeds(twins), 80);
  EXPECT_NE(narrow.find("tiny_b"), std::string::npos) << narrow;
  EXPECT_NE(narrow.find("tiny_o"), std::string::npos) << "rows that cannot be told apart\n" << narrow;
  std::vector<ExperimentRun> mixed = groups[0].runs;
  mixed[1].end = "interrupted";
  EXPECT_NE(run_table(group_seeds(mixed), 200).find("1/2 finished"), std::string::npos);
  EXPECT_NE(run_table(group_seeds(mixed), 200).find("seeds"), std::string::npos);
  EXPECT_EQ(run_table(group_seeds({mixed[0]}), 200).find("seeds"), std::string::npos) << "of one seed there is nothing to count";
  const nlohmann::ordered_json document = run_document(groups);
  EXPECT_EQ(document["runs"].size(), 2u);
  EXPECT_NEAR(document["runs"][0]["best_val_loss"], 1.45, 1e-12);
  EXPECT_NEAR(document["runs"][0]["best_val_loss_stderr"], 0.05, 1e-12);
}

}  // namespace
}  // namespace ridge
