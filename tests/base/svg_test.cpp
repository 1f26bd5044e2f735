#include "base/svg.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"

namespace ridge::svg {
namespace {

int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++n;
  return n;
}

// Relative luminance contrast of two "#rrggbb" colours, as the web's accessibility rules define it.
double contrast(std::string_view a, std::string_view b) {
  auto luminance = [](std::string_view colour) {
    auto channel = [&](int at) {
      const double c = std::stoi(std::string(colour.substr(size_t(at), 2)), nullptr, 16) / 255.0;
      return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
    };
    return 0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5);
  };
  const double x = luminance(a), y = luminance(b);
  return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

TEST(Svg, EscapesMarkup) {
  EXPECT_EQ(escape("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
  EXPECT_EQ(escape("µs · 3×"), "µs · 3×");
  EXPECT_EQ(escape(std::string_view("a\0b\x1b[0m\n", 8)), "a b [0m ");
  EXPECT_EQ(escape("\xff\xc0\xaf\xed\xa0\x80\xe2\x82"), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(escape("\xf0\x9f\x98\x80"), "\xf0\x9f\x98\x80");
}

TEST(Svg, IsOneDocumentWithBalancedElements) {
  Picture picture(400, 300, "a <title>", "what & why");
  picture.text({10, 20.125}, "</svg><script>", {.anchor = Anchor::middle, .bold = true, .turn = -90});
  picture.group({5, 5}, [&] {
    picture.rect({0, 0, 10, 10}, {.fill = Ink::blue, .opacity = 0.5, .radius = 2});
    picture.group(
        {},
        [&] {
          picture.circle({1, 2}, 3, {.stroke = Ink::red, .width = 2});
        },
        "inner");
  });
  const std::vector<Point> points = {{0, 0}, {1.5, 2}, {3, -0.001}};
  picture.path(points, {.stroke = Ink::teal, .dashes = "4 3"}, true);
  picture.path({}, {.stroke = Ink::teal});
  picture.line({0, 0}, {1, 1}, {.stroke = Ink::rule});
  const std::string text = picture.str();
  EXPECT_EQ(text.find("<svg "), 0u);
  EXPECT_EQ(count(text, "<svg "), 1);
  EXPECT_EQ(count(text, "</svg>"), 1);
  EXPECT_EQ(text.substr(text.size() - 7), "</svg>\n");
  EXPECT_EQ(count(text, "<g"), 2);
  EXPECT_EQ(count(text, "</g>"), 2);
  EXPECT_EQ(count(text, "<script"), 0);
  EXPECT_EQ(count(text, "<path"), 1);
  EXPECT_NE(text.find("M0 0L1.5 2L3 0Z"), std::string::npos);
  EXPECT_NE(text.find("rotate(-90 10 20.12)"), std::string::npos);
  EXPECT_NE(text.find("<title>a &lt;title&gt;</title>"), std::string::npos);
  EXPECT_NE(text.find("prefers-color-scheme:dark"), std::string::npos);
}

TEST(Svg, RejectsNonFiniteNumbers) {
  EXPECT_THROW(Picture(0, 10, ""), Error);
  Picture picture(10, 10, "");
  EXPECT_THROW(picture.line({0, std::nan("")}, {}, {}), Error);
  EXPECT_THROW(picture.rect({0, 0, std::numeric_limits<double>::infinity(), 1}, {}), Error);
}

TEST(Svg, EveryColourIsReadableOnBothBackgrounds) {
  for (Ink ink : {Ink::muted, Ink::text, Ink::blue, Ink::teal, Ink::green, Ink::amber, Ink::red, Ink::violet})
    for (Ink ground : {Ink::paper, Ink::panel}) {
      EXPECT_GE(contrast(light_value(ink), light_value(ground)), 4.5) << light_value(ink);
      EXPECT_GE(contrast(dark_value(ink), dark_value(ground)), 4.5) << dark_value(ink);
    }
}

TEST(Svg, WidthsGrowWithTextAndFitCutsWholeCharacters) {
  EXPECT_EQ(text_width("", 14), 0);
  EXPECT_GT(text_width("WWWW", 14), text_width("iiii", 14));
  EXPECT_DOUBLE_EQ(text_width("12", 20), 2 * text_width("1", 20));
  EXPECT_GT(text_width("abc", 14, true), text_width("abc", 14));
  EXPECT_EQ(fit("short", 1000, 14), "short");
  for (double width = 0; width < 200; width += 7) {
    const std::string cut = fit("AMD EPYC µµµµ processor", width, 14);
    if (cut != "…") {
      EXPECT_LE(text_width(cut, 14), width);
    }
    EXPECT_EQ(escape(cut).find("\uFFFD"), std::string::npos);
  }
}

}  // namespace
}  // namespace ridge::svg
