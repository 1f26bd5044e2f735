// Pictures as SVG text: a few elements, colours by role that follow the reader's light or dark scheme, and widths of text by estimate,
// so that labels can be placed without a font.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ridge::svg {

// What a colour is for. Each has one value on light and one on dark backgrounds; both are readable on paper and panel.
enum class Ink { paper, panel, rule, muted, text, blue, teal, green, amber, red, violet };
std::string_view light_value(Ink ink);  // "#1a2330"
std::string_view dark_value(Ink ink);

enum class Anchor { start, middle, end };

struct TextStyle {
  double size = 14;
  Ink ink = Ink::text;
  Anchor anchor = Anchor::start;
  bool bold = false;
  double turn = 0;  // degrees, clockwise around the anchor
};

struct Paint {
  std::optional<Ink> fill = {}, stroke = {};
  double width = 1;  // of the stroke
  double opacity = 1;
  double radius = 0;             // of a rectangle's corners
  std::string_view dashes = {};  // "4 3"
};

struct Point {
  double x = 0, y = 0;
};
struct Box {
  double x = 0, y = 0, width = 0, height = 0;
};

class Picture {
 public:
  // The title and the description are for readers that do not see it. The background is a sheet of paper with round corners.
  Picture(double width, double height, std::string_view title, std::string_view description = {});

  void text(Point at, std::string_view words, const TextStyle& style = {});  // at: anchor and base line
  void rect(const Box& box, const Paint& paint);
  void line(Point from, Point to, const Paint& paint);
  void circle(Point centre, double radius, const Paint& paint);
  void path(std::span<const Point> points, const Paint& paint, bool closed = false);
  void group(Point origin, const std::function<void()>& body, std::string_view name = {});  // what body draws, moved

  std::string str() const;  // the document

 private:
  double width_, height_;
  std::string head_, body_;
  int depth_ = 1;
};

std::string escape(std::string_view text);  // for text and attributes; bytes that are no UTF-8 and control characters are replaced
double text_width(std::string_view text, double size, bool bold = false);
std::string fit(std::string_view text, double width, double size, bool bold = false);  // cut with … where it is too long

}  // namespace ridge::svg
