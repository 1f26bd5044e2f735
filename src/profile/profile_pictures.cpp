#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/format.h>

#include "base/svg.h"
#include "base/text.h"
#include "profile/roofline.h"
#include "profile/step_profile.h"

namespace ridge {
namespace {

using svg::Anchor;
using svg::Ink;
using svg::Paint;

constexpr double kSheet = 1080, kLeft = 96, kRight = 1052;

constexpr std::pair<std::string_view, Ink> kPhaseInks[] = {{"forward", Ink::blue},  {"backward", Ink::teal}, {"recomputed", Ink::amber},
                                                           {"update", Ink::violet}, {"reading", Ink::green}, {"evaluation", Ink::red}};
Ink ink_of(std::string_view phase) {
  for (const auto& [name, ink] : kPhaseInks)
    if (name == phase) return ink;
  return Ink::muted;
}

double length_of(const StepProfile& p) {
  double end = 1e-9;
  for (const KernelSpan& s : p.spans) end = std::max(end, s.end);
  return end;
}

// Ticks at round numbers of milliseconds.
void time_axis(svg::Picture& picture, double seconds, double y) {
  const double ms = 1e3 * seconds, rough = ms / 8, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (double factor : {5.0, 2.0, 1.0})
    if (factor * power >= rough) step = factor * power;
  for (double at = 0; at <= ms; at += step) {
    const double x = kLeft + at / ms * (kRight - kLeft);
    picture.line({x, y}, {x, y + 5}, {.stroke = Ink::muted});
    picture.text({x, y + 20}, fmt::format("{:.4g}", at), {.size = 12, .ink = Ink::muted, .anchor = Anchor::middle});
  }
  picture.text({kRight, y + 38}, "ms since the step began", {.size = 12, .ink = Ink::muted, .anchor = Anchor::end});
}

void legend(svg::Picture& picture, const StepProfile& p, double y) {
  double x = kLeft;
  for (const PhaseRow& phase : p.phases) {
    picture.rect({x, y - 10, 12, 12}, {.fill = ink_of(phase.name), .radius = 2});
    picture.text({x + 18, y}, phase.name, {.size = 13});
    x += 40 + svg::text_width(phase.name, 13);
  }
}

// Kernels of equal layers are one entry: transformer.h.0.mlp and transformer.h.3.mlp are transformer.h.*.mlp.
struct Family {
  std::string name, phase;
  double seconds = 0, least = 0;  // least: at the roof
  int kernels = 0;
};

std::string family_name(const KernelRow& k) {
  std::string text = k.layer;
  for (size_t at = 0; at < text.size(); ++at) {
    size_t end = at;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
    if (end > at && (at == 0 || text[at - 1] == '.') && (end == text.size() || text[end] == '.')) text.replace(at, end - at, "*");
  }
  return text.empty() ? k.name : fmt::format("{}  {}", text, k.name);
}

}  // namespace

std::string roofline_picture(const StepProfile& p) {
  Roofline r{
      .title = "Roofline", .subtitle = p.title, .slopes = {{"memory", 1e-9 * p.bytes_rate}}, .flats = {{"arithmetic", 1e-9 * p.flops_rate}}, .facts = {}};
  std::vector<Family> families;
  std::vector<size_t> family_of;
  for (const KernelRow& k : p.kernels) {
    auto at = std::find_if(families.begin(), families.end(), [&](const Family& f) { return f.phase == k.phase && f.name == family_name(k); });
    if (at == families.end()) at = families.insert(at, {family_name(k), k.phase});
    at->seconds += k.seconds, at->least += k.roof * k.seconds, ++at->kernels;
    family_of.push_back(size_t(at - families.begin()));
  }
  std::vector<size_t> order(families.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return families[a].seconds > families[b].seconds; });
  std::vector<size_t> place(families.size());
  constexpr size_t kListed = 12;
  for (size_t i = 0; i < order.size(); ++i) {
    const Family& f = families[order[i]];
    place[order[i]] = i;
    if (i < kListed)
      r.list.push_back({ink_of(f.phase), fmt::format("{} {}{}", f.phase, f.name, f.kernels > 1 ? fmt::format(" x {}", f.kernels) : ""),
                        fmt::format("{:.1f} % of the step, {:.0f} % of its roof", 100 * f.seconds / p.step_seconds, 100 * f.least / f.seconds)});
  }
  for (size_t i = 0; i < p.kernels.size(); ++i) {
    const KernelRow& k = p.kernels[i];
    if (!(k.flops > 0 && k.bytes > 0 && k.seconds > 0)) continue;
    const size_t number = place[family_of[i]];
    r.dots.push_back({.name = number < kListed ? std::to_string(number + 1) : "",
                      .intensity = k.flops / k.bytes,
                      .gflops = 1e-9 * k.flops / k.seconds,
                      .ink = ink_of(k.phase),
                      .share = k.seconds / p.step_seconds});
  }
  r.facts = {fmt::format("{:.3f} ms per step", 1e3 * p.step_seconds), fmt::format("{:.4f} TFLOP/s", p.tflops()),
             fmt::format("{:.0f} % of the roof", 100 * p.roof())};
  return to_svg(r);
}

std::string memory_picture(const StepProfile& p) {
  constexpr double kTop = 96, kBottom = 420;
  const double seconds = length_of(p);
  svg::Picture picture(kSheet, 480, "Memory over the step", p.title);
  picture.text({32, 40}, "Memory over the step", {.size = 22, .bold = true});
  picture.text({32, 62}, fmt::format("{}: values in the arena while each kernel runs, {} at the peak", p.title, size_text(p.live_bytes)),
               {.size = 13, .ink = Ink::muted});
  const double most = 1.08 * double(std::max({p.arena_bytes, p.live_bytes, int64_t(1)}));
  auto y = [&](double bytes) { return kBottom - bytes / most * (kBottom - kTop); };
  auto x = [&](double at) { return kLeft + std::clamp(at / seconds, 0.0, 1.0) * (kRight - kLeft); };
  for (int i = 0; i <= 4; ++i) {
    const double bytes = most * i / 4;
    picture.line({kLeft, y(bytes)}, {kRight, y(bytes)}, {.stroke = Ink::rule});
    picture.text({kLeft - 8, y(bytes) + 4}, size_text(int64_t(bytes)), {.size = 12, .ink = Ink::muted, .anchor = Anchor::end});
  }
  for (const KernelSpan& s : p.spans)
    picture.rect({x(s.begin), y(double(s.live_bytes)), std::max(0.6, x(s.end) - x(s.begin)), kBottom - y(double(s.live_bytes))},
                 {.fill = ink_of(s.phase), .opacity = 0.8});
  picture.line({kLeft, y(double(p.arena_bytes))}, {kRight, y(double(p.arena_bytes))}, {.stroke = Ink::red, .width = 1.5, .dashes = "6 4"});
  picture.text({kRight, y(double(p.arena_bytes)) - 6}, fmt::format("planned {}", size_text(p.arena_bytes)),
               {.size = 12, .ink = Ink::red, .anchor = Anchor::end});
  time_axis(picture, seconds, kBottom);
  legend(picture, p, 466);
  return picture.str();
}

std::string timeline_picture(const StepProfile& p) {
  constexpr double kTop = 90, kLane = 46, kZoomGap = 74;
  constexpr size_t kReadable = 250, kZoomed = 100;  // kernels
  const size_t lanes = p.spans.empty() ? 1 : std::max<size_t>(1, p.spans.front().busy.size());
  const bool zoomed = p.spans.size() > kReadable;
  const double seconds = length_of(p), height = kLane * double(lanes), bottom = kTop + height, below = zoomed ? height + kZoomGap - 34 : 0;
  svg::Picture picture(kSheet, bottom + 78 + below, "Timeline of a step", p.title);
  picture.text({32, 40}, "Timeline of a step", {.size = 22, .bold = true});
  picture.text({32, 62}, fmt::format("{}: a bar is as high as the share of a kernel's time that the core spends inside it", p.title),
               {.size = 13, .ink = Ink::muted});
  // The kernels between two moments.
  auto draw = [&](double from, double to, double lanes_top) {
    for (size_t t = 0; t < lanes; ++t) {
      const double top = lanes_top + kLane * double(t), lane = kLane - 10;
      picture.rect({kLeft, top, kRight - kLeft, lane}, {.fill = Ink::panel});
      picture.text({kLeft - 8, top + lane / 2 + 4}, p.threads ? fmt::format("core {}", t) : "stream", {.size = 13, .anchor = Anchor::end});
      for (const KernelSpan& s : p.spans) {
        if (s.begin < from || s.end > to) continue;
        const double length = s.end - s.begin, share = s.busy.empty() || length <= 0 ? 1 : std::clamp(s.busy[t] / length, 0.0, 1.0);
        const double x = kLeft + (s.begin - from) / (to - from) * (kRight - kLeft), width = std::max(0.5, length / (to - from) * (kRight - kLeft) - 0.3);
        picture.rect({x, top + (1 - share) * lane, width, share * lane}, {.fill = ink_of(s.phase)});
        const std::string& words = s.layer.empty() ? s.name : s.layer;
        if (t == 0 && share * lane > 12 && width > 30) picture.text({x + 3, top + lane - 4}, svg::fit(words, width - 6, 10), {.size = 10, .ink = Ink::paper});
      }
    }
  };
  draw(0, seconds, kTop);
  time_axis(picture, seconds, bottom);
  if (zoomed) {
    const size_t first = p.spans.size() / 2 - kZoomed / 2;
    const double from = p.spans[first].begin, to = p.spans[first + kZoomed - 1].end, top = bottom + kZoomGap - 14;
    auto x = [&](double at) { return kLeft + at / seconds * (kRight - kLeft); };
    picture.rect({x(from), bottom - 7, x(to) - x(from), 4}, {.fill = Ink::text});
    draw(from, to, top);
    picture.text({kRight, top + height + 8}, fmt::format("marked above: {} kernels from {:.3f} to {:.3f} ms", kZoomed, 1e3 * from, 1e3 * to),
                 {.size = 12, .ink = Ink::muted, .anchor = Anchor::end});
  }
  legend(picture, p, bottom + 64 + below);
  return picture.str();
}

}  // namespace ridge
