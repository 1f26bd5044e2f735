#include "data/series_picture.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/svg.h"
#include "base/text.h"

namespace ridge {
namespace {

// Round numbers from `low` to `high`, about `count` of them.
std::vector<double> round_ticks(double low, double high, int count) {
  const double rough = (high - low) / count, power = std::pow(10.0, std::floor(std::log10(rough))), part = rough / power;
  const double step = power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
  std::vector<double> ticks;
  for (double tick = std::ceil(low / step); tick * step <= high + 1e-9 * step && ticks.size() < 20; ++tick) ticks.push_back(tick * step + 0.0);
  return ticks;
}

}  // namespace

std::string series_svg(const std::string& title, const std::string& subtitle, std::span<const SeriesPanel> panels,
                       const std::function<std::string(double)>& time_text, std::optional<double> free_from) {
  using namespace svg;
  constexpr double kWide = 960, kHeader = 76, kPanel = 200, kMarginLeft = 72, kMarginRight = 28, kInner = 140;
  constexpr size_t kDots = 120, kPanels = 6;  // dots: more would cover the curves
  const std::string shown = panels.size() > kPanels ? fmt::format("the first {} of {} columns; {}", kPanels, panels.size(), subtitle) : subtitle;
  panels = panels.first(std::min(panels.size(), kPanels));
  Picture picture(kWide, kHeader + kPanel * double(panels.size()), title, shown);
  picture.text({24, 34}, fit(title, kWide - 330, 20, true), {.size = 20, .bold = true});
  picture.text({24, 58}, fit(shown, kWide - 48, 13), {.size = 13, .ink = Ink::muted});
  auto legend = [&](double x, Ink ink, std::string_view word, std::string_view dashes) {
    picture.line({x, 29}, {x + 28, 29}, {.stroke = ink, .width = 2, .dashes = dashes});
    picture.text({x + 36, 34}, word, {.size = 13});
  };
  legend(kWide - 250, Ink::blue, "truth", "");
  legend(kWide - 142, Ink::amber, "prediction", "6 3");
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
    const Paint grid{.stroke = Ink::rule, .width = 0.5};
    for (const double v : round_ticks(low, high, 4)) {
      picture.line({kMarginLeft, y(v)}, {kMarginLeft + width, y(v)}, grid);
      picture.text({kMarginLeft - 8, y(v) + 4}, fmt::format("{:.6g}", v), {.size = 11, .ink = Ink::muted, .anchor = Anchor::end});
    }
    const std::vector<double> numbers = round_ticks(first, last, 8), ends = {first, 0.5 * (first + last), last};
    for (const double t : time_text ? ends : numbers) {
      if (!time_text) picture.line({x(t), top + 8}, {x(t), top + 8 + kInner}, grid);
      const Anchor anchor = t - first < 0.02 * (last - first) ? Anchor::start : last - t < 0.02 * (last - first) ? Anchor::end : Anchor::middle;
      picture.text({x(t), top + kInner + 24}, time_text ? time_text(t) : fmt::format("{:.10g}", t), {.size = 11, .ink = Ink::muted, .anchor = anchor});
    }
    const std::string name = fit(panel.name, 300, 13, true);
    picture.text({kMarginLeft, top}, name, {.size = 13, .bold = true});
    if (free_from && *free_from > first && *free_from < last) {
      picture.line({x(*free_from), top + 8}, {x(*free_from), top + 8 + kInner}, {.stroke = Ink::muted, .dashes = "2 3"});
      constexpr std::string_view kNote = "free running from here";
      const double after_name = kMarginLeft + text_width(name, 13, true) + 16, before_end = kMarginLeft + width - text_width(kNote, 12);
      if (p == 0) picture.text({std::clamp(x(*free_from), after_name, before_end), top}, kNote, {.size = 12, .ink = Ink::muted});
    }
    auto curve = [&](const std::vector<double>& values, const Paint& paint) {
      std::vector<Point> points;
      for (size_t i = 0; i <= values.size(); ++i) {
        const bool drawn = i < values.size() && std::isfinite(values[i]);
        if (drawn) points.push_back({x(panel.time[i]), y(values[i])});
        if (drawn && i + 1 < values.size()) continue;
        if (points.size() == 1) picture.circle(points[0], 2, {.fill = paint.stroke});
        if (points.size() > 1) picture.path(points, paint);
        if (points.size() > 1 && values.size() <= kDots)
          for (const Point& point : points) picture.circle(point, 2.5, {.fill = paint.stroke});
        points.clear();
      }
    };
    curve(panel.truth, {.stroke = Ink::blue, .width = 2});
    curve(panel.prediction, {.stroke = Ink::amber, .width = 2, .dashes = "6 3"});
  }
  return picture.str();
}

std::vector<SeriesPanel> series_panels(const SeriesForm& form) {
  std::vector<SeriesPanel> panels;
  for (const std::string& name : form.outputs) panels.push_back({name, {}, {}, {}});
  return panels;
}

void add_step(std::vector<SeriesPanel>& panels, const Series& series, const SeriesSample& sample, size_t step, double time, const float* outputs) {
  for (size_t o = 0; o < panels.size(); ++o) {
    const size_t at = step * panels.size() + o;
    const bool target = at < sample.weight.size() && sample.weight[at] > 0;
    panels[o].time.push_back(time), panels[o].prediction.push_back(series.original(int64_t(o), outputs[o]));
    panels[o].truth.push_back(target ? series.original(int64_t(o), sample.y[at]) : std::numeric_limits<double>::quiet_NaN());
  }
}

namespace {

// A row per class instead of a column: how often it is right, and what else is said most often. The classes with the most mistakes, if there are many.
std::vector<std::string> mistakes_table(const std::vector<std::string>& classes, std::span<const int64_t> counts) {
  constexpr size_t kRows = 12;
  const size_t n = classes.size();
  struct Row {
    size_t truth, other;
    int64_t right, all;
  };
  std::vector<Row> rows;
  for (size_t i = 0; i < n; ++i) {
    Row row{i, i == 0 ? 1u : 0u, counts[i * n + i], 0};
    for (size_t j = 0; j < n; ++j) {
      row.all += counts[i * n + j];
      if (j != i && counts[i * n + j] > counts[i * n + row.other]) row.other = j;
    }
    rows.push_back(row);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.all - a.right > b.all - b.right; });
  rows.resize(std::min(n, kRows));
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.truth < b.truth; });
  auto name = [&](size_t c) { return cut(printable(classes[c]), 16); };
  std::vector<std::string> out = {"truth               right        of  else most often"};
  for (const Row& row : rows) {
    const int64_t wrong = counts[row.truth * n + row.other];
    const std::string truth = name(row.truth);
    out.push_back(fmt::format("{}{} {:>8}  {:>8}{}", truth, std::string(size_t(16 - display_width(truth)), ' '), row.right, row.all,
                              wrong > 0 ? fmt::format("  {} ({})", name(row.other), wrong) : ""));
  }
  if (n > kRows) out.push_back(fmt::format("and {} more classes with fewer mistakes; ridge eval --json has the whole table", n - kRows));
  return out;
}

}  // namespace

std::vector<std::string> confusion_table(const std::vector<std::string>& classes, std::span<const int64_t> counts) {
  constexpr size_t kColumns = 6;  // more do not fit a terminal
  const size_t n = classes.size();
  if (n > kColumns) return mistakes_table(classes, counts);
  std::vector<std::string> out = {fmt::format("{:<12}", "truth \\ said")};
  for (const std::string& name : classes) out[0] += fmt::format(" {:>8}", cut(name, 8));
  for (size_t i = 0; i < n; ++i) {
    out.push_back(fmt::format("{:<12}", cut(classes[i], 12)));
    for (size_t j = 0; j < n; ++j) out.back() += fmt::format(" {:>8}", counts[i * n + j]);
  }
  return out;
}

}  // namespace ridge
