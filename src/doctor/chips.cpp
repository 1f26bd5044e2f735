#include "doctor/chips.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace ridge {
namespace {

const ChipTarget kChips[] = {{"Apple M1", 2, 50}, {"Apple M1 Pro", 4, 150}, {"Apple M1 Max", 8, 300}, {"Apple M1 Ultra", 16, 600}};

}  // namespace

std::span<const ChipTarget> known_chips() { return kChips; }

const ChipTarget* find_chip(std::string_view cpu_name) {
  for (const ChipTarget& chip : kChips)
    if (cpu_name == chip.chip) return &chip;
  return nullptr;
}

double best_tflops(const MachineCeilings& ceilings) {
  double best = 0;
  if (const RateCeiling* r = ceilings.rate(DType::f32)) best = r->gflops.median;
  for (const GpuCeilings& gpu : ceilings.gpus)
    for (const GpuCeilings::Rate& r : gpu.matmul)
      if (r.precision == Precision::fp32) best = std::max(best, r.gflops.median);
  return 1e-3 * best;
}

double best_memory_gbs(const MachineCeilings& ceilings) {
  double best = 0;
  for (Movement movement : {Movement::copy, Movement::triad, Movement::read})
    if (const BandwidthCeiling* b = ceilings.bandwidth("memory", movement)) best = std::max(best, b->gbs.median);
  for (const GpuCeilings& gpu : ceilings.gpus) best = std::max(best, gpu.copy_gbs.median);
  return best;
}

std::vector<ProbeTarget> targets(const Machine& machine, const MachineCeilings& ceilings, const Wanted& wanted) {
  std::vector<ProbeTarget> all;
  const ChipTarget* chip = find_chip(machine.topology.cpu_name);
  auto add = [&](const char* what, std::optional<double> own, const char* key, double chips, double measured, const char* unit) {
    if (own)
      all.push_back({what, *own, measured, unit, key});
    else if (chip && chips > 0)
      all.push_back({what, chips, measured, unit, "target of " + chip->chip});
  };
  add("fp32 rate", wanted.tflops, "min_tflops", chip ? chip->tflops : 0, best_tflops(ceilings), "TFLOP/s");
  add("memory bandwidth", wanted.gbs, "min_bandwidth", chip ? chip->gbs : 0, best_memory_gbs(ceilings), "GB/s");
  constexpr double kGiB = 0x1p30;
  if (wanted.memory_bytes) add("usable memory", double(*wanted.memory_bytes) / kGiB, "memory_budget", 0, double(machine.limits.memory_available) / kGiB, "GiB");
  return all;
}

std::string targets_text(std::span<const ProbeTarget> targets) {
  std::vector<std::array<std::string, 5>> rows = {{"target", "wanted", "measured", "", "source"}};
  for (const ProbeTarget& t : targets)
    rows.push_back({t.what, fmt::format("{:.4g} {}", t.wanted, t.unit), fmt::format("{:.4g} {}", t.measured, t.unit), t.met() ? "met" : "missed", t.source});
  std::array<size_t, 5> widths{};
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows)
    text += fmt::format("{:<{}}  {:>{}}  {:>{}}  {:<{}}  {}\n", row[0], widths[0], row[1], widths[1], row[2], widths[2], row[3], widths[3], row[4]);
  return text;
}

}  // namespace ridge
