#include "machine/chips.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"

namespace ridge {
namespace {

// Each chip is about twice the one before, so a chip's place in this list is a logarithm.
const ChipGuess kChips[] = {
    {"Apple M1", {32, 64}, {64, 128}, 64, 2, 2, 50, "guess for Apple M1"},
    {"Apple M1 Pro", {64, 128}, {128, 256}, 128, 2, 4, 150, "guess for Apple M1 Pro"},
    {"Apple M1 Max", {128, 256}, {256, 512}, 256, 2, 8, 300, "guess for Apple M1 Max"},
    {"Apple M1 Ultra", {256, 512}, {512, 1024}, 512, 2, 16, 600, "guess for Apple M1 Ultra"},
};

// Where a value lies among the chips' values: 0 is the first chip, 1 the second; beyond the ends by the nearest pair's ratio.
double place_among_chips(double value, double ChipGuess::*field) {
  constexpr size_t kPairs = std::size(kChips) - 1;
  size_t pair = 0;
  while (pair + 1 < kPairs && value > kChips[pair + 1].*field) ++pair;
  const double low = kChips[pair].*field, high = kChips[pair + 1].*field;
  return double(pair) + std::log(value / low) / std::log(high / low);
}

int power_of_two(double value, int least) { return std::max(least, int(std::exp2(std::round(std::log2(value))))); }
int multiple(double value, int step) { return std::max(step, int(std::round(value / step)) * step); }

}  // namespace

std::span<const ChipGuess> known_chips() { return kChips; }

const ChipGuess* find_chip(std::string_view cpu_name) {
  for (const ChipGuess& chip : kChips)
    if (cpu_name == chip.chip) return &chip;
  return nullptr;
}

ChipGuess scaled_guess(double tflops, double gbs) {
  if (!(tflops > 0) || !(gbs > 0) || !std::isfinite(tflops) || !std::isfinite(gbs))
    fail(ErrorCode::value, "[chips] no guess from {} TFLOP/s and {} GB/s; both must be above 0", tflops, gbs);
  const double place = std::clamp(std::min(place_among_chips(tflops, &ChipGuess::tflops), place_among_chips(gbs, &ChipGuess::gbs)), -5.0, 10.0);
  const double scale = std::exp2(place);
  const ChipGuess& first = kChips[0];
  auto range = [&](const Range& r, auto round) { return Range{round(r.low * scale), round(r.high * scale)}; };
  ChipGuess guess{.chip = {},
                  .batch = range(first.batch, [](double x) { return power_of_two(x, 1); }),
                  .hidden = range(first.hidden, [](double x) { return multiple(x, 8); }),
                  .backbone_units = multiple(first.backbone_units * scale, 8),
                  .backbone_layers = first.backbone_layers,
                  .tflops = tflops,
                  .gbs = gbs,
                  .label = {}};
  guess.label = fmt::format("guess, scaled from Apple M1 by {} and {}", rate_text(1000 * tflops), bandwidth_text(gbs));
  return guess;
}

ChipGuess guess_for(std::string_view cpu_name, const MachineCeilings* measured) {
  if (const ChipGuess* chip = find_chip(cpu_name)) return *chip;
  if (measured)
    if (const double tflops = best_tflops(*measured), gbs = best_memory_gbs(*measured); tflops > 0 && gbs > 0) {
      ChipGuess guess = scaled_guess(tflops, gbs);
      guess.chip = cpu_name;
      guess.label += " measured";
      return guess;
    }
  ChipGuess guess = kChips[0];
  guess.chip = cpu_name;
  guess.label = "guess: those of Apple M1, as nothing is measured yet; ridge probe measures";
  return guess;
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

std::vector<Target> targets(const Machine& machine, const MachineCeilings& ceilings, const Wanted& wanted) {
  std::vector<Target> all;
  const ChipGuess* chip = find_chip(machine.topology.cpu_name);
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

}  // namespace ridge
