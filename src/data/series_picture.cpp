#include "data/series_picture.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/svg.h"

namespace ridge {

std::string series_svg(const std::string& title, const std::string& subtitle, std::span<const SeriesPanel> panels, std::optional<double> free_from) {
  using namespace svg;
  constexpr double kWide = 960, kHeader = 76, kPanel = 200, kMarginLeft = 72, kMarginRight = 28, kInner = 140;
  Picture picture(kWide, kHeader + kPanel * double(panels.size()) + 16, title, subtitle);
  picture.text({24, 34}, fit(title, kWide - 330, 20, true), {.size = 20, .bold = true});
  picture.text({24, 58}, fit(subtitle, kWide - 48, 13), {.size = 13, .ink = Ink::muted});
  auto legend = [&](double x, Ink ink, std::string_view word, std::string_view dashes) {
    picture.line({x, 29}, {x + 28, 29}, {.stroke = ink, .width = 2, .dashes = dashes});
    picture.text({x + 36, 34}, word, {.size = 13});
  };
  legend(kWide - 280, Ink::blue, "truth", "");
  legend(kWide - 180, Ink::amber, "prediction", "6 3");
  for (size_t p = 0; p < panels.size(); ++p) {
    const SeriesPanel& panel = panels[p];
    const double top = kHeader + kPanel * double(p) + 12, width = kWide - kMarginLeft - kMarginRight;
    double low = INFINITY, high = -INFINITY;
    for (const auto* values : {&panel.truth, &panel.prediction})
      for (const double v : *values)
        if (std::isfinite(v)) low = std::min(low, v), high = std::max(high, v);
    if (!(low <= high)) low = 0, high = 1;
    if (high - low < 1e-12) low -= 0.5, high += 0.5;
    const double room = 0.06 * (high - low), first = panel.time.front(), last = std::max(panel.time.back(), first + 1e-9);
    low -= room, high += room;
    auto x = [&](double t) { return kMarginLeft + (t - first) / (last - first) * width; };
    auto y = [&](double v) { return top + 8 + (1 - (v - low) / (high - low)) * kInner; };
    picture.rect({kMarginLeft, top + 8, width, kInner}, {.fill = Ink::panel, .stroke = Ink::rule});
    for (const double part : {0.0, 0.5, 1.0}) {
      const double v = low + room + part * (high - low - 2 * room), t = first + part * (last - first);
      picture.line({kMarginLeft, y(v)}, {kMarginLeft + width, y(v)}, {.stroke = Ink::rule, .width = 0.5});
      picture.text({kMarginLeft - 8, y(v) + 4}, fmt::format("{:.3g}", v), {.size = 11, .ink = Ink::muted, .anchor = Anchor::end});
      picture.text({x(t), top + kInner + 24}, fmt::format("{:.4g}", t),
                   {.size = 11,
                    .ink = Ink::muted,
                    .anchor = part == 0   ? Anchor::start
                              : part == 1 ? Anchor::end
                                          : Anchor::middle});
    }
    picture.text({kMarginLeft, top}, fit(panel.name, 300, 13, true), {.size = 13, .bold = true});
    if (free_from && *free_from > first && *free_from < last) {
      picture.line({x(*free_from), top + 8}, {x(*free_from), top + 8 + kInner}, {.stroke = Ink::muted, .dashes = "2 3"});
      if (p == 0) picture.text({x(*free_from), top}, "free running from here", {.size = 12, .ink = Ink::muted});
    }
    auto curve = [&](const std::vector<double>& values, const Paint& paint) {
      std::vector<Point> points;
      for (size_t i = 0; i <= values.size(); ++i) {
        const bool drawn = i < values.size() && std::isfinite(values[i]);
        if (drawn) points.push_back({x(panel.time[i]), y(values[i])});
        if (drawn && i + 1 < values.size()) continue;
        if (points.size() == 1) picture.circle(points[0], 2, {.fill = paint.stroke});
        if (points.size() > 1) picture.path(points, paint);
        points.clear();
      }
    };
    curve(panel.truth, {.stroke = Ink::blue, .width = 2});
    curve(panel.prediction, {.stroke = Ink::amber, .width = 2, .dashes = "6 3"});
  }
  return picture.str();
}

}  // namespace ridge
