#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/error.h"
#include "base/text.h"
#include "profile/step_profile.h"

namespace ridge {
namespace {

using Json = nlohmann::ordered_json;

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }
double share_of(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string head_text(const StepProfile& p) {
  std::string text = fmt::format("{}: {:.3f} ms per step, median of {} without profiling (10th to 90th percentile {:.3f} to {:.3f})\n", p.title,
                                 1e3 * p.step_seconds, p.unprofiled, 1e3 * p.low_seconds, 1e3 * p.high_seconds);
  return text + fmt::format("{} recorded, {:.3f} ms each\n\n", counted(p.recorded, "step"), 1e3 * p.recorded_seconds);
}

std::string compute_text(const StepProfile& p) {
  std::string text = fmt::format("Compute   {:.4f} TFLOP/s, {:.4g} GFLOP per step\n", p.tflops(), 1e-9 * p.flops);
  auto line = [&](const std::string& what, double seconds, const std::string& more = {}) {
    text += fmt::format("  {:<14} {:>10.3f} ms {:>9}{}\n", what, 1e3 * seconds, percent(share_of(seconds, p.step_seconds)), more);
  };
  for (const PhaseRow& phase : p.phases) line(phase.name, phase.seconds, fmt::format("   {:.0f} kernels", phase.calls));
  line("between kernels", p.gap_seconds);
  line("data wait", p.data_seconds);
  line("unattributed", p.unattributed());
  return text;
}

std::string memory_text(const StepProfile& p) {
  std::string text = fmt::format("Memory    {} of values at the peak of a step, in an arena of {}; {} planned, {} held by the process now\n",
                                 size_text(p.live_bytes), size_text(p.arena_bytes), size_text(p.planned_bytes), size_text(p.process_bytes));
  text += fmt::format("  {:.2f} GB/s, {:.4g} MB per step; {:.0f} allocations from the pool and a heap that grows by {:.0f} bytes per step\n",
                      1e-9 * p.bandwidth(), 1e-6 * p.bytes, p.allocations, p.heap_growth);
  if (p.pool_requests > 0)
    text += fmt::format("  buffer pool: {} requests, {} from freed memory; {} held, {} at its peak\n", grouped(p.pool_requests), grouped(p.pool_reuses),
                        size_text(p.pool_bytes), size_text(p.pool_peak));
  for (size_t i = 0; i < std::min<size_t>(5, p.peak.size()); ++i) text += fmt::format("  {:>10}  {}\n", size_text(p.peak[i].bytes), p.peak[i].name);
  return text;
}

std::string hardware_text(const StepProfile& p) {
  std::string text = fmt::format("Hardware  {:.0f} launches in {:.0f} programs per step", p.launches, p.programs);
  if (p.flops_rate > 0)
    text += fmt::format("; {} of the roof ({:.4g} GFLOP/s, {:.4g} GB/s measured)", percent(p.roof()), 1e-9 * p.flops_rate, 1e-9 * p.bytes_rate);
  text += "\n";
  for (size_t i = 0; i < p.busy.size(); ++i) text += fmt::format("  core {:<3} {:>7} inside kernels\n", i, percent(p.busy[i]));
  if (p.busy.empty()) text += fmt::format("  stream   {:>7} inside kernels\n", percent(p.utilization()));
  if (const std::string remark = p.remark(); !remark.empty()) text += fmt::format("  {}\n", wrap("note: " + remark, 110, 2));
  return text;
}

std::string stability_text(const StepProfile& p) {
  if (p.ranges.empty()) return {};
  std::string text = "Stability ";
  const auto bad = std::find_if(p.ranges.begin(), p.ranges.end(), [](const ValueRange& r) { return r.bad > 0; });
  if (bad == p.ranges.end())
    text += fmt::format("all values of {} are finite\n", counted(int64_t(p.ranges.size()), "tensor"));
  else
    text += fmt::format("{} not finite, first in {} ({}, {})\n", counted(bad->bad, "value"), bad->tensor, bad->phase, or_dash(bad->layer));
  if (p.examined.empty()) return text;
  const ExaminedStep &first = p.examined.front(), &last = p.examined.back();
  text += fmt::format("  {:<32} {:>27} {:>14}{}\n", "layer", "forward values", "gradient norm",
                      p.examined.size() > 1 ? fmt::format("   in step {}: {:>14} {:>14}", first.step, "values", "gradient norm") : "");
  for (const LayerRange& l : last.layers) {
    if (l.low > l.high && l.gradient_norm < 0) continue;
    auto range = [](const LayerRange& r) { return r.low > r.high ? std::string("-") : fmt::format("{:.4g} to {:.4g}", r.low, r.high); };
    auto norm = [](const LayerRange& r) { return r.gradient_norm < 0 ? std::string("-") : fmt::format("{:.4g}", r.gradient_norm); };
    text += fmt::format("  {:<32} {:>27} {:>14}", cut(or_dash(l.layer), 32), range(l), norm(l));
    const auto then = std::find_if(first.layers.begin(), first.layers.end(), [&](const LayerRange& r) { return r.layer == l.layer; });
    if (p.examined.size() > 1 && then != first.layers.end()) text += fmt::format("   {:>26} {:>14}", range(*then), norm(*then));
    text += "\n";
  }
  return text +
         fmt::format("  {} examined, the last of them step {}; gradients are sums over the batch\n", counted(int64_t(p.examined.size()), "step"), last.step);
}

std::string kinds_text(const StepProfile& p) {
  std::string text = fmt::format("{:>9} {:>8} {:>7} {:>7}  {:<10} {}\n", "ms", "share", "calls", "roof", "phase", "kind of kernel, all layers together");
  for (const KindRow& r : p.kinds()) {
    const double share = share_of(r.seconds, p.step_seconds);
    if (share < 0.01) break;
    text +=
        fmt::format("{:>9.3f} {:>8} {:>7.4g} {:>7}  {:<10} {}{}\n", 1e3 * r.seconds, percent(share), r.calls, r.roof > 0 ? fmt::format("{:.2f}", r.roof) : "-",
                    r.phase, r.kind, r.roof > 0 && r.roof < kLowRoof && share > kHotShare ? fmt::format("; below {:.0f} % of its roof", 100 * kLowRoof) : "");
  }
  return text;
}

std::string row_name(const KernelRow& k) { return fmt::format("{} {} {}", k.phase, or_dash(k.layer), k.name); }

}  // namespace

std::string KernelRow::advice() const {
  if (bound.empty()) return {};
  if (roof >= 0.8) return roof > 1.05 ? "its data comes from caches" : "at its roof";
  if (bound == "overhead") return "too small to fill the machine: a larger batch, or fewer and larger kernels";
  if (bound == "memory")
    return roof >= 0.5 ? "moves its bytes well: fuse it with a neighbour" : "moves its bytes slowly: layout, or too little work per thread";
  return roof >= 0.5 ? "a narrower number format would help" : "below its roof: shapes that fill tiles, or a narrower number format";
}

double StepProfile::utilization() const {
  if (busy.empty()) return step_seconds > 0 ? std::min(1.0, kernel_seconds / step_seconds) : 0;
  double sum = 0;
  for (double b : busy) sum += b;
  return sum / double(busy.size());
}

std::string StepProfile::remark() const {
  constexpr double kRounding = 1.005;  // would be shown as more than 100 %
  std::string text;
  if (const double shares = share_of(kernel_seconds + gap_seconds + data_seconds, step_seconds); shares > kRounding)
    text = fmt::format(
        "recorded steps took longer than unprofiled ones, next to other programs or because they were recorded: the shares of a step add up to "
        "{:.0f} %; profile again on a quiet machine",
        100 * shares);
  if (roof() > kRounding)
    text +=
        fmt::format("{}the step is faster than the measured ceilings allow, so these are too low: ridge probe measures them again", text.empty() ? "" : "; ");
  return text;
}

double StepProfile::roof() const {
  double least = 0;
  for (const KernelRow& k : kernels) least += k.roof * k.seconds;
  return step_seconds > 0 ? least / step_seconds : 0;
}

std::vector<KindRow> StepProfile::kinds() const {
  std::vector<KindRow> rows;
  for (const KernelRow& k : kernels) {  // "matmul+3", "map[5]": the kind is the word in front
    const std::string kind = k.name.substr(0, k.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"));
    auto at = std::find_if(rows.begin(), rows.end(), [&](const KindRow& r) { return r.kind == kind && r.phase == k.phase; });
    if (at == rows.end()) at = rows.insert(at, {kind, k.phase});
    at->calls += k.calls, at->seconds += k.seconds, at->roof += k.roof * k.seconds;
  }
  for (KindRow& r : rows) r.roof = r.seconds > 0 ? r.roof / r.seconds : 0;
  std::stable_sort(rows.begin(), rows.end(), [](const KindRow& a, const KindRow& b) { return a.seconds > b.seconds; });
  return rows;
}

std::string profile_text(const StepProfile& p, int rows) {
  std::string text = head_text(p) + compute_text(p) + "\n" + memory_text(p) + "\n" + hardware_text(p) + "\n";
  if (const std::string stability = stability_text(p); !stability.empty()) text += stability + "\n";
  if (!p.kernels.empty()) text += kinds_text(p) + "\n";
  text += fmt::format("{:>9} {:>8} {:>7} {:>10} {:>8} {:>8} {:>7}  {:<10} {:<10} {:<28} {}\n", "ms", "share", "calls", "MFLOP", "MB", "GFLOP/s", "roof",
                      "bound", "phase", "layer", "kernel");
  double rest = 0;
  for (size_t i = 0; i < p.kernels.size(); ++i) {
    const KernelRow& k = p.kernels[i];
    if (i >= size_t(rows)) {
      rest += k.seconds;
      continue;
    }
    const std::string advice = k.advice();
    text += fmt::format("{:>9.3f} {:>8} {:>7.4g} {:>10.4g} {:>8.4g} {:>8.4g} {:>7}  {:<10} {:<10} {:<28} {}{}\n", 1e3 * k.seconds,
                        percent(share_of(k.seconds, p.step_seconds)), k.calls, 1e-6 * k.flops, 1e-6 * k.bytes, k.seconds > 0 ? 1e-9 * k.flops / k.seconds : 0,
                        k.roof > 0 ? fmt::format("{:.2f}", k.roof) : "-", or_dash(k.bound), k.phase, cut(or_dash(k.layer), 28), k.name,
                        advice.empty() ? "" : "; " + advice);
  }
  if (rest > 0)
    text += fmt::format("{:>9.3f} {:>8}  {} more\n", 1e3 * rest, percent(share_of(rest, p.step_seconds)), counted(int64_t(p.kernels.size()) - rows, "kernel"));
  return text;
}

std::string profile_json(const StepProfile& p) {
  Json j;
  j["profile"] = 1, j["title"] = p.title, j["threads"] = p.threads, j["recorded_steps"] = p.recorded, j["unprofiled_steps"] = p.unprofiled;
  j["compute"] = {{"step_seconds", p.step_seconds},
                  {"low_seconds", p.low_seconds},
                  {"high_seconds", p.high_seconds},
                  {"recorded_seconds", p.recorded_seconds},
                  {"kernel_seconds", p.kernel_seconds},
                  {"gap_seconds", p.gap_seconds},
                  {"data_seconds", p.data_seconds},
                  {"unattributed_seconds", p.unattributed()},
                  {"flops", p.flops},
                  {"tflops", p.tflops()}};
  for (const PhaseRow& phase : p.phases) j["compute"]["phases"].push_back({{"name", phase.name}, {"seconds", phase.seconds}, {"kernels", phase.calls}});
  j["memory"] = {{"planned_bytes", p.planned_bytes},
                 {"arena_bytes", p.arena_bytes},
                 {"peak_bytes", p.live_bytes},
                 {"process_bytes", p.process_bytes},
                 {"bytes", p.bytes},
                 {"bandwidth", p.bandwidth()},
                 {"heap_growth", p.heap_growth},
                 {"allocations", p.allocations},
                 {"pool_requests", p.pool_requests},
                 {"pool_reuses", p.pool_reuses},
                 {"pool_bytes", p.pool_bytes},
                 {"pool_peak", p.pool_peak}};
  j["memory"]["at_peak"] = Json::array();
  for (const LiveValue& value : p.peak) j["memory"]["at_peak"].push_back({{"name", value.name}, {"bytes", value.bytes}});
  j["hardware"] = {
      {"launches", p.launches}, {"programs", p.programs},           {"utilization", p.utilization()},   {"cores", p.busy},
      {"roof", p.roof()},       {"flops_per_second", p.flops_rate}, {"bytes_per_second", p.bytes_rate}, {"exponentials_per_second", p.exponentials_rate}};
  if (const std::string remark = p.remark(); !remark.empty()) j["remark"] = remark;
  j["memory"]["over_step"] = Json::array();  // of one recorded step: when a kernel begins, and the values in the arena while it runs
  for (const KernelSpan& s : p.spans) j["memory"]["over_step"].push_back({s.begin, s.live_bytes});
  j["stability"] = {{"tensors", Json::array()}, {"gradients", Json::array()}, {"over_time", Json::array()}};
  for (const ExaminedStep& e : p.examined) {
    Json layers = Json::array();
    for (const LayerRange& l : e.layers) {
      Json& layer = layers.emplace_back(Json{{"layer", l.layer}});
      if (l.low <= l.high) layer["low"] = l.low, layer["high"] = l.high;
      if (l.gradient_norm >= 0) layer["gradient_norm"] = l.gradient_norm;
      layer["not_finite"] = l.bad;
    }
    j["stability"]["over_time"].push_back({{"step", e.step}, {"layers", layers}});
  }
  for (const ValueRange& r : p.ranges)
    j["stability"]["tensors"].push_back(
        {{"tensor", r.tensor}, {"layer", r.layer}, {"phase", r.phase}, {"low", r.low}, {"high", r.high}, {"not_finite", r.bad}});
  for (const GradientNorm& g : p.gradients) j["stability"]["gradients"].push_back({{"parameter", g.parameter}, {"norm", g.norm}});
  j["kinds"] = Json::array();
  for (const KindRow& r : p.kinds())
    j["kinds"].push_back({{"kind", r.kind},
                          {"phase", r.phase},
                          {"calls", r.calls},
                          {"seconds", r.seconds},
                          {"roof", r.roof},
                          {"low", r.roof > 0 && r.roof < kLowRoof && share_of(r.seconds, p.step_seconds) > kHotShare}});
  j["kernels"] = Json::array();
  for (const KernelRow& k : p.kernels)
    j["kernels"].push_back({{"name", k.name},
                            {"layer", k.layer},
                            {"phase", k.phase},
                            {"calls", k.calls},
                            {"seconds", k.seconds},
                            {"share", share_of(k.seconds, p.step_seconds)},
                            {"flops", k.flops},
                            {"bytes", k.bytes},
                            {"roof", k.roof},
                            {"bound", k.bound},
                            {"advice", k.advice()}});
  return j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string profile_trace(const StepProfile& p) {
  Json events = Json::array();
  const size_t lanes = p.spans.empty() ? 0 : std::max<size_t>(1, p.spans.front().busy.size());
  for (size_t t = 0; t < lanes; ++t)
    events.push_back({{"ph", "M"}, {"name", "thread_name"}, {"pid", 1}, {"tid", t}, {"args", {{"name", p.threads ? fmt::format("core {}", t) : "stream"}}}});
  for (const KernelSpan& s : p.spans) {
    for (size_t t = 0; t < lanes; ++t) {
      const double seconds = s.busy.empty() ? s.end - s.begin : std::min(s.busy[t], s.end - s.begin);
      if (seconds <= 0) continue;
      events.push_back({{"ph", "X"},
                        {"name", s.name},
                        {"cat", s.phase},
                        {"pid", 1},
                        {"tid", t},
                        {"ts", 1e6 * s.begin},
                        {"dur", 1e6 * seconds},
                        {"args", {{"layer", s.layer}, {"phase", s.phase}}}});
    }
    events.push_back({{"ph", "C"}, {"name", "values in the arena"}, {"pid", 1}, {"ts", 1e6 * s.begin}, {"args", {{"bytes", s.live_bytes}}}});
  }
  return Json{{"displayTimeUnit", "ms"}, {"traceEvents", events}}.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string compare_profiles(const StepProfile& p, const std::string& earlier, int rows) {
  const Json j = Json::parse(earlier, nullptr, false);
  if (!j.is_object() || !j.contains("profile") || !j.contains("kernels") || !j["kernels"].is_array() || !j.contains("compute"))
    fail(ErrorCode::io, "[profile] this is not a profile; write one with ridge profile TASK --json > FILE");
  std::map<std::string, double> before;
  for (const Json& k : j["kernels"])
    before[row_name({.name = k.value("name", ""), .layer = k.value("layer", ""), .phase = k.value("phase", ""), .bound = {}})] += k.value("seconds", 0.0);
  struct Change {
    std::string name;
    double before, now;
  };
  std::vector<Change> changes;
  for (const KernelRow& k : p.kernels) {
    const auto found = before.find(row_name(k));
    changes.push_back({row_name(k), found == before.end() ? 0 : found->second, k.seconds});
    if (found != before.end()) before.erase(found);
  }
  for (const auto& [name, seconds] : before) changes.push_back({name, seconds, 0});
  std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) { return std::abs(a.now - a.before) > std::abs(b.now - b.before); });
  auto line = [](const std::string& name, double was, double is) {
    return fmt::format("{:>11.3f} {:>11.3f} {:>+11.3f} {:>9}  {}\n", 1e3 * was, 1e3 * is, 1e3 * (is - was),
                       was > 0 && is > 0 ? fmt::format("{:+.1f} %", 100 * (is / was - 1))
                       : was > 0         ? "gone"
                       : is > 0          ? "new"
                                         : "",
                       name);
  };
  std::string text = fmt::format("{:>11} {:>11} {:>11} {:>9}\n", "before ms", "now ms", "difference", "");
  text += line("the whole step", j["compute"].value("step_seconds", 0.0), p.step_seconds);
  text += line("between kernels", j["compute"].value("gap_seconds", 0.0), p.gap_seconds);
  text += line("data wait", j["compute"].value("data_seconds", 0.0), p.data_seconds);
  text += line("unattributed", j["compute"].value("unattributed_seconds", 0.0), p.unattributed());
  for (size_t i = 0; i < std::min(changes.size(), size_t(rows)); ++i) text += line(changes[i].name, changes[i].before, changes[i].now);
  return text;
}

Verdict check_profile(const StepProfile& p, const std::vector<std::string>& wanted) {
  Verdict verdict;
  verdict.text = fmt::format("{:<18} {:>14} {:>14}\n", "check", "measured", "asked");
  for (const std::string& word : wanted) {
    const size_t sign = word.find('=');
    const std::string key = word.substr(0, sign), value = sign == std::string::npos ? "" : word.substr(sign + 1);
    const bool memory = key == "max_memory";
    char* end = nullptr;
    const std::optional<int64_t> bytes = memory ? bytes_of(value) : std::nullopt;
    const double asked = memory ? double(bytes.value_or(-1)) : std::strtod(value.c_str(), &end);
    if (value.empty() || (memory ? !bytes : *end != 0) || !(asked >= 0))
      fail(ErrorCode::usage, "[profile] '{}' is not a check; valid: min_tflops=X min_bandwidth=GB/s min_utilization=SHARE max_memory=SIZE", word);
    double measured = 0;
    if (key == "min_tflops")
      measured = p.tflops();
    else if (key == "min_bandwidth")
      measured = 1e-9 * p.bandwidth();
    else if (key == "min_utilization")
      measured = p.utilization();
    else if (memory)
      measured = double(std::max(p.process_bytes, p.planned_bytes));
    else
      fail(ErrorCode::usage, "[profile] unknown check '{}'; valid: min_tflops, min_bandwidth, min_utilization, max_memory", key);
    const bool kept = memory ? measured <= asked : measured >= asked;
    verdict.kept &= kept;
    auto shown = [&](double number) { return memory ? size_text(int64_t(number)) : fmt::format("{:.4g}", number); };
    verdict.text += fmt::format("{:<18} {:>14} {:>14}  {}\n", key, shown(measured), shown(asked), kept ? "kept" : "missed");
  }
  return verdict;
}

}  // namespace ridge
