// ridge train cfc, eval and sample as a user sees them: which task a run belongs to decides what these commands do.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include <nlohmann/json.hpp>

#include "cli/ridge_program.h"

namespace ridge::test {
namespace {

std::string rows_repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(CircuitCommands, TrainEvaluateAndForecast) {
  const RidgeProgram ridge;
  const Answer trained = expect_words(ridge, 0, "test MSE", "train cfc data=sine length=12 units=6 backbone_units=6 batch=8 steps=4 warmup=1 --out run");
  EXPECT_TRUE(trained.says("best possible 0") && trained.says("last value") && trained.says("linear")) << trained.all();
  EXPECT_TRUE(trained.says("preset sine") || trained.says("data")) << trained.all();
  const Answer evaluated = expect_words(ridge, 0, "\"mse\"", "eval run --json");
  const auto json = nlohmann::json::parse(evaluated.out);
  EXPECT_EQ(json["data"], "sine");
  EXPECT_GT(json["last_value"].get<double>(), json["linear"].get<double>());
  const Answer forecast = expect_words(ridge, 0, "step,time,free,value,value truth", "sample run --steps 9");
  EXPECT_EQ(std::count(forecast.out.begin(), forecast.out.end(), '\n'), 1 + 6 + 9) << "half of a sequence is seen";
  EXPECT_EQ(read_text(ridge / "run/forecast.svg").substr(0, 4), "<svg");
  expect_refusal(ridge, 2, "--split other", "eval run --split other");
  expect_refusal(ridge, 2, "--json is for models of the task gpt, and run is one of cfc; ridge sample run --help lists its options", "sample run --json");
  expect_refusal(ridge, 2, "--windows is for models of the task gpt", "eval run --windows=3");
  expect_refusal(ridge, 2, "read in fp32", "eval run precision=bf16");
  expect_refusal(ridge, 2, "already contains a run", "train cfc data=sine length=12 steps=4 --out run");
  const Answer finished = expect_refusal(ridge, 2, "finished", "train cfc --resume run");
  EXPECT_FALSE(finished.says("init_from")) << "a key that the task does not have: " << finished.all();
  expect_words(ridge, 0, "test MSE", "train cfc --resume run steps=6");
  expect_words(ridge, 0, "ridge train cfc --resume aimed target_loss=none",
               "train cfc data=sine length=12 units=6 backbone_units=6 batch=8 steps=4 warmup=1 eval_interval=2 target_loss=99 --out aimed");
  expect_refusal(ridge, 2, "set a lower one or target_loss=none", "train cfc --resume aimed");
  expect_words(ridge, 0, "all 4 steps done", "train cfc --resume aimed target_loss=none");
  std::filesystem::remove_all(ridge / "run/checkpoints");
  const Answer bare = expect_refusal(ridge, 2, "run was trained, but has no checkpoint to resume from; start a new run", "train cfc --resume run steps=9");
  EXPECT_FALSE(bare.says("init_from")) << bare.all();
}

// The commands of a summary can be pasted, and an experiment that was stopped continues as a whole.
TEST(CircuitCommands, SummariesSayHowToContinue) {
  const RidgeProgram ridge;
  const std::vector<std::string> small = {"train",   "cfc",      "data=sine",          "length=8", "units=4", "backbone_units=4",
                                          "batch=4", "warmup=0", "eval_interval=none", "tune=off"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), small.begin(), small.end());
    return more;
  };
  auto running = ridge.start(with({"seeds=3", "steps=100000000", "--out", "many"}));
  for (int i = 0; i < 1000 && running.printed().find("iter 1:") == std::string::npos; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  running.send(SIGINT);
  const Answer stopped = running.wait();
  EXPECT_EQ(stopped.code, 130) << stopped.all();
  EXPECT_NE(stopped.err.find("3 of 3 runs are left; ridge train cfc --resume many continues all of them"), std::string::npos) << stopped.all();
  const Answer spaced = expect_words(ridge, 0, "ridge eval 'my run'", with({"steps=2", "--out", "my run"}));
  EXPECT_TRUE(spaced.says("ridge sample 'my run'") && spaced.says("--resume 'my run' steps=4")) << spaced.all();
}

// What is really wrong comes first: the cell of a run, or the task that it is of, and not what follows from that.
TEST(CircuitCommands, ResumedWithAnotherCellOrTask) {
  const RidgeProgram ridge;
  expect_words(ridge, 0, "test MSE", "train cfc data=sine length=8 wiring=auto:8,1 batch=4 steps=2 warmup=1 --out run");
  expect_refusal(ridge, 2, "run was trained with cell=cfc, but cell=lstm was requested; leave it out, or start a new run",
                 "train cfc --resume run steps=4 cell=lstm");
  expect_refusal(ridge, 2, "run is a run of ridge train cfc, not of ridge train gpt; continue it with ridge train cfc --resume run",
                 "train gpt --resume run steps=4");
  expect_refusal(ridge, 2, "not of ridge train ppo", "train ppo --resume run");
  expect_words(ridge, 0, "test MSE", "train cfc --resume run steps=4 cell=cfc");
  expect_words(ridge, 0, "sine", "train cfc data=sine length=8 units=4 backbone_units=4 batch=4 steps=2 warmup=1 seeds=2 --out many");
  expect_refusal(ridge, 2, "many is a run of ridge train cfc", "train gpt --resume many");
}

// Times are those of the table; inputs that are not predicted are named, as is what happens to them.
TEST(CircuitCommands, ForecastsSayWhatTheyAssume) {
  const RidgeProgram ridge;
  std::string text = "when;\"temp\"\"in\";wind\n";
  for (int i = 0; i < 120; ++i) text += fmt::format("{}.3.2026 {:02}:30;{};{}\n", 1 + i / 24, i % 24, i % 7, i % 5 == 4 ? "" : fmt::format("{},5", i % 3));
  write_text(ridge / "t.csv", text);
  const std::string small = "window=8 units=4 backbone_units=4 batch=4 steps=2 warmup=1 time_column=when";
  expect_words(ridge, 0, "test MSE", "train cfc data=t.csv " + small + " targets=temp\"in --out run");
  const Answer held = expect_words(ridge, 0, "step,time,free,\"temp\"\"in\",\"temp\"\"in truth\"", "sample run --steps 6");
  EXPECT_TRUE(held.says("does not predict 1 of its inputs: wind; they keep their last values")) << held.all();
  EXPECT_TRUE(held.says("\n1,2026-03-05 07:30:00,0,") && held.says("\n5,2026-03-05 11:30:00,1,")) << held.all();
  EXPECT_NE(read_text(ridge / "run/forecast.svg").find("wind: last values"), std::string::npos);
  EXPECT_NE(read_text(ridge / "run/forecast.svg").find("2026-03-05 07:30:00"), std::string::npos);
  EXPECT_NE(read_text(ridge / "run/prediction.svg").find("2026-03-05 07:30:00"), std::string::npos);
  const Answer given = expect_words(ridge, 0, "step,time,free", "sample run --steps 6 --given");
  EXPECT_TRUE(given.says("they come from the table for 4 of the 6 steps")) << given.all();
  EXPECT_TRUE(held.says(",0\n")) << "a 0 of the table comes back as 0: " << held.all();
  EXPECT_NE(given.out, held.out) << "other inputs give another forecast";
}

TEST(CircuitCommands, ReportTablesAndMistakes) {
  const RidgeProgram ridge;
  write_text(ridge / "bad.csv", "a,b\n1,2\n1,x\n");
  expect_refusal(ridge, 4, "bad.csv:3: column 2 (b): 'x' is not a number", "train cfc data=bad.csv inputs=a,b");
  write_text(ridge / "worse.csv", "a,b\n1,2\n1,x\n1,3\n");
  expect_refusal(ridge, 4, "worse.csv:3: column 2 (b): 'x' is not a number, but 2 of the column's 3 values are", "train cfc data=worse.csv");
  write_text(ridge / "named.csv", "a,city\n" + rows_repeated("1,Rome\n2,Oslo\n", 20));
  expect_words(ridge, 0, "columns that are not numbers are left out: city ('Rome' in line 2)",
               "train cfc data=named.csv window=4 units=4 batch=2 steps=1 warmup=0");
  expect_refusal(ridge, 2, "'heads' is a key of gpt, not of cfc", "train cfc heads=2");
  expect_refusal(ridge, 2, "'cell' is a key of cfc, not of gpt", "train gpt cell=ltc");
  expect_refusal(ridge, 2, "did you mean 'cfc'", "train cfs");
  expect_refusal(ridge, 4, "did you mean 'xor'?", "train cfc data=xorr");
}

// Data named for a command is what that command reads; rows that a model was trained on are no test of it.
TEST(CircuitCommands, DataNamedLater) {
  const RidgeProgram ridge;
  std::string text = "a,b\n";
  for (int i = 0; i < 200; ++i) text += fmt::format("{},{}\n", i % 7, i % 5);
  write_text(ridge / "t.csv", text), write_text(ridge / "other.csv", text + "1,2\n");
  const std::string small = "window=8 units=4 backbone_units=4 batch=4 warmup=1 checkpoint_interval=1";
  expect_words(ridge, 0, "test MSE", "train cfc data=t.csv " + small + " steps=2 --out run");
  const Answer sampled = expect_words(ridge, 0, "step,time,free", "sample run data=t.csv");
  EXPECT_FALSE(sampled.says("has no effect")) << sampled.all();
  const auto sequences = [&](const std::string& more) { return nlohmann::json::parse(ridge({"eval", "run", "--json", more}).out).at("sequences").get<int>(); };
  const Answer same = expect_words(ridge, 0, "test MSE", "eval run data=t.csv");
  EXPECT_TRUE(same.says("t.csv is the table that the model was trained on")) << same.all();
  EXPECT_EQ(sequences("data=t.csv"), sequences("threads=1"));
  EXPECT_GT(sequences("data=other.csv"), sequences("threads=1")) << "of another table, every row is a test";
  const Answer other = expect_words(ridge, 0, " sequences of other.csv", "eval run data=other.csv");
  EXPECT_FALSE(other.says("test")) << "a user's own data is not the test part of a data set: " << other.all();
  expect_refusal(ridge, 2, "leave --split out", "eval run data=other.csv --split train");
  expect_words(ridge, 2, "was trained with window 8, but window 10 was requested: its errors so far are of other sequences",
               "train cfc --resume run steps=3 window=10");
  expect_words(ridge, 0, "test MSE", "train cfc --resume run steps=3 window=8");
}

}  // namespace
}  // namespace ridge::test
