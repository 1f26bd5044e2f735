#include "base/nearest.h"

#include <gtest/gtest.h>

namespace ridge {
namespace {

TEST(Nearest, DistanceCountsEdits) {
  for (auto [a, b, d] : {std::tuple("", "", 0),
                         {"a", "", 1},
                         {"", "abc", 3},
                         {"bench", "bench", 0},
                         {"bnech", "bench", 1},
                         {"kitten", "sitting", 3},
                         {"ab", "ba", 1},
                         {"batchs", "batch", 1}}) {
    EXPECT_EQ(edit_distance(a, b), size_t(d)) << a << " " << b;
    EXPECT_EQ(edit_distance(b, a), size_t(d)) << b << " " << a;
  }
}

TEST(Nearest, PicksTheFirstOfEquallyNearNames) {
  const std::string_view names[] = {"bench", "batch", "demo"};
  EXPECT_EQ(nearest("bnech", names), "bench");
  EXPECT_EQ(nearest("bath", names), "batch");
  EXPECT_EQ(nearest("", names), "demo");
  EXPECT_EQ(nearest("x", {}), "");
  EXPECT_EQ(nearest_hint("bath", names), "did you mean 'batch'?");
  EXPECT_EQ(nearest_hint("quite different", names, "ridge --help lists all"), "ridge --help lists all");
  EXPECT_EQ(nearest_hint("quite different", names).find("valid: "), 0u) << "unrelated names are no suggestion";
  EXPECT_EQ(nearest_hint("x", {}), "there are none");
  EXPECT_EQ(nearest(std::string(10'000'000, 'd'), names), "demo");
}

TEST(Nearest, IgnoresCapitalsAndMissingEnds) {
  const std::string_view names[] = {"validation_interval", "val", "Data", "temperature"};
  EXPECT_EQ(close_hint("VALIDATION_INTERVAL", names), "did you mean 'validation_interval'?");
  EXPECT_EQ(close_hint("valid", names), "did you mean 'validation_interval'?");
  EXPECT_EQ(close_hint("temp", names), "did you mean 'temperature'?");
  EXPECT_EQ(close_hint("data", names), "did you mean 'Data'?");
  EXPECT_EQ(close_hint("te", names), "");
  const std::string_view keys[] = {"input_mapping", "inputs", "init_from"};
  EXPECT_EQ(close_hint("input", keys), "did you mean 'inputs'?") << "the shorter of two that begin alike";
}

}  // namespace
}  // namespace ridge
