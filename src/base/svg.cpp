#include "base/svg.h"

#include <cmath>
#include <cstdint>

#include "base/error.h"
#include "base/utf8.h"

namespace ridge::svg {
namespace {

struct InkRow {
  std::string_view name, light, dark;
};
constexpr InkRow kInks[] = {
    {"paper", "#ffffff", "#10161e"}, {"panel", "#f3f6fa", "#19222d"}, {"rule", "#d3dae3", "#33404f"},   {"muted", "#5b6778", "#98a6b8"},
    {"text", "#18212e", "#e8edf4"},  {"blue", "#1f5fc4", "#6ea8ff"},  {"teal", "#0a7b75", "#43c9bf"},   {"green", "#2f7d32", "#7acc7d"},
    {"amber", "#a25d00", "#f3b552"}, {"red", "#bf3a35", "#f5867f"},   {"violet", "#6f45c0", "#b699f7"},
};

const InkRow& row(Ink ink) { return kInks[size_t(ink)]; }

// Two decimals are finer than any screen; trailing zeros are dropped.
std::string number(double x) {
  if (!std::isfinite(x)) fail(ErrorCode::value, "[svg] {} is not a valid coordinate", x);
  std::string text = fmt::format("{:.2f}", x);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string attribute(std::string_view name, double value) { return fmt::format(" {}=\"{}\"", name, number(value)); }

std::string attributes(const Paint& paint) {
  std::string classes = paint.fill ? fmt::format("f-{}", row(*paint.fill).name) : "f-none";
  if (paint.stroke) classes += fmt::format(" s-{}", row(*paint.stroke).name);
  std::string text = fmt::format(" class=\"{}\"", classes);
  if (paint.stroke && paint.width != 1) text += attribute("stroke-width", paint.width);
  if (paint.opacity != 1) text += attribute("opacity", paint.opacity);
  if (!paint.dashes.empty()) text += fmt::format(" stroke-dasharray=\"{}\"", escape(paint.dashes));
  return text;
}

std::string style_sheet() {
  auto rules = [](auto value, std::string_view indent) {
    std::string text;
    for (const InkRow& ink : kInks) text += fmt::format("{0}.f-{1}{{fill:{2}}} .s-{1}{{stroke:{2}}}\n", indent, ink.name, value(ink));
    return text;
  };
  return fmt::format(
      "<style>\n"
      "  text{{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'DejaVu Sans',sans-serif;font-variant-numeric:tabular-nums}}\n"
      "  .f-none{{fill:none}} .b{{font-weight:600}}\n"
      "{}  @media (prefers-color-scheme:dark){{\n{}  }}\n"
      "</style>\n",
      rules([](const InkRow& ink) { return ink.light; }, "  "), rules([](const InkRow& ink) { return ink.dark; }, "    "));
}

// Reads one code point; an invalid byte or a character that XML forbids becomes U+FFFD.
uint32_t next_code(std::string_view text, size_t& at) {
  const CodePoint code = code_point_at(text, at);
  if (code.value == kNotUtf8 || (code.value & 0xfffe) == 0xfffe) return ++at, 0xfffd;
  at += code.bytes;
  return code.value;
}

// Advance width of a character in thousandths of the font size, as in common sans-serif fonts.
double advance(uint32_t code) {
  if (code >= '0' && code <= '9') return 570;
  if (code < 0x80) {
    constexpr std::string_view kGroups[] = {"ijl'|!,.:;I`", "ft()[]{}/\\r\"- ", "csxyvkzJ*^", "mwMW%@"};
    constexpr double kWidths[] = {270, 345, 510, 870};
    for (size_t g = 0; g < 4; ++g)
      if (kGroups[g].find(char(code)) != std::string_view::npos) return kWidths[g];
    return code >= 'A' && code <= 'Z' ? 680 : 560;
  }
  if (code == 0xb7) return 300;
  return is_wide(code) ? 1000 : code == 0x2026 || code == 0x2014 ? 950 : 600;
}

}  // namespace

std::string_view light_value(Ink ink) { return row(ink).light; }
std::string_view dark_value(Ink ink) { return row(ink).dark; }

std::string escape(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const uint32_t code = next_code(text, at);
    switch (code) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: append_utf8(out, code < 0x20 || code == 0x7f ? ' ' : code);
    }
  }
  return out;
}

double text_width(std::string_view text, double size, bool bold) {
  double width = 0;
  for (size_t at = 0; at < text.size();) width += advance(next_code(text, at));
  return width * size / 1000 * (bold ? 1.06 : 1);
}

std::string fit(std::string_view text, double width, double size, bool bold) {
  if (text_width(text, size, bold) <= width) return std::string(text);
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    next_code(text, at);
    if (text_width(std::string(text.substr(0, at)) + "…", size, bold) > width) break;
    end = at;
  }
  while (end > 0 && text[end - 1] == ' ') --end;
  return std::string(text.substr(0, end)) + "…";
}

Picture::Picture(double width, double height, std::string_view title, std::string_view description) : width_(width), height_(height) {
  if (!(width > 0) || !(height > 0)) fail(ErrorCode::value, "[svg] {} by {} is not a valid size for a picture", width, height);
  head_ = fmt::format("<title>{}</title>\n", escape(title));
  if (!description.empty()) head_ += fmt::format("<desc>{}</desc>\n", escape(description));
  rect({0.5, 0.5, width - 1, height - 1}, {.fill = Ink::paper, .stroke = Ink::rule, .radius = 14});
}

void Picture::text(Point at, std::string_view words, const TextStyle& style) {
  constexpr std::string_view kAnchors[] = {"start", "middle", "end"};
  body_.append(size_t(depth_) * 2, ' ');
  body_ += fmt::format("<text{}{}{}", attribute("x", at.x), attribute("y", at.y), attribute("font-size", style.size));
  if (style.anchor != Anchor::start) body_ += fmt::format(" text-anchor=\"{}\"", kAnchors[int(style.anchor)]);
  if (style.turn != 0) body_ += fmt::format(" transform=\"rotate({} {} {})\"", number(style.turn), number(at.x), number(at.y));
  body_ += fmt::format(" class=\"f-{}{}\">{}</text>\n", row(style.ink).name, style.bold ? " b" : "", escape(words));
}

void Picture::rect(const Box& box, const Paint& paint) {
  body_.append(size_t(depth_) * 2, ' ');
  body_ += "<rect" + attribute("x", box.x) + attribute("y", box.y) + attribute("width", box.width) + attribute("height", box.height);
  if (paint.radius > 0) body_ += attribute("rx", paint.radius);
  body_ += attributes(paint) + "/>\n";
}

void Picture::line(Point from, Point to, const Paint& paint) {
  body_.append(size_t(depth_) * 2, ' ');
  body_ += "<line" + attribute("x1", from.x) + attribute("y1", from.y) + attribute("x2", to.x) + attribute("y2", to.y) + attributes(paint) + "/>\n";
}

void Picture::circle(Point centre, double radius, const Paint& paint) {
  body_.append(size_t(depth_) * 2, ' ');
  body_ += "<circle" + attribute("cx", centre.x) + attribute("cy", centre.y) + attribute("r", radius) + attributes(paint) + "/>\n";
}

void Picture::path(std::span<const Point> points, const Paint& paint, bool closed) {
  if (points.empty()) return;
  body_.append(size_t(depth_) * 2, ' ');
  body_ += "<path d=\"";
  for (size_t i = 0; i < points.size(); ++i) body_ += fmt::format("{}{} {}", i ? "L" : "M", number(points[i].x), number(points[i].y));
  body_ += fmt::format("{}\" stroke-linejoin=\"round\" stroke-linecap=\"round\"{}/>\n", closed ? "Z" : "", attributes(paint));
}

void Picture::curve(Point from, Point pull_from, Point pull_to, Point to, const Paint& paint) {
  body_.append(size_t(depth_) * 2, ' ');
  body_ += fmt::format("<path d=\"M{} {}C{} {} {} {} {} {}\"{}/>\n", number(from.x), number(from.y), number(pull_from.x), number(pull_from.y),
                       number(pull_to.x), number(pull_to.y), number(to.x), number(to.y), attributes(paint));
}

void Picture::group(Point origin, const std::function<void()>& body, std::string_view name) {
  body_.append(size_t(depth_) * 2, ' ');
  body_ += "<g";
  if (!name.empty()) body_ += fmt::format(" id=\"{}\"", escape(name));
  if (origin.x != 0 || origin.y != 0) body_ += fmt::format(" transform=\"translate({} {})\"", number(origin.x), number(origin.y));
  body_ += ">\n";
  ++depth_;
  body();
  --depth_;
  body_.append(size_t(depth_) * 2, ' ');
  body_ += "</g>\n";
}

std::string Picture::str() const {
  return fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\">\n{2}{3}{4}</svg>\n",
                     number(width_), number(height_), head_, style_sheet(), body_);
}

}  // namespace ridge::svg
