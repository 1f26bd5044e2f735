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

}  // namespace
}  // namespace ridge::test
