// ridge probe and ridge doctor: wrong arguments are an error, found before time is spent; problems with the machine are findings.
#include <gtest/gtest.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "cli/ridge_program.h"

namespace ridge::test {
namespace {

bool is_picture(const std::string& path) { return read_text(path).find("</svg>") != std::string::npos; }

TEST(MachineCommands, RejectBadArgumentsImmediately) {
  const RidgeProgram ridge;
  expect_words(ridge, 2, "did you mean 'min_tflops'", "probe min_tflop=3");
  expect_words(ridge, 4, "there is no folder none", "probe --svg none/roof.svg");
  expect_words(ridge, 2, "did you mean 'device'", "doctor devise=cpu");
  expect_words(ridge, 4, "there is no folder none", "doctor --svg none/machine.svg");
}

// The probe runs first: the doctor reuses its figures instead of measuring again.
TEST(MachineCommands, MeasureAndCompareWithTargets) {
  RidgeProgram ridge;
  const Answer missed = ridge({"probe", "--quick", "--check", "threads=1", "min_tflops=100000", "--svg", "roof.svg"});
  EXPECT_EQ(missed.code, 1) << missed.all();
  EXPECT_NE(missed.out.find("missed"), std::string::npos) << missed.all();
  EXPECT_TRUE(is_picture(ridge / "roof.svg"));

  expect_words(ridge, 0, "Ridge would use", "doctor");
  const Answer document = expect_words(ridge, 0, "", "doctor --json device=cuda --svg machine.svg");
  const auto report = nlohmann::json::parse(document.out, nullptr, false);
  ASSERT_TRUE(report.is_object()) << document.all();
  EXPECT_EQ(report.at("can_run"), true);
  EXPECT_TRUE(is_picture(ridge / "machine.svg"));
  const Answer forbidden = ridge({"doctor", "device=mps", "no_fallback=true"});
  EXPECT_EQ(forbidden.code, 1) << forbidden.all();
  EXPECT_NE(forbidden.out.find("fallbacks are forbidden"), std::string::npos) << forbidden.all();
  write_text(ridge / "train.yaml", "batc: 8\n");
  const Answer configured = ridge({"doctor"});
  EXPECT_EQ(configured.code, 2) << configured.all();
  EXPECT_NE(configured.out.find("train.yaml:1"), std::string::npos) << configured.all();

  // Other programs' environment variables matter only if they decide something.
  std::filesystem::remove(ridge / "train.yaml");
  ridge.set("OMP_NUM_THREADS", "foo");
  ridge.set("OPTIMIZE_PERF", "foo");
  ridge.set("RIDGE_THREADS", "1");
  ridge.set("RIDGE_OPTIMIZE_PERF", "false");
  expect_words(ridge, 0, "Ridge would use", "doctor");
}

}  // namespace
}  // namespace ridge::test
