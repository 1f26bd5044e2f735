#include "base/text.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>
#include <vector>

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
  EXPECT_EQ(wrap("longerthanwidth", 5, 0), "longerthanwidth");  // words are never split
}

TEST(DisplayWidth, CountsColumnsNotBytesOrLetters) {
  EXPECT_EQ(display_width("µs × 3 …"), 8);
  EXPECT_EQ(display_width("漢字"), 4);
  EXPECT_EQ(display_width("e\u0301"), 1);  // a letter and its accent
  EXPECT_EQ(display_width("🙂"), 2);
  EXPECT_EQ(display_width("\xff\xfe"), 2);  // invalid UTF-8: one column per byte
}

TEST(Cut, NeverExceedsTheWidthOrSplitsACharacter) {
  const std::string text = "a漢b字cé🙂d\u0301e";
  for (int width = 0; width < 14; ++width) {
    const std::string shorter = cut(text, width);
    EXPECT_LE(display_width(shorter), width);
    EXPECT_EQ(shorter.find("\xef\xbf\xbd"), std::string::npos);
    EXPECT_EQ(printable(shorter), shorter);  // whole letters only
    if (width >= display_width(text)) {
      EXPECT_EQ(shorter, text);
    }
  }
  EXPECT_EQ(cut("abcdef", 4), "abc…");
}

TEST(Printable, RemovesTerminalControlSequences) {
  std::string all;
  for (int c = 0; c < 256; ++c) all += char(c);
  for (const std::string& bad : {all, std::string("\u0080\u009b31m\u202e\u2066"), std::string("\033[2J\007\r")}) {
    const std::string safe = printable(bad);
    for (size_t at = 0; at < safe.size(); ++at) {
      const auto c = uint8_t(safe[at]);
      EXPECT_TRUE(c >= 0x20 || c == '\n') << int(c);
      EXPECT_NE(c, 0x7f);
      if (c == 0xc2 && at + 1 < safe.size()) {
        EXPECT_GE(uint8_t(safe[at + 1]), 0xa0);  // no Latin-1 control characters
      }
    }
    EXPECT_EQ(safe.find("\u202e"), std::string::npos);
    EXPECT_EQ(printable(safe), safe);
  }
  EXPECT_EQ(printable("Öl 漢字\n🙂"), "Öl 漢字\n🙂");
}

TEST(ShellWord, IsQuotedOnlyIfItHasTo) {
  EXPECT_EQ(shell_word("runs/a-1_b.csv"), "runs/a-1_b.csv");
  EXPECT_EQ(shell_word("my run"), "'my run'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(Sparkline, ScalesFromLowestToHighest) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(sparkline(std::vector<double>{3, 1, 2}), "█▁▄");
  EXPECT_EQ(sparkline(std::vector<double>{5, 5}), "▁▁");
  EXPECT_EQ(sparkline(std::vector<double>{1, nan, 2}), "▁ █");
  EXPECT_EQ(sparkline(std::vector<double>{}), "");
  EXPECT_EQ(sparkline(std::vector<double>{0, 2, 8, 10}, 2), "▁█");  // means of neighbours
  for (int most : {0, 1, 5, 7, 100}) EXPECT_EQ(display_width(sparkline(std::vector<double>(33, 1.5), most)), std::min(most, 33));
}

TEST(Listed, CountsWhatDoesNotFit) {
  EXPECT_EQ(listed(std::vector<std::string>{}), "");
  EXPECT_EQ(listed(std::vector<std::string>{"a", "b"}), "a, b");
  EXPECT_EQ(listed(std::vector<std::string>{"abc", "def", "ghi"}, 8), "abc, def and 1 more");
  EXPECT_EQ(listed(std::vector<std::string>{"abc", "def", "ghi"}, 13), "abc, def, ghi");
  EXPECT_EQ(listed(std::vector<std::string>{"abcdefgh", "i"}, 4), "abc… and 1 more");
}

TEST(FigureText, KeepsThreeDigitsOfASmallLoss) {
  EXPECT_EQ(figure_text(2.34561), "2.3456");
  EXPECT_EQ(figure_text(0), "0.0000");
  EXPECT_EQ(figure_text(0.01), "0.0100");
  EXPECT_EQ(figure_text(0.004321), "0.00432");
  EXPECT_EQ(figure_text(4.3e-6), "4.30e-06");
  EXPECT_EQ(figure_text(-4.3e-6), "-4.30e-06");
  EXPECT_EQ(figure_text(12345), "1.234e+04");
  EXPECT_EQ(figure_text(-std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(figure_text(-std::numeric_limits<double>::infinity()), "-inf");
}

TEST(Counted, UsesSingularAndPlural) {
  EXPECT_EQ(counted(0, "step"), "0 steps");
  EXPECT_EQ(counted(1, "step"), "1 step");
  EXPECT_EQ(counted(2, "class"), "2 classes");
  EXPECT_EQ(counted(2, "step"), "2 steps");
  EXPECT_EQ(counted(1234567, "window"), "1,234,567 windows");
  EXPECT_EQ(counted(-1000, "step"), "-1,000 steps");
}

}  // namespace
}  // namespace ridge
