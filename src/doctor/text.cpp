// The doctor's report for a terminal: labels on the left, everything else wrapped to the remaining width.
#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "base/text.h"
#include "doctor/report.h"

namespace ridge {
namespace {

enum class Style { plain, bold, dim, warn, bad };

class Sheet {
 public:
  explicit Sheet(const ReportStyle& style) : style_(style) { style_.width = std::clamp(style.width, 40, 160); }

  void blank() { text_ += '\n'; }
  void heading(std::string_view words) { text_ += styled(words, Style::bold) + "\n"; }

  // A label with text to its right; further lines go below the text. If no words fit there, the text goes below the label.
  void row(std::string_view label, int indent, std::string_view words, Style style = Style::plain) {
    text_ += label;
    if (constexpr int kNarrow = 20, kBelow = 4; style_.width - indent < kNarrow && !words.empty()) {
      text_.erase(text_.find_last_not_of(' ') + 1);
      text_ += '\n';
      label = "", indent = kBelow;
    }
    if (!words.empty()) text_ += std::string(size_t(std::max(0, indent - display_width(label))), ' ') + styled(wrap(words, style_.width, indent), style);
    text_.erase(text_.find_last_not_of(' ') + 1);
    text_ += '\n';
  }

  std::string styled(std::string_view words, Style style) const {
    if (!style_.colours || style == Style::plain) return std::string(words);
    constexpr const char* kCodes[] = {"", "1", "2", "33", "31"};
    return fmt::format("\033[{}m{}\033[0m", kCodes[int(style)], words);
  }

  std::string str() && { return std::move(text_); }

 private:
  ReportStyle style_;
  std::string text_;
};

constexpr int kLabel = 11;

void add_machine(Sheet& sheet, const DoctorFacts& facts) {
  const Topology& topology = facts.machine.topology;
  const Health& health = facts.health;
  sheet.row("machine", kLabel, fmt::format("{} ({}, {})", topology.cpu_name.empty() ? "unknown CPU" : topology.cpu_name, topology.architecture, facts.isa));
  sheet.row("", kLabel, core_summary(topology));
  for (const CoreKind& kind : topology.kinds) {
    std::string text = cache_summary(kind);
    if (topology.kinds.size() > 1) text = fmt::format("{}: {:.2f}× speed ({}), {}", kind.name, kind.speed, kind.measured ? "measured" : "as reported", text);
    if (!text.empty()) sheet.row("", kLabel, text);
  }
  std::string system = health.system;
  if (!health.kernel.empty()) system += fmt::format(", kernel {}", health.kernel);
  if (!health.libc.empty()) system += fmt::format(", glibc {}", health.libc);
  if (health.virtual_machine) system += ", virtual machine";
  if (health.container) system += ", container";
  sheet.row("", kLabel, system);
  sheet.row(
      "memory", kLabel,
      topology.memory_bytes ? fmt::format("{}, {} available", size_text(topology.memory_bytes), size_text(facts.machine.limits.memory_available)) : "unknown");
}

void add_limits(Sheet& sheet, const DoctorFacts& facts) {
  const std::vector<std::string>& reasons = facts.machine.limits.reasons;
  if (reasons.empty()) sheet.row("limits", kLabel, "none: every core and all of the memory may be used");
  for (size_t i = 0; i < reasons.size(); ++i) sheet.row(i ? "" : "limits", kLabel, reasons[i]);
}

void add_gpus(Sheet& sheet, const DoctorReport& report) {
  const GpuScan& scan = report.facts.gpus;
  std::string label = "GPUs";
  for (const Gpu& gpu : scan.gpus) {
    std::string text = gpu.name;
    if (gpu.ordinal >= 0) text = fmt::format("cuda:{} {}", gpu.ordinal, gpu.name);
    if (const std::string summary = gpu_summary(gpu); !summary.empty()) text += ": " + summary;
    sheet.row(std::exchange(label, ""), kLabel, text);
    if (const std::string figures = measured_summary(report.facts, gpu); !figures.empty())
      sheet.row("", kLabel, fmt::format("measured: {} ({})", figures, measured_text(report.facts)));
  }
  if (scan.gpus.empty()) sheet.row(std::exchange(label, ""), kLabel, fmt::format("none: {}", scan.no_cuda));
  if (!scan.driver.empty())
    sheet.row(label, kLabel,
              fmt::format("NVIDIA driver {}{}", scan.driver, scan.cuda ? fmt::format(", CUDA {}.{}", scan.cuda / 1000, scan.cuda % 1000 / 10) : ""));
}

void add_figures(Sheet& sheet, const DoctorFacts& facts) {
  if (!facts.ceilings) {
    sheet.row("measured", kLabel, "nothing yet: run ridge probe");
    return;
  }
  const MachineCeilings& c = *facts.ceilings;
  std::string text;
  auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  for (auto [dtype, label] : {std::pair{DType::f32, "f32"}, {DType::bf16, "bf16"}})
    if (const RateCeiling* rate = c.rate(dtype)) add(fmt::format("{:.0f} GFLOP/s {}", rate->gflops.median, label));
  for (Movement movement : {Movement::copy, Movement::triad, Movement::read})
    if (const BandwidthCeiling* b = c.bandwidth("memory", movement)) add(fmt::format("{} {:.1f} GB/s", name(movement), b->gbs.median));
  if (!text.empty()) sheet.row("measured", kLabel, fmt::format("{} ({})", text, measured_text(facts)));
  sheet.row("", kLabel, "for plans: " + (facts.kernels.empty() ? std::string("nothing yet; the first plan or training measures its kernels") : facts.kernels));
}

void add_decisions(Sheet& sheet, const DoctorReport& report) {
  sheet.heading("Ridge would use");
  size_t width = 0;
  for (const Decision& d : report.decisions) width = std::max(width, d.value.size());
  for (const Decision& d : report.decisions) {
    const std::string label = fmt::format("  {:<10} {}", d.setting, d.value);
    std::string text = d.why;
    if (!d.decided_by.empty() && d.decided_by != "default" && text.find(d.decided_by) == std::string::npos) text += fmt::format(" [{}]", d.decided_by);
    if (!d.runner_up.empty()) text += fmt::format("; next: {}", d.runner_up);
    sheet.row(label, int(width) + 15, text, Style::dim);
  }
}

void add_budget(Sheet& sheet, const MemoryBudget& budget) {
  sheet.heading("Memory budget");
  for (const BudgetLine& line : budget.lines)
    sheet.row(fmt::format("  {:<22} {:>10}  ", line.what, size_text(line.bytes)), 37, line.source + (line.decides ? " ← decides" : ""), Style::dim);
  sheet.row(fmt::format("  {:<22} {:>10}  ", "budget", size_text(budget.bytes)), 37, "");
}

void add_precisions(Sheet& sheet, const DoctorReport& report) {
  sheet.heading(fmt::format("Number formats on {}", to_string(report.device.device)));
  for (const PrecisionFacts& facts : report.precisions) {
    const std::string support = std::string(name(facts.support)) + (facts.unstable ? ", unstable" : "");
    std::string text = facts.warning;
    if (text.empty() && facts.speed) text = fmt::format("{:.2f}× of fp32, measured", *facts.speed);
    sheet.row(fmt::format("  {:<10} {:<18} ",
                          facts.precision == report.precision.precision ? fmt::format("{} ←", name(facts.precision)) : name(facts.precision), support),
              32, text, Style::dim);
  }
}

void add_findings(Sheet& sheet, const DoctorReport& report) {
  sheet.heading(verdict(report));
  for (const Finding& f : report.findings) {
    const Style style = f.level == Finding::Level::error ? Style::bad : f.level == Finding::Level::warning ? Style::warn : Style::plain;
    const char* mark = f.level == Finding::Level::error ? "  ✗ " : f.level == Finding::Level::warning ? "  ! " : "  · ";
    sheet.row(mark, 4, finding_text(f), style);
    if (!f.remedy.empty()) sheet.row("    → ", 6, f.remedy, Style::dim);
  }
}

}  // namespace

std::string to_text(const DoctorReport& report, const ReportStyle& style) {
  Sheet sheet(style);
  sheet.heading(fmt::format("ridge doctor {}", report.facts.version));
  sheet.blank();
  add_machine(sheet, report.facts);
  add_limits(sheet, report.facts);
  add_gpus(sheet, report);
  add_figures(sheet, report.facts);
  sheet.blank();
  add_decisions(sheet, report);
  sheet.blank();
  add_budget(sheet, report.budget);
  sheet.blank();
  add_precisions(sheet, report);
  sheet.blank();
  add_findings(sheet, report);
  return std::move(sheet).str();
}

}  // namespace ridge
