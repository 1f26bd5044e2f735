// Writes SVG pictures: a few elements, colours by role that follow the reader's light or dark scheme, and estimated text widths, so that labels can be placed
// without a font.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ridge::svg {

// The role of a colour. Each has one value for light and one for dark backgrounds; both are readable on paper and panel.
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
  // The title and description are for screen readers. The background is a sheet of paper with rounded corners.
  Picture(double width, double height, std::string_view title, std::string_view description = {});

  void text(Point at, std::string_view words, const TextStyle& style = {});  // at: anchor and baseline
  void rect(const Box& box, const Paint& paint);
  void line(Point from, Point to, const Paint& paint);
  void circle(Point centre, double radius, const Paint& paint);
  void path(std::span<const Point> points, const Paint& paint, bool closed = false);
  void curve(Point from, Point pull_from, Point pull_to, Point to, const Paint& paint);     // a cubic Bézier curve
  void group(Point origin, const std::function<void()>& body, std::string_view name = {});  // draws body translated to origin

  std::string str() const;  // the document

 private:
  double width_, height_;
  std::string head_, body_;
  int depth_ = 1;
};

std::string escape(std::string_view text);  // for text and attributes; replaces invalid UTF-8 and control characters
double text_width(std::string_view text, double size, bool bold = false);
std::string fit(std::string_view text, double width, double size, bool bold = false);  // truncated with … if too long

}  // namespace ridge::svg
