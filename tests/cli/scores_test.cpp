// Runs of a user's program that are scored by something other than the loss, side by side.
#include <gtest/gtest.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "cli/ridge_program.h"

namespace ridge::test {
namespace {

TEST(Scores, AppearInTheTableAndThePicture) {
  const RidgeProgram ridge;
  std::filesystem::create_directories(ridge / "mine");
  write_text(ridge / "mine/metrics.jsonl",
             R"({"step":1,"loss":0.9,"scalars":{"accuracy":0.5}})"
             "\n"
             R"({"step":2,"val_loss":0.7,"best":true,"scalars":{"accuracy":0.91},"score":{"name":"accuracy","unit":"","higher_is_better":true,"value":0.91}})"
             "\n"
             R"({"step":3,"val_loss":0.6,"best":false,"scalars":{"accuracy":0.85},"score":{"name":"accuracy","unit":"","higher_is_better":true,"value":0.85}})"
             "\n");
  const Answer table = ridge({"report", "mine", "--svg", "mine.svg"});
  EXPECT_EQ(table.code, 0) << table.all();
  EXPECT_TRUE(table.says("best accuracy") && table.says("0.9100")) << table.all();
  const std::string picture = read_text(ridge / "mine.svg");
  for (const char* title : {"Training loss", "Validation loss", "Validation accuracy", "Training accuracy"})
    EXPECT_NE(picture.find(title), std::string::npos) << title;
  const auto row = nlohmann::json::parse(ridge({"report", "mine", "--json"}).out)["runs"][0];
  EXPECT_EQ(row["best_score"], 0.91);
  EXPECT_EQ(row["score"]["name"], "accuracy");
}

}  // namespace
}  // namespace ridge::test
