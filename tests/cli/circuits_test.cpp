// ridge train cfc, eval and sample as a user sees them: which task a run belongs to decides what these commands do.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/ridge_program.h"

namespace ridge::test {
namespace {

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
  expect_refusal(ridge, 2, "read in fp32", "eval run precision=bf16");
  expect_refusal(ridge, 2, "already contains a run", "train cfc data=sine length=12 steps=4 --out run");
  expect_refusal(ridge, 2, "finished", "train cfc --resume run");
  expect_words(ridge, 0, "test MSE", "train cfc --resume run steps=6");
}

TEST(CircuitCommands, ReportTablesAndMistakes) {
  const RidgeProgram ridge;
  write_text(ridge / "bad.csv", "a,b\n1,2\n1,x\n");
  expect_refusal(ridge, 4, "bad.csv:3: column 2 (b): 'x' is not a number", "train cfc data=bad.csv inputs=a,b");
  expect_refusal(ridge, 2, "'heads' is a key of gpt, not of cfc", "train cfc heads=2");
  expect_refusal(ridge, 2, "'cell' is a key of cfc, not of gpt", "train gpt cell=ltc");
  expect_refusal(ridge, 2, "did you mean 'cfc'", "train cfs");
}

}  // namespace
}  // namespace ridge::test
