#include "train/loss_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/svg.h"
#include "base/text.h"
#include "io/atomic_file.h"
#include "train/train_text.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;
using svg::Anchor;
using svg::Box;
using svg::Ink;
using svg::Picture;
using svg::Point;

constexpr double kWidth = 960, kHead = 64, kPanelHeight = 420, kFoot = 20;
constexpr double kLeft = 76, kRight = 32, kTop = 40, kBottom = 56;  // margins of a panel around its axes
constexpr Ink kInks[] = {Ink::blue, Ink::amber, Ink::teal, Ink::violet, Ink::green, Ink::red};
constexpr std::string_view kDashes[] = {"", "7 4", "2 4"};
constexpr size_t kMaxNamed = 12;

Ink ink_of(size_t series) { return kInks[series % std::size(kInks)]; }
std::string_view dashes_of(size_t series) { return kDashes[series / std::size(kInks) % std::size(kDashes)]; }

// The curve's value at a step, linearly interpolated.
std::optional<double> value_at(const LossPoints& curve, double step) {
  if (curve.empty() || step < double(curve.front().first) || step > double(curve.back().first)) return {};
  const auto after = std::lower_bound(curve.begin(), curve.end(), step, [](const auto& point, double s) { return double(point.first) < s; });
  if (double(after->first) == step) return after->second;
  const auto before = after - 1;
  const double part = (step - double(before->first)) / double(after->first - before->first);
  return before->second + part * (after->second - before->second);
}

// Averages the curve's points over `most` equal intervals from `first` to `last`.
LossPoints thinned(const LossPoints& curve, int64_t first, int64_t last, int most) {
  struct Sum {
    double steps = 0, losses = 0, count = 0;
  };
  std::vector<Sum> sums(size_t(most), Sum{});
  for (const auto& [step, loss] : curve) {
    const double place = double(step - first) * most / double(last - first + 1);
    Sum& sum = sums[std::min(size_t(place), sums.size() - 1)];
    sum.steps += double(step), sum.losses += loss, sum.count += 1;
  }
  LossPoints out;
  for (const Sum& sum : sums)
    if (sum.count > 0) out.emplace_back(std::llround(sum.steps / sum.count), sum.losses / sum.count);
  return out;
}

// Steps of 1, 2 or 5 times a power of ten, about `wanted` of them.
std::vector<double> ticks(double low, double high, int wanted) {
  const double rough = (high - low) / wanted, power = std::pow(10, std::floor(std::log10(rough)));
  const double step = power * (rough / power < 1.5 ? 1 : rough / power < 3.5 ? 2 : rough / power < 7.5 ? 5 : 10);
  std::vector<double> out;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) out.push_back(i * step + 0.0);  // + 0: never -0
  return out;
}

// Several per power of ten, or only the powers if there are many.
std::vector<double> log_ticks(double low, double high) {
  const double first = std::floor(std::log10(low)), last = std::log10(high);
  const double stride = std::max(1.0, std::ceil((last - first) / 8));
  const std::vector<double> digits = last - first > 3 ? std::vector{1.0}
                                     : high > 5 * low ? std::vector{1.0, 1.5, 2.0, 3.0, 5.0, 7.0}
                                                      : std::vector{1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0};
  std::vector<double> out;
  for (double power = first; power <= last; power += stride)
    for (const double digit : digits)
      if (const double tick = digit * std::pow(10, power); tick >= low && tick <= high) out.push_back(tick);
  return out;
}

std::string step_text(double step) {
  return step >= 1e6 ? fmt::format("{:g}M", step / 1e6) : step >= 1e4 ? fmt::format("{:g}k", step / 1e3) : fmt::format("{:g}", step);
}

class PlotAxes {
 public:
  PlotAxes(const Box& box, std::span<const std::vector<BandPoint>> bands, const Score& score, std::string x_title)
      : box_(box), x_title_(std::move(x_title)), title_(score.unit.empty() ? score.name : fmt::format("{} [{}]", score.name, score.unit)) {
    double low = INFINITY, high = -INFINITY;
    for (const auto& band : bands)
      for (const BandPoint& p : band) {
        x_low_ = std::min(x_low_, p.step), x_high_ = std::max(x_high_, p.step);
        low = std::min(low, p.mean - p.error), high = std::max(high, p.mean + p.error);
      }
    empty_ = !(low <= high);
    if (empty_) return;
    if (x_high_ <= x_low_) x_high_ = x_low_ + 1;
    // A loss that falls to a fraction of its start would be a flat line at the bottom; a logarithmic axis shows it better.
    logarithmic_ = !score.higher_is_better && low > 0 && high > 2.5 * low;
    const double room = 0.05;
    if (logarithmic_) {
      const double more = std::exp(room * (std::log(high) - std::log(low)));
      y_low_ = std::max(low / more, std::numeric_limits<double>::min()), y_high_ = std::min(high * more, std::numeric_limits<double>::max());
    } else {
      const double span = high > low ? high - low : std::max(std::abs(high), 1e-3);
      y_low_ = low - room * span, y_high_ = high + room * span;
    }
  }

  bool empty() const { return empty_; }
  bool logarithmic() const { return logarithmic_; }
  double x(double step) const { return box_.x + (step - x_low_) / (x_high_ - x_low_) * box_.width; }
  double y(double loss) const {
    loss = std::clamp(loss, y_low_, y_high_);
    const double part = logarithmic_ ? (std::log(loss) - std::log(y_low_)) / (std::log(y_high_) - std::log(y_low_)) : (loss - y_low_) / (y_high_ - y_low_);
    return box_.y + (1 - part) * box_.height;
  }

  void draw(Picture& picture) const {
    std::vector<double> rows = logarithmic_ ? log_ticks(y_low_, y_high_) : ticks(y_low_, y_high_, 6);
    if (logarithmic_ && rows.size() < 3) rows = ticks(y_low_, y_high_, 6);
    for (const double loss : rows) {
      picture.line({box_.x, y(loss)}, {box_.x + box_.width, y(loss)}, {.stroke = Ink::rule, .width = 0.75});
      picture.text({box_.x - 10, y(loss) + 4}, fmt::format("{:.4g}", loss), {.size = 12, .ink = Ink::muted, .anchor = Anchor::end});
    }
    for (const double step : ticks(x_low_, x_high_, 8)) {
      picture.line({x(step), box_.y + box_.height}, {x(step), box_.y + box_.height + 5}, {.stroke = Ink::muted});
      picture.text({x(step), box_.y + box_.height + 20}, step_text(step), {.size = 12, .ink = Ink::muted, .anchor = Anchor::middle});
    }
    picture.line({box_.x, box_.y + box_.height}, {box_.x + box_.width, box_.y + box_.height}, {.stroke = Ink::muted});
    picture.text({box_.x + box_.width / 2, box_.y + box_.height + 42}, x_title_, {.size = 13, .ink = Ink::muted, .anchor = Anchor::middle});
    picture.text({box_.x - 54, box_.y + box_.height / 2}, logarithmic_ ? title_ + " (log scale)" : title_,
                 {.size = 13, .ink = Ink::muted, .anchor = Anchor::middle, .turn = -90});
  }

 private:
  Box box_;
  std::string x_title_, title_;
  bool empty_ = true, logarithmic_ = false;
  double x_low_ = INFINITY, x_high_ = -INFINITY, y_low_ = 0, y_high_ = 1;
};

void draw_band(Picture& picture, const PlotAxes& axes, const std::vector<BandPoint>& band, size_t series) {
  std::vector<Point> edge, line;
  for (const BandPoint& p : band) line.push_back({axes.x(p.step), axes.y(p.mean)}), edge.push_back({axes.x(p.step), axes.y(p.mean + p.error)});
  for (auto p = band.rbegin(); p != band.rend(); ++p) edge.push_back({axes.x(p->step), axes.y(p->mean - p->error)});
  if (std::any_of(band.begin(), band.end(), [](const BandPoint& p) { return p.error > 0; })) picture.path(edge, {.fill = ink_of(series), .opacity = 0.2}, true);
  picture.path(line, {.stroke = ink_of(series), .width = 2, .dashes = dashes_of(series)});
  if (line.size() <= 40)
    for (const Point& p : line) picture.circle(p, line.size() == 1 ? 4 : 2.5, {.fill = ink_of(series)});
}

std::string legend_text(const PlotSeries& series, const std::vector<BandPoint>& band, const LossPanel& panel) {
  if (band.empty()) return series.name + ": none";
  const auto best = std::min_element(band.begin(), band.end(), [&](const BandPoint& a, const BandPoint& b) { return panel.score.better(a.mean, b.mean); });
  const BandPoint& named = panel.names_last ? band.back() : *best;
  std::string text = fmt::format("{}: {} {}", series.name, panel.names_last ? "last" : "best", figure_text(named.mean));
  if (named.error > 0) text += fmt::format(" ± {} ({} runs)", figure_text(named.error), series.curves.size());
  return text;
}

// In the upper right corner, where a falling loss leaves room, or in the lower right one for a rising score.
void draw_legend(Picture& picture, const Box& box, const LossPanel& panel, std::span<const std::vector<BandPoint>> bands) {
  const std::span<const PlotSeries> series = panel.series;
  constexpr double kRow = 19, kSwatch = 26, kSize = 13, kMax = 0.62;
  std::vector<std::string> rows;
  for (size_t i = 0; i < std::min(series.size(), kMaxNamed); ++i) rows.push_back(svg::fit(legend_text(series[i], bands[i], panel), kMax * box.width, kSize));
  if (series.size() > kMaxNamed) rows.push_back(fmt::format("and {} more", series.size() - kMaxNamed));
  double width = 0;
  for (const std::string& row : rows) width = std::max(width, 1.1 * svg::text_width(row, kSize));
  const double height = kRow * double(rows.size()) + 12, top = panel.score.higher_is_better ? box.y + box.height - height - 4 : box.y + 4;
  const Box frame{box.x + box.width - width - kSwatch - 36, top, width + kSwatch + 28, height};
  picture.rect(frame, {.fill = Ink::paper, .stroke = Ink::rule, .opacity = 0.92, .radius = 8});
  for (size_t i = 0; i < rows.size(); ++i) {
    const double y = frame.y + kRow * (double(i) + 1);
    if (i < kMaxNamed) picture.line({frame.x + 10, y - 4}, {frame.x + 10 + kSwatch, y - 4}, {.stroke = ink_of(i), .width = 2.5, .dashes = dashes_of(i)});
    picture.text({frame.x + kSwatch + 18, y}, rows[i], {.size = kSize});
  }
}

void draw_panel(Picture& picture, const LossPanel& panel, double top) {
  const Box box{kLeft, top + kTop, kWidth - kLeft - kRight, kPanelHeight - kTop - kBottom};
  picture.text({kLeft, top + 24}, panel.title, {.size = 15, .bold = true});
  std::vector<std::vector<BandPoint>> bands;
  for (const PlotSeries& series : panel.series) bands.push_back(band_of(series.curves));
  const PlotAxes axes(box, bands, panel.score, panel.x_title);
  if (axes.empty()) {
    picture.rect(box, {.fill = Ink::panel, .stroke = Ink::rule, .radius = 8});
    picture.text({box.x + box.width / 2, box.y + box.height / 2}, "nothing was measured", {.size = 14, .ink = Ink::muted, .anchor = Anchor::middle});
    return;
  }
  axes.draw(picture);
  for (size_t i = 0; i < bands.size(); ++i) draw_band(picture, axes, bands[i], i);
  draw_legend(picture, box, panel, bands);
}

LossPanel panel_of(std::span<const RunGroup> groups, std::string title, LossPoints ExperimentRun::*curve, const Score& score = {}) {
  LossPanel panel{std::move(title), {}, score};
  for (const RunGroup& group : groups) {
    if (!score.is_loss() && group.score() != score) continue;
    PlotSeries series{group.name, {}};
    for (const ExperimentRun& run : group.runs) {
      if ((run.*curve).empty()) continue;
      series.curves.push_back(run.*curve);
      if (!is_agent_unit(run.unit) || run.units_per_step <= 0) continue;
      panel.x_title = "decisions";
      for (auto& [step, value] : series.curves.back()) step = std::llround(double(step) * run.units_per_step);
    }
    panel.series.push_back(std::move(series));
  }
  return panel;
}

}  // namespace

std::vector<BandPoint> band_of(std::span<const LossPoints> curves, int most) {
  size_t points = 0;
  int64_t first = INT64_MAX, last = INT64_MIN;
  for (const LossPoints& curve : curves) {
    points = std::max(points, curve.size());
    if (!curve.empty()) first = std::min(first, curve.front().first), last = std::max(last, curve.back().first);
  }
  std::vector<LossPoints> shown(curves.begin(), curves.end());
  if (points > size_t(most))
    for (LossPoints& curve : shown) curve = thinned(curve, first, last, most);
  std::set<int64_t> steps;
  for (const LossPoints& curve : shown)
    for (const auto& [step, loss] : curve) steps.insert(step);
  std::vector<BandPoint> band;
  for (const int64_t step : steps) {
    std::vector<double> values;
    for (const LossPoints& curve : shown)
      if (const auto value = value_at(curve, double(step))) values.push_back(*value);
    const MeanError m = mean_error(values);
    band.push_back({double(step), m.mean, m.error});
  }
  return band;
}

std::string loss_svg(const std::string& title, std::span<const LossPanel> panels) {
  Picture picture(kWidth, kHead + kPanelHeight * double(panels.size()) + kFoot, title,
                  "Curves over training steps; bands are one standard error of the mean over seeds");
  picture.text({kLeft, 42}, svg::fit(title, kWidth - kLeft - kRight, 21, true), {.size = 21, .bold = true});
  double top = kHead;
  for (const LossPanel& panel : panels) draw_panel(picture, panel, top), top += kPanelHeight;
  return picture.str();
}

LossPanel train_panel(std::span<const RunGroup> groups) { return panel_of(groups, "Training loss", &ExperimentRun::train); }
LossPanel validation_panel(std::span<const RunGroup> groups) { return panel_of(groups, "Validation loss", &ExperimentRun::validation); }

std::vector<LossPanel> score_panels(std::span<const RunGroup> groups) {
  const auto judged = std::find_if(groups.begin(), groups.end(), [](const RunGroup& group) { return !group.score().is_loss(); });
  if (judged == groups.end()) return {};
  const Score& score = judged->score();
  std::vector<LossPanel> panels = {panel_of(groups, "Validation " + score.name, &ExperimentRun::scores, score)};
  LossPanel training = panel_of(groups, "Training " + score.name, &ExperimentRun::train_score, score);
  training.names_last = true;  // only evaluations decide what is best
  if (std::any_of(training.series.begin(), training.series.end(), [](const PlotSeries& s) { return !s.curves.empty(); })) panels.push_back(std::move(training));
  return panels;
}

void write_loss_plots(const fs::path& out, const std::vector<fs::path>& run_folders) {
  std::vector<ExperimentRun> runs;
  for (const fs::path& folder : run_folders) runs.push_back(read_experiment_run(folder));
  const std::vector<RunGroup> groups = group_seeds(std::move(runs));
  const std::string title = groups.size() == 1 ? groups[0].name : fmt::format("{} runs", groups.size());
  write_atomically((out / "train_loss.svg").string(), loss_svg(title, std::vector{train_panel(groups)}));
  const std::vector<LossPanel> panels = score_panels(groups);
  const LossPanel validation = validation_panel(groups);
  if (panels.empty() || std::any_of(validation.series.begin(), validation.series.end(), [](const PlotSeries& s) { return !s.curves.empty(); }))
    write_atomically((out / "val_loss.svg").string(), loss_svg(title, std::vector{validation}));
  if (!panels.empty()) write_atomically((out / "score.svg").string(), loss_svg(title, panels));
}

}  // namespace ridge
