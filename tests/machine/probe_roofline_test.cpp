#include "profile/roofline.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "support/patterns.h"

namespace ridge {
namespace {

Roofline example_roofline() {
  return {.title = "Roofline of <a CPU>",
          .subtitle = "2 threads",
          .slopes = {{"L1", 900}, {"L2", 400}, {"L3", 170}, {"memory", 50}},
          .flats = {{"f32", 230}, {"bf16", 460}, {"f16 widened", 200, false}, {"f64", 115}},
          .facts = {"memory: copy 50 GB/s"}};
}

int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++n;
  return n;
}

TEST(Roofline, ContainsItsNumbers) {
  const std::string svg = to_svg(example_roofline());
  for (const char* text : {"Roofline of &lt;a CPU&gt;", "memory 50.0 GB/s", "L1 900 GB/s", "230 GFLOP/s", "460 GFLOP/s", "ridge at 4.6 flops per byte"})
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  EXPECT_EQ(count(svg, "<circle"), 4);  // one ridge point per level
}

TEST(Roofline, StaysInsideThePicture) {
  const test::Pattern place(" [xyc12]+=\"([-0-9.]+)\"");
  for (double rate : {1e-2, 1.0, 230.0, 1e6})
    for (double bandwidth : {1e-1, 50.0, 1e5}) {
      Roofline r = example_roofline();
      for (auto& flat : r.flats) flat.gflops *= rate / 230;
      for (auto& slope : r.slopes) slope.gbs *= bandwidth / 50;
      r.dots = {{"a kernel", 3, rate / 2}, {"another", 0.01, bandwidth * 0.01}};
      const std::string svg = to_svg(r);
      for (const std::string& found : place.all_in(svg)) {
        EXPECT_GE(std::stod(found), 0) << found << " at " << rate << " and " << bandwidth;
        EXPECT_LE(std::stod(found), 1080) << found << " at " << rate << " and " << bandwidth;
      }
    }
}

TEST(Roofline, UsesTheMostThreads) {
  MachineCeilings c;
  c.rates = {{DType::f32, 1, {.median = 100}}, {DType::f32, 2, {.median = 200}}, {DType::f16, 2, {.median = 150, .variant = "widened to f32"}}};
  c.bandwidths = {{"L1", Movement::copy, 2, 0, {.median = 300}},
                  {"L1", Movement::read, 2, 0, {.median = 500}},
                  {"memory", Movement::copy, 1, 0, {.median = 30}},
                  {"memory", Movement::copy, 2, 0, {.median = 50}}};
  c.fork_joins = {{1, {.median = 0.1}}, {2, {.median = 0.4}}};
  const Roofline r = roofline_of(c, "t", "s");
  ASSERT_EQ(r.slopes.size(), 2u);
  EXPECT_EQ(r.slopes[0].gbs, 500);
  EXPECT_EQ(r.slopes[1].gbs, 50);
  ASSERT_EQ(r.flats.size(), 2u);
  EXPECT_EQ(r.flats[0].gflops, 200);
  EXPECT_TRUE(r.flats[0].native);
  EXPECT_FALSE(r.flats[1].native);
  ASSERT_EQ(r.facts.size(), 2u);
  EXPECT_EQ(r.facts[1], "fork and join of 2 threads 0.40 µs");
  c.fork_joins[1].us.median = 1972;
  EXPECT_EQ(roofline_of(c, "t", "s").facts[1], "fork and join of 2 threads 1972 µs");
  EXPECT_DOUBLE_EQ(ridge_point(200, 50), 4);
}

TEST(Roofline, RejectsInvalidNumbers) {
  EXPECT_THROW(to_svg(Roofline{}), Error);
  Roofline r = example_roofline();
  r.slopes[1].gbs = 0;
  EXPECT_THROW(to_svg(r), Error);
  r = example_roofline();
  r.flats[0].gflops = std::nan("");
  EXPECT_THROW(to_svg(r), Error);
  r = example_roofline();
  r.dots = {{"x", 0, 1}};
  EXPECT_THROW(to_svg(r), Error);
}

}  // namespace
}  // namespace ridge
