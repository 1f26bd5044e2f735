// Stored results: several processes may write them, files go from one store to another, and damaged ones are refused as a whole.
#include "tune/tuned_choice.h"

#include <gtest/gtest.h>

#include "machine/expect_error.h"
#include "support/temp_folder.h"
#include "tune/size_choice.h"

namespace ridge {
namespace {

using test::TempFolder;

const TunedChoice kChoice{.words = {{"threads", "1"}, {"passes", "-place"}},
                          .what = "gpt",
                          .runner_up = "threads=1: 2 ms",
                          .planned_seconds = 0.003,
                          .seconds = 0.002,
                          .measured = 12,
                          .points = 80};

TEST(TunedChoices, TravelAsAFile) {
  TempFolder folder;
  MeasurementStore here({"here", "{}"}, folder / "a.db"), there({"there", "{}"}, folder / "b.db");
  {
    MeasurementStore other({"here", "{}"}, folder / "a.db");  // another process
    keep_choice(here, "tune/step/gpt/1", kChoice);
    keep_choice(other, "tune/step/gpt/2", {.what = "cfc", .planned_seconds = 1, .seconds = 1});
  }
  EXPECT_EQ(here.all(kTuneKeys).size(), 2u);
  EXPECT_EQ(import_choices(there, choices_json(here, {"here", "{}"}), "x.json"), 2);
  const std::optional<TunedChoice> got = kept_choice(there, "tune/step/gpt/1");
  ASSERT_TRUE(got);
  EXPECT_EQ(got->words, kChoice.words);
  EXPECT_TRUE(got->imported);
  EXPECT_NEAR(got->gain(), 1.5, 1e-12);
  EXPECT_NE(choices_text(there).find("passes=-place threads=1: 1.50 x as fast"), std::string::npos) << choices_text(there);
  EXPECT_EQ(there.forget(kTuneKeys), 2);
  EXPECT_NE(choices_text(there).find("nothing is tuned yet"), std::string::npos);
}

TEST(TunedChoices, RefuseDamagedFilesAsAWhole) {
  TempFolder folder;
  MeasurementStore store({"here", "{}"}, folder / "a.db");
  keep_choice(store, "tune/step/gpt/1", kChoice);
  const std::string good = choices_json(store, {"here", "{}"});
  store.forget();
  auto refused = [&](const std::string& from, const std::string& to, const std::string& what) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    const Error error = error_of([&] { import_choices(store, text, "my.json"); });
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_TRUE(mentions(error.what(), what)) << error.what();
    EXPECT_TRUE(store.all().empty());
  };
  refused("ridge_tune", "other", "my.json is not a file of tuned choices");
  refused("\"ridge_tune\": 1", "\"ridge_tune\": 9", "has format 9");
  refused("\"seconds\": 0.002", "\"seconds\": -1", "damaged at tune/step/gpt/1");
  refused("\"seconds\": 0.002", "\"sexonds\": 1", "damaged at tune/step/gpt/1");
  refused("-place", "-fuse\", \"speed\": \"9", "speed=9 is not known");
  refused("\"threads\": \"1\"", "\"threads\": \"0\"", "threads=0");
  refused("tune/step", "bench/step", "not the key");
  refused(good, good.substr(0, good.size() / 2), "my.json is not a file");
  store.put("tune/step/gpt/3", {.value = "{}", .samples = 1});
  EXPECT_FALSE(kept_choice(store, "tune/step/gpt/3"));
  EXPECT_NE(choices_text(store).find("damaged"), std::string::npos);
}

TEST(SizeChoice, TakesTheSmallestOfTheFastest) {
  // 98 % of the best is enough, 97 % is not; larger sizes do not fit.
  const std::map<int64_t, double> rates = {{1, 10}, {2, 19}, {4, 97}, {8, 99}, {16, 100}};
  int calls = 0;
  auto measure = [&](int64_t size) {
    ++calls;
    const auto at = rates.find(size);
    return at == rates.end() ? SizeMeasurement{.missing = "too large"} : SizeMeasurement{at->second, 1e-3 * double(size), size, {}};
  };
  const SizeCurve curve = choose_size(1, 2, measure);
  EXPECT_EQ(curve.points[curve.chosen].size, 8);
  EXPECT_EQ(curve.ended, "too large");
  EXPECT_EQ(curve.points.size(), 5u);
  EXPECT_EQ(curve.points[3].rates.size(), 3u) << "sizes near the fastest are measured again";
  EXPECT_EQ(curve.points[0].rates.size(), 1u);
  EXPECT_EQ(choose_size(1, 0.003, measure).ended, "a step of 4 takes 0.004 s");
  const SizeCurve flat = choose_size(1, 2, [](int64_t size) { return SizeMeasurement{5, 1e-3 * double(size), size, {}}; });
  EXPECT_EQ(flat.points[flat.chosen].size, 1);
  EXPECT_EQ(flat.points.size(), 3u);
  EXPECT_TRUE(mentions(error_of([&] { choose_size(32, 2, measure); }).what(), "not even a size of 32"));
}

}  // namespace
}  // namespace ridge
