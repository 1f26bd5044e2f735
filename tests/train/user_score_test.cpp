// A user's classifier that is scored by its accuracy: the best checkpoint, plots, samples, TensorBoard, seeds, devices and formats.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "machine/gpus.h"
#include "ridge/ridge.h"
#include "support/temp_folder.h"
#include "train/checkpoint.h"
#include "train/experiment.h"
#include "train/loss_plot.h"
#include "train/parts.h"
#include "train/run_state.h"

namespace ridge {
namespace {

using test::read_text;
using test::TempFolder;
using MetricsRow = nlohmann::json;

struct Classifier {
  Linear up{2, 12}, down{12, 2};
  Tensor operator()(const Tensor& x) const { return down(tanh(up(x))); }
  void visit(Visitor& v) { v("up", up)("down", down); }
};

// Whether a point is above a parabola.
Data bowl(int64_t n, uint64_t seed) {
  std::vector<float> x;
  std::vector<int64_t> t;
  for (int64_t i = 0; i < n; ++i) {
    const float a = 2 * uniform_from(random_word({seed, 1, 0}, uint64_t(i))) - 1, b = 2 * uniform_from(random_word({seed, 1, 1}, uint64_t(i))) - 1;
    x.insert(x.end(), {a, b}), t.push_back(b > 2 * a * a - 0.5f);
  }
  return {Tensor({n, 2}, x), Tensor({n}, std::span<const int64_t>(t))};
}

Step classify(Classifier& net) {
  return step(net, adamw({.lr = 2e-2}), [&net](Tensor x, Tensor t) {
    const Tensor y = net(x);
    return cross_entropy(y, t).with("accuracy", equal(argmax(y, -1), t));
  });
}

const Score kAccuracy{.name = "accuracy", .unit = {}, .higher_is_better = true};

TrainerArgs judged(std::string out, int64_t steps = 60) {
  return {.steps = steps, .batch = 32, .out = std::move(out), .validation_interval = 10, .checkpoint_interval = 20, .show = false, .score = kAccuracy};
}

std::vector<MetricsRow> rows_of(const std::string& folder) {
  std::vector<MetricsRow> rows;
  std::ifstream file(folder + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) rows.push_back(MetricsRow::parse(line));
  return rows;
}

double best_of(const std::vector<MetricsRow>& rows) {
  double best = 0;
  for (const MetricsRow& row : rows)
    if (row.contains("val_loss")) best = std::max(best, row["score"]["value"].get<double>());
  return best;
}

ErrorCode error_code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::internal;
}

TEST(UserScore, TheHighestAccuracyIsTheBest) {
  TempFolder folder;
  seed(1);
  Classifier net;
  std::vector<std::string> samples;
  TrainerArgs args = judged(folder / "run");
  args.tensorboard = true, args.sample_interval = 25;
  args.sample = [&] {
    samples.push_back("logit " + std::to_string(net(Tensor({1, 2}, {0, 1})).to_floats()[0]));
    return samples.back();
  };
  const TrainingResult r = Trainer(classify(net), bowl(600, 1), args, bowl(101, 2)).run();
  ASSERT_TRUE(r.finished() && r.best_score && r.score && r.best_val_loss && r.val_loss);
  EXPECT_GT(*r.best_score, 0.7);

  const std::vector<MetricsRow> rows = rows_of(folder / "run");
  EXPECT_TRUE(rows.front().at("scalars").contains("accuracy"));
  EXPECT_EQ(*r.best_score, best_of(rows));
  int64_t first_best = 0;
  for (const MetricsRow& row : rows)
    if (row.contains("val_loss") && row["score"]["value"] == *r.best_score && !first_best) first_best = row["step"];
  std::vector<std::string> notices;
  const auto best = CheckpointStore((folder / "run") + "/checkpoints").best(notices);
  ASSERT_TRUE(best);
  EXPECT_EQ(best->step, first_best);
  const RunState state = *newest_state(folder / "run");
  EXPECT_EQ(state.score, kAccuracy);
  EXPECT_EQ(state.best_score, r.best_score);
  EXPECT_EQ(state.final_score, r.score);

  const std::string picture = read_text((folder / "run") + "/score.svg");
  for (const char* text : {">accuracy<", "Validation accuracy", "Training accuracy"}) EXPECT_NE(picture.find(text), std::string::npos) << text;
  EXPECT_TRUE(std::filesystem::exists((folder / "run") + "/val_loss.svg"));
  const MetricsRow summary = MetricsRow::parse(read_text((folder / "run") + "/summary.json"));
  EXPECT_EQ(summary["best_score"], *r.best_score);
  EXPECT_EQ(summary["score"]["name"], "accuracy");
  const std::string log = read_text((folder / "run") + "/log.txt");
  EXPECT_NE(log.find("\nValidation loss at the best accuracy: "), std::string::npos) << log;
  EXPECT_EQ(log.find("Best validation loss"), std::string::npos) << log;
  EXPECT_NE(log.find(" at the best accuracy, step "), std::string::npos) << log;
  // The metrics alone say the same.
  const ExperimentRun ended = read_experiment_run(folder / "run");
  std::filesystem::rename(folder / "run/summary.json", folder / "summary.json");
  const ExperimentRun unfinished = read_experiment_run(folder / "run");
  std::filesystem::rename(folder / "summary.json", folder / "run/summary.json");
  EXPECT_EQ(unfinished.best_score, ended.best_score);
  EXPECT_NEAR(*unfinished.best_val_loss, *ended.best_val_loss, 1e-9);
  EXPECT_NEAR(*unfinished.final_train_loss, *ended.final_train_loss, 1e-6);
  EXPECT_EQ(unfinished.unit, "samples");

  ASSERT_EQ(samples.size(), 3u);  // at steps 25, 50 and 60
  EXPECT_NE(samples[0], samples[2]) << "of the weights as they are";
  std::string events;
  for (const auto& entry : std::filesystem::directory_iterator((folder / "run") + "/tensorboard")) events += read_text(entry.path().string());
  for (const char* tag : {"accuracy/train", "accuracy/validation", "loss/validation", "logit "}) EXPECT_NE(events.find(tag), std::string::npos) << tag;

  // The weights are loaded, and the result is known.
  Classifier again;
  const TrainingResult known = Trainer(classify(again), bowl(600, 1), judged(folder / "run"), bowl(101, 2)).run();
  EXPECT_EQ(known.best_score, r.best_score);
  EXPECT_EQ(again.up.weight.to_floats(), net.up.weight.to_floats());
}

TEST(UserScore, StopsAtItsTarget) {
  TempFolder folder;
  seed(1);
  Classifier net;
  TrainerArgs args = judged(folder / "run");
  args.target = 0.7;
  const TrainingResult r = Trainer(classify(net), bowl(600, 1), args, bowl(101, 2)).run();
  EXPECT_LT(r.steps, 60);
  EXPECT_GE(*r.score, 0.7);
  EXPECT_NE(r.reason.find("validation accuracy"), std::string::npos) << r.reason;
  EXPECT_EQ(Trainer(classify(net), bowl(600, 1), args, bowl(101, 2)).run().steps, r.steps);
}

TEST(UserScore, ChangingTheScoreResetsTheBest) {
  TempFolder folder;
  seed(1);
  Classifier net;
  Trainer(classify(net), bowl(600, 1), judged(folder / "run", 20), bowl(101, 2)).run();
  TrainerArgs by_loss = judged(folder / "run", 40);
  by_loss.score = {};
  const TrainingResult r = Trainer(classify(net), bowl(600, 1), by_loss, bowl(101, 2)).run();
  EXPECT_EQ(r.best_score, r.best_val_loss);
  const std::string state = to_json(*newest_state(folder / "run"));
  EXPECT_FALSE(MetricsRow::parse(state).contains("score")) << "as before there were scores: " << state;
  EXPECT_EQ(run_state_from(state, "state.json").best_score, r.best_val_loss);
}

TEST(UserScore, StartsAgainWithOtherValidationData) {
  TempFolder folder;
  seed(1);
  Classifier net;
  auto train = [&](int64_t steps, uint64_t data) { return Trainer(classify(net), bowl(600, 1), judged(folder / "run", steps), bowl(101, data)).run(); };
  train(20, 2);
  train(40, 2);
  EXPECT_EQ(read_text((folder / "run") + "/log.txt").find("other data"), std::string::npos);
  const TrainingResult r = train(50, 3);
  EXPECT_NE(read_text((folder / "run") + "/log.txt").find("validation is now on other data: the best accuracy so far"), std::string::npos);
  EXPECT_EQ(r.best_score, r.score) << "the only validation on these data";
}

TEST(UserScore, TheLastScoreIsThatOfTheLastValidation) {
  Classifier net;
  int calls = 0;
  TrainerArgs args{.steps = 20, .batch = 16, .validation_interval = 10, .show = false, .score = kAccuracy};
  args.validate = [&] { return calls++ ? NAN : 0.5; };
  const TrainingResult r = Trainer(classify(net), bowl(64, 1), args).run();
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(r.best_score, 0.5);
  EXPECT_FALSE(r.score) << *r.score;
}

// A validation that counts nothing has no loss, and reaches no target.
TEST(UserScore, AnEmptyValidationHasNoLoss) {
  Classifier net;
  const Step learn = step(
      net, adamw({.lr = 1e-2}), [&](Tensor x, Tensor t) { return cross_entropy(net(x), t); },
      [&](Tensor x, Tensor) {
        return Loss{sum(net(x)) * 0.0, sum(x) * 0.0};
      });
  TrainerArgs args{.steps = 4, .batch = 16, .validation_interval = 2, .show = false};
  args.target = 0.5;
  const TrainingResult r = Trainer(learn, bowl(64, 1), args, bowl(32, 2)).run();
  EXPECT_EQ(r.end, TrainingResult::End::finished) << r.reason;
  EXPECT_FALSE(r.best_score || r.val_loss);
}

TEST(UserScore, RejectsInvalidScores) {
  Classifier net;
  const auto trainer = [&](TrainerArgs args, Data validation = bowl(20, 2)) {
    return error_code_of([&] { Trainer(classify(net), bowl(64, 1), args, validation).run(); });
  };
  TrainerArgs args{.steps = 2, .batch = 16, .show = false, .score = kAccuracy};
  EXPECT_EQ(trainer(args, {}), ErrorCode::usage) << "there is nothing to judge";
  args.score.name = "acuracy";
  EXPECT_EQ(trainer(args), ErrorCode::usage);
  args = {.steps = 2, .batch = 16, .show = false};
  args.tensorboard = true;
  EXPECT_EQ(trainer(args), ErrorCode::usage) << "there is no folder";
  args = {.steps = 2, .batch = 16, .show = false};
  args.target = NAN;
  EXPECT_EQ(trainer(args), ErrorCode::value);
  args.target = 0.5;
  EXPECT_EQ(trainer(args, {}), ErrorCode::usage) << "nothing could reach it";
  for (int64_t TrainerArgs::*interval : {&TrainerArgs::validation_interval, &TrainerArgs::checkpoint_interval, &TrainerArgs::sample_interval}) {
    args = {.steps = 2, .batch = 16, .show = false};
    args.*interval = -1;
    EXPECT_EQ(trainer(args), ErrorCode::value);
  }
}

TEST(UserPrecision, AppliesToProducts) {
  TempFolder folder;
  Classifier net;
  const std::vector<BatchSpec> batch = {{{16, 2}}, {{16}, DType::i64}};
  auto report = [&](const char* precision) { return classify(net).compile(batch, {.precision = precision}).report(); };
  for (const char* precision : {"fp32", "bf16", "fp16"}) EXPECT_NE(report(precision).find(precision), std::string::npos);
  EXPECT_NE(report("auto").find("fp32"), std::string::npos) << "nothing is known that is faster";
  EXPECT_EQ(error_code_of([&] { report("tf32"); }), ErrorCode::unsupported);
  EXPECT_EQ(error_code_of([&] { report("fp23"); }), ErrorCode::usage);
  EXPECT_EQ(error_code_of([&] { classify(net).compile(batch, {.device = "gpuu"}); }), ErrorCode::usage);
  if (!is_available("cuda")) {
    EXPECT_EQ(error_code_of([&] { classify(net).compile(batch, {.device = "cuda"}); }), ErrorCode::unsupported);
    EXPECT_EQ(error_code_of([&] { Trainer(classify(net), bowl(64, 1), {.steps = 2, .show = false, .device = "cuda"}); }), ErrorCode::unsupported);
  }
  EXPECT_EQ(error_code_of([&] { Trainer(classify(net), bowl(64, 1), {.steps = 2, .show = false, .precision = "tf32"}); }), ErrorCode::unsupported);

  auto train = [&](int64_t steps, const char* precision) {
    TrainerArgs args = judged(folder / "run", steps);
    args.device = "cpu", args.precision = precision;
    Trainer(classify(net), bowl(100, 1), args, bowl(40, 2)).run();
    return newest_state(folder / "run")->choices.at("precision");
  };
  EXPECT_EQ(train(5, "bf16"), "bf16");
  EXPECT_EQ(MetricsRow::parse(read_text((folder / "run") + "/summary.json"))["precision"], "bf16");
  EXPECT_EQ(train(8, "auto"), "bf16") << "as the run so far";
  EXPECT_EQ(train(11, "fp32"), "fp32") << "as asked for";
}

TEST(UserScore, ARunIsFinishedByItsOwnScore) {
  TempFolder folder;
  auto finished = [&](const std::string& summary, double target) {
    test::write_text(folder / "summary.json", summary);
    return is_finished(folder / "", {}, 20, target);
  };
  const std::string accuracy =
      R"({"steps": 10, "final_val_loss": 0.3, "final_score": 0.8, "score": {"name": "accuracy", "unit": "", "higher_is_better": true}})";
  EXPECT_TRUE(finished(accuracy, 0.7));
  EXPECT_FALSE(finished(accuracy, 0.9));
  EXPECT_TRUE(finished(R"({"steps": 10, "final_val_loss": 0.3})", 0.4));
  EXPECT_FALSE(finished(R"({"steps": 10, "final_val_loss": 0.3})", 0.2));
  EXPECT_TRUE(finished(R"({"steps": 20, "final_val_loss": null})", 0.2)) << "all steps are done";
  EXPECT_FALSE(finished(R"({"steps": 10, "final_score": 0.8, "score": 1})", 0.7)) << "damaged";
  EXPECT_FALSE(finished("", 0.7));
}

TEST(UserExperiment, GoesOnAfterATargetWasReached) {
  TempFolder folder;
  const ExperimentResult r = experiment({.out = folder / "seeds", .seeds = 2, .show = false}, [&](uint64_t s, const std::string& to) {
    seed(s);
    Classifier net;
    TrainerArgs args = judged(to, 20);
    args.target = 0.1;
    return Trainer(classify(net), bowl(64, 1), args, bowl(40, 2)).run();
  });
  EXPECT_TRUE(r.finished);
  ASSERT_EQ(r.runs.size(), 2u);
  EXPECT_EQ(r.runs[0].end, TrainingResult::End::target);
}

TEST(UserExperiment, SummarizesItsSeeds) {
  TempFolder folder;
  const std::string out = folder / "seeds";
  int trained = 0;
  auto train = [&](uint64_t s, const std::string& to) {
    seed(s);
    Classifier net;
    TrainerArgs args = judged(to, 20);
    args.seed = s;
    ++trained;
    return Trainer(classify(net), bowl(300, 1), args, bowl(101, 2)).run();
  };
  const ExperimentResult r = experiment({.out = out, .seeds = 3, .first_seed = 5, .show = false}, train);
  ASSERT_TRUE(r.finished);
  ASSERT_EQ(r.runs.size(), 3u);
  double mean = 0;
  for (const TrainingResult& run : r.runs) mean += *run.best_score / 3;
  EXPECT_NEAR(r.best_score.mean, mean, 1e-12);
  EXPECT_EQ(r.best_score.count, 3);
  EXPECT_GT(r.best_score.error, 0);
  const MetricsRow info = MetricsRow::parse(read_text(out + "/final_info.json"));
  EXPECT_NEAR(info["seeds"]["means"]["best_accuracy_mean"].get<double>(), mean, 1e-9);
  EXPECT_EQ(info["seeds"]["final_info_dict"]["best_accuracy"].size(), 3u);
  EXPECT_TRUE(std::filesystem::exists(out + "/seed_7/summary.json"));
  EXPECT_NE(read_text(out + "/score.svg").find("(3 runs)"), std::string::npos);
  // Once more: all runs are already complete.
  EXPECT_NEAR(experiment({.out = out, .seeds = 3, .first_seed = 5, .show = false}, train).best_score.mean, mean, 1e-12);

  trained = 0;
  const ExperimentResult stopped = experiment({.out = folder / "stopped", .seeds = 3, .show = false}, [&](uint64_t s, const std::string& to) {
    TrainingResult result = train(s, to);
    if (s == 2) result.end = TrainingResult::End::interrupted;
    return result;
  });
  EXPECT_FALSE(stopped.finished);
  EXPECT_EQ(trained, 2);
  EXPECT_EQ(error_code_of([&] { experiment({.out = ""}, train); }), ErrorCode::usage);
  EXPECT_EQ(error_code_of([&] { experiment({.out = out, .seeds = 0}, train); }), ErrorCode::usage);
}

TEST(ScorePlot, ShowsTheHighestAndNoLogarithms) {
  const PlotSeries series{"run", {{{1, 0.1}, {2, 0.9}, {3, 0.8}}}};
  const std::string lower = loss_svg("title", std::vector<LossPanel>{{"Losses", {series}}});
  const std::string higher = loss_svg("title", std::vector<LossPanel>{{"Accuracies", {series}, {"accuracy", "%", true}}});
  EXPECT_NE(lower.find("loss (log scale)"), std::string::npos);
  EXPECT_NE(lower.find("best 0.1000"), std::string::npos);
  EXPECT_NE(higher.find(">accuracy [%]<"), std::string::npos);
  EXPECT_NE(higher.find("best 0.9000"), std::string::npos);
}

TEST(Devices, ReportAvailability) {
  EXPECT_TRUE(is_available("cpu"));
  EXPECT_TRUE(is_available("auto"));
  EXPECT_TRUE(is_available(Device{}));
  EXPECT_FALSE(is_available("cuda:1023"));
  EXPECT_EQ(error_code_of([] { (void)is_available("gpuu"); }), ErrorCode::usage);
  const bool cuda = error_code_of([] { (void)select_device("cuda", Fallback::forbid); }) == ErrorCode::internal;
  EXPECT_EQ(is_available("cuda"), cuda) << "as select_device() has it";
}

}  // namespace
}  // namespace ridge
