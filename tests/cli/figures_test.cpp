// Figures on the command line: what they were measured with, and which are rejected.
#include <gtest/gtest.h>

#include <thread>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "cli/ridge_program.h"

namespace ridge::test {
namespace {

TEST(CommandLine, RejectsSettingsThatOverflow) {
  const RidgeProgram ridge;
  for (const char* command : {"plan", "train"}) {
    const Answer answer = ridge({command, "gpt", "preset=tiny", "optimize_perf=false", "steps=1000000000000", "batch=1000000000"});
    EXPECT_EQ(answer.code, 2) << answer.all();
    EXPECT_TRUE(answer.says("steps=1000000000000 x batch=1000000000")) << answer.all();
  }
}

// Independent of the cache.
TEST(CommandLine, PlansWithoutTuningIgnoreTheCache) {
  RidgeProgram ridge;
  ridge.set("RIDGE_CACHE", ridge / "cache");
  ridge.set("XDG_RUNTIME_DIR", ridge / ".home");  // the cores that other tests hold would change the number of threads
  auto plan = [&](const char* tuned) {
    const Answer answer = ridge({"plan", "gpt", "preset=tiny", "memory=1GiB", "--json", tuned});
    EXPECT_EQ(answer.code, 0) << answer.all();
    auto j = nlohmann::json::parse(answer.out, nullptr, false);
    for (const char* timed : {"compile_ms", "notices"}) j.erase(timed);
    return j;
  };
  const auto before = plan("optimize_perf=false");
  plan("optimize_perf=true");  // measures, and keeps the result
  const auto after = plan("optimize_perf=false");
  EXPECT_EQ(before["decisions"], after["decisions"]);
  for (const char* key : {"least_ms", "expected_ms", "flops", "kernels"})
    EXPECT_EQ(before.value(key, nlohmann::json()), after.value(key, nlohmann::json())) << key;
  for (const auto& d : after["decisions"]) EXPECT_NE(d["decided_by"], "measured") << d;
}

// More threads than processors add no information about the machine, and take long to measure.
TEST(CommandLine, MeasuresWithAvailableThreadsOnly) {
  RidgeProgram ridge;
  ridge.set("RIDGE_CACHE", ridge / "cache");
  const Answer answer = ridge({"plan", "gpt", "preset=tiny", "memory=1GiB", fmt::format("threads={}", std::thread::hardware_concurrency() + 62), "--json"});
  ASSERT_EQ(answer.code, 0) << answer.all();
  const std::string expected = nlohmann::json::parse(answer.out).at("expected_from");
  ASSERT_NE(expected.find(", with "), std::string::npos) << answer.out;
  EXPECT_LE(std::stoul(expected.substr(expected.find(", with ") + 7)), std::thread::hardware_concurrency()) << expected;
}

TEST(CommandLine, ProfilesATask) {
  const RidgeProgram ridge;
  write_plays(ridge);
  const std::string profile = "profile gpt" + kSmall + "data=plays.txt --steps 2 ";
  const Answer document = expect_words(ridge, 0, "\"unattributed_seconds\"", profile + "--json --trace trace.json");
  const auto json = nlohmann::json::parse(document.out);
  EXPECT_EQ(json.at("recorded_steps"), 2);
  EXPECT_GT(json.at("compute").at("kernel_seconds"), 0);
  EXPECT_FALSE(json.at("kinds").empty());
  EXPECT_TRUE(nlohmann::json::parse(read_text(ridge / "trace.json")).contains("traceEvents"));
  write_text(ridge / "before.json", document.out);
  const Answer text = expect_words(ridge, 0, "unattributed", profile + "--compare before.json --check min_tflops=1e-9 max_memory=1TiB");
  EXPECT_TRUE(text.says("the whole step") && text.says("kept") && !text.says("missed")) << text.all();
  expect_words(ridge, 1, "", profile + "--check min_tflops=1e9");
  expect_refusal(ridge, 2, "valid: min_tflops", "profile gpt --check min_flops=1");
  expect_refusal(ridge, 4, "this is not a profile", "profile gpt --compare trace.json");
  expect_refusal(ridge, 4, "create the folder first", "bench ops --filter ^matmul/512x512x512$ --save missing/rows.json");
  expect_refusal(ridge, 4, "create the folder first", "profile gpt" + kSmall + "data=none.txt --trace missing/step.json");  // before anything slow
}

TEST(CommandLine, ReportsTheKernelsOfProfiledRuns) {
  const RidgeProgram ridge;
  write_plays(ridge);
  expect_words(ridge, 0, "done", "train gpt" + kSmall + "data=plays.txt steps=55 profile=true eval_interval=none --out run");
  const Answer report = expect_words(ridge, 0, "Profile of run", "report run");
  size_t kernels = 0;
  for (const char* phase : {" %  forward ", " %  backward ", " %  update "})
    for (size_t at = report.out.find(phase); at != std::string::npos; at = report.out.find(phase, at + 1)) ++kernels;
  EXPECT_GE(kernels, 10u) << report.out;
  expect_words(ridge, 0, "done", "train gpt" + kSmall + "data=plays.txt steps=7 profile=true eval_interval=none --out short");
  EXPECT_GE(nlohmann::json::parse(test::read_text(ridge / "short/profile.json")).at("recorded_steps"), 1);
}

TEST(CommandLine, TunesAndStoresChoices) {
  RidgeProgram ridge;
  ridge.set("RIDGE_CACHE", ridge / "cache");
  expect_words(ridge, 0, "nothing is tuned yet", "tune show");
  const std::string tune = "tune cfc preset=sine length=8 units=6 backbone_units=6 batch=8 threads=1 ";
  const Answer found = expect_words(ridge, 0, "\"trials\"", tune + "--choices --json seconds=0.5");
  const auto json = nlohmann::json::parse(found.out);
  EXPECT_EQ(json.at("decision").at("decided_by"), "measured");
  EXPECT_GE(json.at("trials").size(), 2u);
  // One of whole steps, a summary of the kernels, and one of each hot kernel.
  ASSERT_GE(json.at("kernels").size(), 1u);
  const std::string stored = std::to_string(json.at("kernels").size() + 2) + " choices ";
  expect_words(ridge, 0, "kernel fused", "tune show");
  expect_words(ridge, 0, stored + "written", "tune export choices.json");
  expect_words(ridge, 0, stored + "forgotten", "tune clear");
  expect_words(ridge, 0, stored + "imported", "tune import choices.json");
  const auto proof = nlohmann::json::parse(expect_words(ridge, 0, "\"proof\"", tune + "--choices --proof --json seconds=0.5 over=recompute").out).at("proof");
  EXPECT_GE(proof.at("points"), 3);
  EXPECT_GE(proof.at("median_seconds"), proof.at("best_seconds"));
  expect_refusal(ridge, 2, "did you mean 'threads'?", tune + "over=thread");
  expect_refusal(ridge, 2, "over= names no choice", tune + "over=");
  expect_refusal(ridge, 2, "known: m1,", tune + "--as m9");
  // A guess for another machine knows nothing of this one: neither its time nor its threads nor what it has stored.
  const std::string guess = expect_words(ridge, 0, "\"measured\": false", tune + "--as m1-max --json seconds=0.5").out;
  ridge.set("RIDGE_CACHE", ridge / "other");
  EXPECT_EQ(expect_words(ridge, 0, "\"recommended\"", tune + "--as m1-max --json seconds=600 threads=2").out, guess);
}

}  // namespace
}  // namespace ridge::test
