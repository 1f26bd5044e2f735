#include "base/text.h"

#include <gtest/gtest.h>

#include <sstream>

namespace ridge {
namespace {

constexpr int64_t kMiB = int64_t(1) << 20, kGiB = int64_t(1) << 30;

TEST(SizeText, HasAtMostThreeDigits) {
  for (auto [bytes, text] : {std::pair{int64_t(0), "0 B"},
                             {1023, "1023 B"},
                             {1024, "1 KiB"},
                             {1536, "1.5 KiB"},
                             {kMiB - 1, "1 MiB"},
                             {32 * kMiB, "32 MiB"},
                             {int64_t(14.75 * double(kGiB)), "14.8 GiB"},
                             {int64_t(755.3 * double(kGiB)), "755 GiB"},
                             {-64 * kMiB, "-64 MiB"},
                             {1536 * kGiB, "1.5 TiB"}})
    EXPECT_EQ(size_text(bytes), text);
}

TEST(LowerCase, LeavesOtherBytesAlone) {
  EXPECT_EQ(lower_case("CUDA:1 Äx@[Z"), "cuda:1 Äx@[z");
  EXPECT_EQ(lower_case(""), "");
}

TEST(Wrap, KeepsToTheWidthAndLosesNothing) {
  const std::string text = "a bb ccc dddd — ee ffffff g µs × hh";
  for (int indent : {0, 3, 10})
    for (int width : {17, 20, 80}) {
      const std::string wrapped = wrap(text, width, indent);
      std::string joined, line;
      int number = 0;
      for (std::istringstream lines(wrapped); std::getline(lines, line); ++number) {
        EXPECT_LE(display_width(line) + (number == 0 ? indent : 0), width) << wrapped;
        const std::string words = number == 0 ? line : line.substr(size_t(indent));
        joined += (number == 0 ? "" : " ") + words;
      }
      EXPECT_EQ(joined, text);
    }
  EXPECT_EQ(wrap("", 10, 4), "");
  EXPECT_EQ(wrap("longerthanwidth", 5, 0), "longerthanwidth");  // a word is never cut
}

}  // namespace
}  // namespace ridge
