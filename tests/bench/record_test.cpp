#include "bench/record.h"

#include <gtest/gtest.h>

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"

namespace ridge::bench {
namespace {

// Normal numbers, a function of stream and index.
double normal(uint32_t stream, uint64_t index) {
  double sum = 0;
  for (uint64_t i = 0; i < 12; ++i) sum += uniform_from(random_word({7, 0, stream}, 12 * index + i));
  return sum - 6;
}

TEST(Statistics, MedianIntervalIsTheKnownPairOfOrderStatistics) {
  auto interval = [](int n) {
    std::vector<double> values;
    for (int i = n; i > 0; --i) values.push_back(i);
    return median_interval(values);
  };
  // Tables of the sign test at 95 %: n = 6: 1st and 6th, 9: 2nd and 8th, 20: 6th and 15th, 100: 40th and 61st.
  EXPECT_EQ(interval(5).low, 1);
  EXPECT_EQ(interval(5).high, 5);
  EXPECT_EQ(interval(6).low, 1);
  EXPECT_EQ(interval(6).high, 6);
  EXPECT_EQ(interval(9).low, 2);
  EXPECT_EQ(interval(9).high, 8);
  EXPECT_EQ(interval(20).low, 6);
  EXPECT_EQ(interval(20).high, 15);
  EXPECT_EQ(interval(100).low, 40);
  EXPECT_EQ(interval(100).high, 61);
  EXPECT_EQ(interval(1).low, 1);
  EXPECT_EQ(interval(1).high, 1);
  EXPECT_NEAR(interval(10000).low, 5000 - 98, 2);  // the normal approximation
  EXPECT_EQ(median_interval({}).low, 0);
}

TEST(Statistics, SummaryCountsOutliersAndKeepsThem) {
  const Summary s = summary_of({10, 11, 12, 13, 14, 100});
  EXPECT_EQ(s.min, 10);
  EXPECT_EQ(s.max, 100);
  EXPECT_EQ(s.median, 12.5);
  EXPECT_EQ(s.samples, 6);
  EXPECT_EQ(s.outliers, 1);
  EXPECT_NEAR(s.spread, 2.5 / 12.5, 1e-12);
  EXPECT_EQ(summary_of({5, 5, 5, 5, 5}).outliers, 0);
  EXPECT_EQ(summary_of({}).samples, 0);
}

TEST(Statistics, StudentsQuantilesMatchTables) {
  EXPECT_NEAR(t_quantile(0.975, 4), 2.7764, 1e-3);
  EXPECT_NEAR(t_quantile(0.975, 8), 2.3060, 1e-3);
  EXPECT_NEAR(t_quantile(0.9995, 10), 4.5869, 1e-3);
  EXPECT_NEAR(t_quantile(0.975, 1), 12.706, 1e-2);
  EXPECT_NEAR(t_quantile(0.975, 1e9), 1.95996, 1e-4);
  EXPECT_NEAR(t_quantile(0.025, 8), -2.3060, 1e-3);
}

// Figures of processes that vary by `rounds` around a level that itself varies by kBetweenRuns from run to run.
std::vector<double> run_of(uint32_t stream, int n, double rounds, double level = 1) {
  std::vector<double> times;
  const double shift = kBetweenRuns * normal(stream, 1000);
  for (int i = 0; i < n; ++i) times.push_back(level * std::exp(shift + rounds * normal(stream, uint64_t(i))));
  return times;
}

// Both errors of the test, on noise of known size: a false verdict in at most 5 % of all comparisons, and a slowdown of 5 % is found.
TEST(Statistics, ComparisonsKeepTheirErrors) {
  for (double noise : {0.0, 0.003, 0.01, 0.03}) {
    int wrong = 0, found = 0;
    constexpr int kTrials = 1200;
    for (uint32_t trial = 0; trial < kTrials; ++trial) {
      const std::vector<double> a = run_of(2 * trial, 5, noise), b = run_of(2 * trial + 1, 5, noise), slow = run_of(2 * trial + 1, 5, noise, 1.05);
      wrong += compare_times(a, b, 0.95).verdict != Change::same;
      found += compare_times(a, slow, 0.95).verdict == Change::slower;
    }
    EXPECT_LE(wrong, kTrials / 20 + 30) << noise;  // at most 60 expected; four standard deviations more
    if (noise <= 0.003) {
      EXPECT_GE(found, kTrials * 9 / 10) << noise;
    }
  }
}

TEST(Statistics, ComparisonsSayHowMuchTheyCanSee) {
  const std::vector<double> a = {100, 101, 99, 100, 100}, b = {105, 106, 104, 105, 105}, one = {105};
  EXPECT_EQ(compare_times(a, b, 0.95).verdict, Change::slower);
  EXPECT_EQ(compare_times(b, a, 0.95).verdict, Change::faster);
  EXPECT_NEAR(compare_times(a, b, 0.95).ratio, 1.05, 1e-9);
  const Comparison c = compare_times(a, a, 0.95);
  EXPECT_EQ(c.verdict, Change::same);
  EXPECT_NEAR(c.ratio, 1, 1e-12);
  EXPECT_GE(c.resolution(), 1.96 * std::sqrt(2.0) * kBetweenRuns) << "runs differ, however well their rounds agree";
  EXPECT_LT(c.resolution(), 0.05);
  EXPECT_EQ(compare_times(one, std::vector<double>{1000}, 0.95).verdict, Change::same) << "two figures say nothing about their spread";
  EXPECT_EQ(compare_times(a, one, 0.95).verdict, Change::slower);
  EXPECT_LT(compare_times(a, b, 0.9).resolution(), compare_times(a, b, 0.999).resolution());
}

std::string line_of(const std::string& name, double us, double roof = 0.5) {
  return fmt::format(
      R"({{"suite":"ops","name":"{}","dtype":"f32","device":"cpu","threads":1,"state":"hot","gflops":8,"roof":{},"others":0,"ghz":3,"load":1,"times_us":[{},{},{}]}})",
      name, roof, us, us * 1.001, us * 0.999);
}

Record record_of(std::vector<std::pair<double, double>> figures) {  // time and roof of each process
  Record r{.suite = "ops", .build = "b", .machine = "m", .date = "d", .rows = {}};
  for (auto [us, roof] : figures) r.add(line_of("x|y", us, roof));
  return r;
}

TEST(BenchRecord, FilesReturnEverything) {
  Record r = record_of({{100, 0.5}, {102, 0.49}});
  r.add(R"({"suite":"ops","name":"ceiling/copy"})");
  ASSERT_EQ(r.rows.size(), 1u) << "a line without samples is not a row";
  const Record again = Record::parse(r.to_json(), "f");
  EXPECT_EQ(again.to_json(), r.to_json());
  EXPECT_EQ(again.rows[0].key, "x|y f32 hot cpu threads 1");
  ASSERT_EQ(again.rows[0].rounds.size(), 2u);
  EXPECT_EQ(again.rows[0].rounds[1].times_us, (std::vector<double>{102, 102 * 1.001, 102 * 0.999}));
  const TextTable table = table_of(again);
  EXPECT_NE(table.markdown().find("| x\\|y f32"), std::string::npos);
  EXPECT_NE(table.plain().find("101.0"), std::string::npos) << table.plain();
  EXPECT_EQ((TextTable{{"a"}, {{"say \"x\", y"}}}.csv()), "a\n\"say \"\"x\"\", y\"\n");
}

TEST(BenchRecord, RefusesBadFiles) {
  auto says = [](const std::string& text, const char* words) {
    try {
      Record::parse(text, "the file");
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("--save"), std::string::npos) << e.what();
    }
  };
  says("", "is not a file of measurements");
  says("[1, 2]", "is not a file of measurements");
  says(R"({"ridge_bench": 99})", "format 99");
  says(R"({"ridge_bench": 1})", "is damaged");
  std::string text = record_of({{100, 0.5}}).to_json();
  says(text.substr(0, text.size() / 2), "is not a file of measurements");
  text.replace(text.find("\"times_us\":[") + 12, 5, "-1.00");
  text.replace(text.find("\"rounds\": [") + 11, text.npos, "]}]}");
  says(text, "has no rounds");
}

TEST(BenchRecord, ARegressionNeedsTimeAndRoof) {
  const Record before = record_of({{100, 0.5}, {100.2, 0.5}, {99.9, 0.5}, {100.1, 0.5}, {100, 0.5}});
  // 8 % slower, and a smaller share of the ceiling.
  RecordComparison c = compare_records(before, record_of({{108, 0.463}, {108.1, 0.463}, {107.9, 0.463}, {108, 0.463}, {108, 0.463}}));
  ASSERT_EQ(c.rows.size(), 1u);
  EXPECT_EQ(c.count(Change::slower), 1);
  EXPECT_NE(c.sentence().find("1 of 1 rows slower"), std::string::npos) << c.sentence();
  // The machine itself is 8 % slower.
  c = compare_records(before, record_of({{108, 0.5}, {108.1, 0.5}, {107.9, 0.5}, {108, 0.5}, {108, 0.5}}));
  EXPECT_EQ(c.count(Change::same), 1);
  c = compare_records(before, record_of({{92, 0.543}, {92, 0.543}, {92.1, 0.543}, {91.9, 0.543}, {92, 0.543}}));
  EXPECT_EQ(c.count(Change::faster), 1);
  Record other = record_of({{1, 0.5}});
  other.rows[0].key = "other";
  EXPECT_THROW(compare_records(before, other), Error);
}

}  // namespace
}  // namespace ridge::bench
