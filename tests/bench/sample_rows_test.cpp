// Sampling rows: consistent figures, and an error that names the rows if a filter matches nothing.
#include "bench/sample_rows.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace ridge::bench {
namespace {

config::Resolved small(unsigned task, const std::vector<std::string>& defaults) {
  config::Sources sources;
  sources.task = task, sources.assumed = defaults;
  sources.working_folder.reset();
  sources.words = {"layers=1", "heads=2", "width=32", "block=64"};
  return config::resolve(sources);
}

TEST(SampleRows, ReportTheTimeOfAToken) {
  int rows = 0;
  run_sample({.threads = 1, .seconds = 0, .filter = "bf16"}, small, [&](const SampleResult& r) {
    ++rows;
    EXPECT_EQ(r.precision, "bf16");
    EXPECT_GE(r.samples, 3);
    EXPECT_NEAR(r.tokens_s * r.us, 1e6, 1);
    EXPECT_GT(r.roof, 0);
    EXPECT_GT(r.end_ratio, 0);
    // One layer's matrices and the embedding in two bytes, one row of positions, three norms in four.
    EXPECT_EQ(r.bytes, 2 * (12 * 32 * 32 + 65 * 32 + 32) + 4 * 3 * 32);
    const auto json = nlohmann::json::parse(to_json(r));
    EXPECT_EQ(json["suite"], "sample");
    EXPECT_EQ(json["name"], "sample/shakespeare-char");
    EXPECT_EQ(json["device"], "cpu");
    EXPECT_EQ(json["kv_precision"], "bf16");
  });
  EXPECT_EQ(rows, 1);
}

TEST(SampleRows, AreListedWhenNoneMatches) {
  try {
    run_sample({.threads = 1, .filter = "none"}, small, [](const SampleResult&) {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_NE(std::string(e.what()).find("sample/shakespeare-char fp16"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace ridge::bench
