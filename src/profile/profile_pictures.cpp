#include <algorithm>
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

}  // namespace

std::string roofline_picture(const StepProfile& p) {
  Roofline r{
      .title = "Roofline", .subtitle = p.title, .slopes = {{"memory", 1e-9 * p.bytes_rate}}, .flats = {{"arithmetic", 1e-9 * p.flops_rate}}, .facts = {}};
  size_t named = 0;
  for (const KernelRow& k : p.kernels) {
    if (!(k.flops > 0 && k.bytes > 0 && k.seconds > 0)) continue;
    r.dots.push_back({named++ < 8 ? fmt::format("{} {}", k.layer.empty() ? k.phase : k.layer, k.name) : "", k.flops / k.bytes, 1e-9 * k.flops / k.seconds});
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
  constexpr double kTop = 90, kLane = 46;
  const size_t lanes = p.spans.empty() ? 1 : std::max<size_t>(1, p.spans.front().busy.size());
  const double seconds = length_of(p), bottom = kTop + kLane * double(lanes);
  svg::Picture picture(kSheet, bottom + 78, "Timeline of a step", p.title);
  picture.text({32, 40}, "Timeline of a step", {.size = 22, .bold = true});
  picture.text({32, 62}, fmt::format("{}: a bar is as high as the share of a kernel's time that the core spends inside it", p.title),
               {.size = 13, .ink = Ink::muted});
  for (size_t t = 0; t < lanes; ++t) {
    const double top = kTop + kLane * double(t), height = kLane - 10;
    picture.rect({kLeft, top, kRight - kLeft, height}, {.fill = Ink::panel});
    picture.text({kLeft - 8, top + height / 2 + 4}, p.threads ? fmt::format("core {}", t) : "stream", {.size = 13, .anchor = Anchor::end});
    for (const KernelSpan& s : p.spans) {
      const double length = s.end - s.begin, share = s.busy.empty() || length <= 0 ? 1 : std::clamp(s.busy[t] / length, 0.0, 1.0);
      const double x = kLeft + s.begin / seconds * (kRight - kLeft), width = std::max(0.5, length / seconds * (kRight - kLeft) - 0.3);
      picture.rect({x, top + (1 - share) * height, width, share * height}, {.fill = ink_of(s.phase)});
      if (const std::string& words = s.layer.empty() ? s.name : s.layer; t == 0 && svg::text_width(words, 10) < width - 4)
        picture.text({x + 2, top + height - 4}, words, {.size = 10, .ink = Ink::paper});
    }
  }
  time_axis(picture, seconds, bottom);
  legend(picture, p, bottom + 64);
  return picture.str();
}

}  // namespace ridge
