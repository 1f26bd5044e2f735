#include "profile/roofline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/svg.h"

namespace ridge {
namespace {

using svg::Anchor;
using svg::Ink;
using svg::Point;

constexpr double kWidth = 1080, kHeight = 680;
constexpr svg::Box kPlot{92, 104, 780, 490};
constexpr Ink kSlopeInks[] = {Ink::violet, Ink::teal, Ink::green, Ink::amber, Ink::red};

// At most three digits, without an exponent.
std::string figure(double x) { return x >= 100 ? fmt::format("{:.0f}", x) : x >= 10 ? fmt::format("{:.1f}", x) : fmt::format("{:.2g}", x); }

// Intensity in powers of two, rates in powers of ten, both logarithmic.
class Axes {
 public:
  explicit Axes(const Roofline& r) {
    double low_rate = 1e300, high_rate = 0, low_ridge = 1e300, high_ridge = 0;
    for (const auto& flat : r.flats) {
      high_rate = std::max(high_rate, flat.gflops);
      for (const auto& slope : r.slopes) {
        const double at = ridge_point(flat.gflops, slope.gbs);
        low_ridge = std::min(low_ridge, at), high_ridge = std::max(high_ridge, at);
      }
    }
    x_low_ = std::floor(std::log2(low_ridge)) - 3;
    x_high_ = std::ceil(std::log2(high_ridge)) + 3;
    for (const auto& slope : r.slopes) low_rate = std::min(low_rate, slope.gbs * std::exp2(x_low_));
    for (const auto& dot : r.dots) {
      x_low_ = std::min(x_low_, std::floor(std::log2(dot.intensity)));
      x_high_ = std::max(x_high_, std::ceil(std::log2(dot.intensity)) + 1);
      low_rate = std::min(low_rate, dot.gflops), high_rate = std::max(high_rate, dot.gflops);
    }
    y_low_ = std::floor(2 * std::log10(low_rate)) / 2;
    y_high_ = std::log10(high_rate) + 0.22;
  }

  double x(double intensity) const { return kPlot.x + (std::log2(intensity) - x_low_) / (x_high_ - x_low_) * kPlot.width; }
  double y(double gflops) const { return kPlot.y + (y_high_ - std::log10(gflops)) / (y_high_ - y_low_) * kPlot.height; }
  Point at(double intensity, double gflops) const { return {x(intensity), y(gflops)}; }
  double left() const { return std::exp2(x_low_); }
  double right() const { return std::exp2(x_high_); }
  double bottom() const { return std::pow(10, y_low_); }
  double top() const { return std::pow(10, y_high_); }

  // Of every slope, since both axes are logarithmic; in degrees, clockwise.
  double turn() const {
    const Point a = at(1, 1), b = at(2, 2);
    return std::atan2(b.y - a.y, b.x - a.x) * 180 / 3.14159265358979;
  }

 private:
  double x_low_ = 0, x_high_ = 0, y_low_ = 0, y_high_ = 0;
};

void draw_grid(svg::Picture& picture, const Axes& axes) {
  for (double e = std::ceil(std::log2(axes.left())); e <= std::log2(axes.right()) + 1e-9; ++e) {
    const double intensity = std::exp2(e), x = axes.x(intensity);
    picture.line({x, kPlot.y}, {x, kPlot.y + kPlot.height}, {.stroke = Ink::rule, .opacity = 0.55});
    const std::string label = e < 0 ? fmt::format("1/{:.0f}", std::exp2(-e)) : fmt::format("{:.0f}", intensity);
    picture.text({x, kPlot.y + kPlot.height + 22}, label, {.size = 13, .ink = Ink::muted, .anchor = Anchor::middle});
  }
  for (double decade = std::floor(std::log10(axes.bottom())); decade <= std::log10(axes.top()); ++decade)
    for (int step : {1, 2, 5}) {
      const double rate = step * std::pow(10, decade);
      if (rate < axes.bottom() * 0.999 || rate > axes.top()) continue;
      const double y = axes.y(rate);
      picture.line({kPlot.x, y}, {kPlot.x + kPlot.width, y}, {.stroke = Ink::rule, .opacity = step == 1 ? 0.9 : 0.4});
      picture.text({kPlot.x - 10, y + 4.5}, rate >= 1000 ? fmt::format("{:g}k", rate / 1000) : fmt::format("{:g}", rate),
                   {.size = 13, .ink = Ink::muted, .anchor = Anchor::end});
    }
  picture.text({kPlot.x + kPlot.width / 2, kHeight - 34}, "flops per byte", {.size = 14, .ink = Ink::muted, .anchor = Anchor::middle});
  picture.text({32, kPlot.y + kPlot.height / 2}, "GFLOP/s", {.size = 14, .ink = Ink::muted, .anchor = Anchor::middle, .turn = -90});
}

// Labels of flat lines at the right edge, each as close to its line as the others allow.
void draw_flats(svg::Picture& picture, const Axes& axes, const Roofline& r) {
  constexpr double kSpacing = 36;
  std::vector<size_t> order(r.flats.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return r.flats[a].gflops > r.flats[b].gflops; });
  double fastest = 0;
  for (const auto& slope : r.slopes) fastest = std::max(fastest, slope.gbs);
  double free = kPlot.y;
  for (size_t i : order) {
    const Roofline::Flat& flat = r.flats[i];
    const bool main = i == 0;
    const double y = axes.y(flat.gflops), from = axes.x(ridge_point(flat.gflops, fastest)), to = kPlot.x + kPlot.width;
    const Ink ink = main ? Ink::blue : Ink::muted;
    picture.line({from, y}, {to, y}, {.stroke = ink, .width = main ? 3.0 : 1.8, .opacity = main ? 1 : 0.85, .dashes = flat.native ? "" : "5 5"});
    const double at = std::max(y, free);
    free = at + kSpacing;
    picture.line({to, y}, {to + 12, at}, {.stroke = ink, .opacity = 0.8});
    picture.text({to + 18, at - 2}, flat.name, {.size = 14, .ink = ink, .bold = true});
    picture.text({to + 18, at + 14}, rate_text(flat.gflops), {.size = 13, .ink = main ? Ink::text : Ink::muted});
  }
}

void draw_slopes(svg::Picture& picture, const Axes& axes, const Roofline& r) {
  double fastest = 0;
  for (const auto& flat : r.flats) fastest = std::max(fastest, flat.gflops);
  const double turn = axes.turn(), radians = turn * 3.14159265358979 / 180;
  for (size_t i = 0; i < r.slopes.size(); ++i) {
    const Roofline::Slope& slope = r.slopes[i];
    const bool memory = i + 1 == r.slopes.size();
    const Ink ink = memory ? Ink::blue : kSlopeInks[i % std::size(kSlopeInks)];
    // From where the line enters the plot to where it meets the highest flat line.
    const double enters = std::max(axes.left(), axes.bottom() / slope.gbs);
    const Point from = axes.at(enters, enters * slope.gbs), to = axes.at(ridge_point(fastest, slope.gbs), fastest);
    const Point line[] = {from, to};
    picture.path(line, {.stroke = ink, .width = memory ? 3.0 : 2.0});
    // The label is above its line, near the lower end, or below it if the line above is too close.
    double above = 1e9;
    for (const auto& other : r.slopes)
      if (const double gap = (axes.y(slope.gbs) - axes.y(other.gbs)) * std::cos(radians); gap > 0) above = std::min(above, gap);
    constexpr double kRoom = 19, kAlong = 14;
    const double across = above < kRoom ? 17 : -7;
    const Point at{from.x + kAlong * std::cos(radians) - across * std::sin(radians), from.y + kAlong * std::sin(radians) + across * std::cos(radians)};
    picture.text(at, slope.name + " " + bandwidth_text(slope.gbs), {.size = 14, .ink = ink, .bold = true, .turn = turn});
  }
}

void draw_ridges(svg::Picture& picture, const Axes& axes, const Roofline& r) {
  const double rate = r.flats.front().gflops;
  double last_label = -1e9;
  for (size_t i = 0; i + 1 < r.slopes.size(); ++i) {
    const double intensity = ridge_point(rate, r.slopes[i].gbs);
    const Point at = axes.at(intensity, rate);
    picture.circle(at, 4.5, {.fill = Ink::paper, .stroke = kSlopeInks[i % std::size(kSlopeInks)], .width = 2});
    // Above its point, or below it if the previous one is too close.
    const bool below = std::abs(at.x - last_label) < 44;
    if (!below) last_label = at.x;
    picture.text({below ? at.x + 4 : at.x - 4, below ? at.y + 20 : at.y - 10}, figure(intensity),
                 {.size = 12.5, .ink = Ink::muted, .anchor = below ? Anchor::start : Anchor::end});
  }

  const double intensity = ridge_point(rate, r.slopes.back().gbs);
  const Point at = axes.at(intensity, rate);
  picture.line(at, {at.x, kPlot.y + kPlot.height}, {.stroke = Ink::blue, .width = 1.4, .dashes = "3 5"});
  picture.circle(at, 7, {.fill = Ink::paper, .stroke = Ink::blue, .width = 3});
  double y = r.dots.empty() ? at.y + 26 : kPlot.y + kPlot.height - 52;  // dots gather below the roof
  for (bool free = !r.dots.empty(); !free;) {
    free = true;
    for (const auto& flat : r.flats)
      if (const double line = axes.y(flat.gflops); line > y - 18 && line < y + 42) y = line + 22, free = false;
  }
  const std::string words = fmt::format("ridge at {} flops per byte", figure(intensity));
  const double wide = 12 + svg::text_width(words, 15, true);
  const bool left = r.dots.empty() ? at.x + wide > kPlot.x + kPlot.width : at.x - wide > kPlot.x;
  const double x = left ? at.x - 12 : at.x + 12;
  const Anchor anchor = left ? Anchor::end : Anchor::start;
  picture.text({x, y}, words, {.size = 15, .anchor = anchor, .bold = true});
  picture.text({x, y + 19}, "memory limits to its left,", {.size = 12.5, .ink = Ink::muted, .anchor = anchor});
  picture.text({x, y + 35}, "arithmetic to its right", {.size = 12.5, .ink = Ink::muted, .anchor = anchor});
}

void draw_facts(svg::Picture& picture, const Roofline& r) {
  if (r.facts.empty()) return;
  constexpr double kLine = 20, kPad = 14;
  double width = 0;
  for (const std::string& fact : r.facts) width = std::max(width, 1.12 * svg::text_width(fact, 13));  // some fonts are wider
  const svg::Box box{kPlot.x + kPlot.width - width - 2 * kPad - 14, kPlot.y + kPlot.height - kLine * double(r.facts.size()) - 2 * kPad + 2 - 14,
                     width + 2 * kPad, kLine * double(r.facts.size()) + 2 * kPad - 6};
  picture.rect(box, {.fill = Ink::panel, .stroke = Ink::rule, .radius = 8});
  for (size_t i = 0; i < r.facts.size(); ++i) picture.text({box.x + kPad, box.y + kPad + 11 + kLine * double(i)}, r.facts[i], {.size = 13, .ink = Ink::muted});
}

// A name in or next to one of its dots, where no other is.
void draw_dots(svg::Picture& picture, const Axes& axes, const Roofline& r) {
  auto radius = [](const Roofline::Dot& dot) { return 4.5 + 36 * std::sqrt(std::min(dot.share, 0.25)); };
  for (const Roofline::Dot& dot : r.dots)
    picture.circle(axes.at(dot.intensity, dot.gflops), radius(dot), {.fill = dot.ink, .stroke = Ink::paper, .opacity = 0.85});
  std::map<std::string, bool> named;
  std::vector<Point> taken;
  for (const Roofline::Dot& dot : r.dots) {
    const Point at = axes.at(dot.intensity, dot.gflops);
    if (r.list.empty()) picture.text({at.x + 6, at.y + 17}, dot.name, {.size = 12.5});
    if (r.list.empty() || dot.name.empty() || named[dot.name]) continue;
    const double beside = radius(dot) + 9;
    for (const Point& by : {Point{0, 0}, {beside, 0}, {-beside, 0}, {0, -beside}, {0, beside}}) {
      const Point middle{at.x + by.x, at.y + by.y};
      const bool inside = by.x == 0 && by.y == 0;
      if ((inside && radius(dot) < 8) || std::ranges::any_of(taken, [&](const Point& t) { return std::hypot(t.x - middle.x, t.y - middle.y) < 15; })) continue;
      picture.text({middle.x, middle.y + 4}, dot.name, {.size = 10.5, .ink = inside ? Ink::paper : Ink::text, .anchor = Anchor::middle, .bold = true});
      taken.push_back(middle), named[dot.name] = true;
      break;
    }
  }
}

// Two columns below the plot, as many rows as needed.
constexpr double kListRow = 38;
double list_height(const Roofline& r) { return r.list.empty() ? 0 : kListRow * double((r.list.size() + 1) / 2) + 14; }

void draw_list(svg::Picture& picture, const Roofline& r) {
  const size_t rows = (r.list.size() + 1) / 2;
  constexpr double kColumn = (kWidth - 84) / 2;
  for (size_t i = 0; i < r.list.size(); ++i) {
    const Point at{42 + kColumn * double(i / rows), kHeight + 6 + kListRow * double(i % rows)};
    picture.circle({at.x + 10, at.y}, 10, {.fill = r.list[i].ink});
    picture.text({at.x + 10, at.y + 4}, std::to_string(i + 1), {.size = 10.5, .ink = Ink::paper, .anchor = Anchor::middle, .bold = true});
    picture.text({at.x + 28, at.y + 1}, svg::fit(r.list[i].name, kColumn - 40, 13), {.size = 13});
    picture.text({at.x + 28, at.y + 17}, svg::fit(r.list[i].figures, kColumn - 40, 12), {.size = 12, .ink = Ink::muted});
  }
}

}  // namespace

Roofline roofline_of(const MachineCeilings& c, const std::string& title, const std::string& subtitle) {
  Roofline r{.title = title, .subtitle = subtitle, .slopes = {}, .flats = {}, .facts = {}};
  for (const std::string& level : c.levels()) {
    // The best bandwidth of the level for any movement.
    double best = 0;
    for (Movement movement : {Movement::copy, Movement::triad, Movement::read})
      if (const BandwidthCeiling* b = c.bandwidth(level, movement)) best = std::max(best, b->gbs.median);
    if (best > 0) r.slopes.push_back({level, best});
  }
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    if (const RateCeiling* rate = c.rate(dtype)) {
      const bool native = rate->gflops.variant.find("widened") == std::string::npos;
      r.flats.push_back({std::string(name(dtype)) + (native ? "" : " widened"), rate->gflops.median, native});
    }
  for (Movement movement : {Movement::copy, Movement::triad, Movement::read})
    if (const BandwidthCeiling* b = c.bandwidth("memory", movement))
      r.facts.push_back(fmt::format("memory {} {}", name(movement), bandwidth_text(b->gbs.median)));
  for (const ForkJoinCeiling& f : c.fork_joins)
    if (f.threads == c.threads()) {
      const int decimals = f.us.median < 1 ? 2 : f.us.median < 10 ? 1 : 0;
      r.facts.push_back(fmt::format("fork and join of {} thread{} {:.{}f} µs", f.threads, f.threads == 1 ? "" : "s", f.us.median, decimals));
    }
  return r;
}

std::string to_svg(const Roofline& r) {
  if (r.slopes.empty() || r.flats.empty())
    fail(ErrorCode::value, "[roofline] {} bandwidths and {} rates; at least one of each is needed", r.slopes.size(), r.flats.size());
  for (const auto& slope : r.slopes)
    if (!(slope.gbs > 0) || !std::isfinite(slope.gbs)) fail(ErrorCode::value, "[roofline] a bandwidth of {} GB/s for {}", slope.gbs, slope.name);
  for (const auto& flat : r.flats)
    if (!(flat.gflops > 0) || !std::isfinite(flat.gflops)) fail(ErrorCode::value, "[roofline] a rate of {} GFLOP/s for {}", flat.gflops, flat.name);
  for (const auto& dot : r.dots)
    if (!(dot.gflops > 0 && dot.intensity > 0))
      fail(ErrorCode::value, "[roofline] {} at {} flops per byte and {} GFLOP/s", dot.name, dot.intensity, dot.gflops);

  const Axes axes(r);
  const Roofline::Slope& memory = r.slopes.back();
  const double rate = r.flats.front().gflops, ridge = ridge_point(rate, memory.gbs);
  svg::Picture picture(kWidth, kHeight + list_height(r), r.title,
                       fmt::format("{} at {}, {} at {}, ridge at {} flops per byte", r.flats.front().name, rate_text(rate), memory.name,
                                   bandwidth_text(memory.gbs), figure(ridge)));
  picture.text({kPlot.x - 52, 50}, svg::fit(r.title, kWidth - 120, 26, true), {.size = 26, .bold = true});
  picture.text({kPlot.x - 52, 76}, svg::fit(r.subtitle, kWidth - 120, 14.5), {.size = 14.5, .ink = Ink::muted});
  draw_grid(picture, axes);

  // Everything below the roof of memory and arithmetic is reachable.
  const double enters = std::max(axes.left(), axes.bottom() / memory.gbs);
  const Point under[] = {axes.at(enters, enters * memory.gbs), axes.at(ridge, rate), axes.at(axes.right(), rate), axes.at(axes.right(), axes.bottom()),
                         axes.at(enters, axes.bottom())};
  picture.path(under, {.fill = Ink::blue, .opacity = 0.08}, true);
  draw_flats(picture, axes, r);
  draw_slopes(picture, axes, r);
  draw_ridges(picture, axes, r);
  draw_facts(picture, r);
  draw_dots(picture, axes, r);
  draw_list(picture, r);
  return picture.str();
}

}  // namespace ridge
