// The performance that chips should reach, by name, and how measurements compare with it.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "measure/probe.h"

namespace ridge {

struct ChipTarget {
  std::string chip;            // "Apple M1 Pro"
  double tflops = 0, gbs = 0;  // fp32 rate, and memory bandwidth
};

std::span<const ChipTarget> known_chips();               // smallest first
const ChipTarget* find_chip(std::string_view cpu_name);  // null: unknown; "Apple M1 Pro" is not "Apple M1"

// One comparison of `ridge probe --check`.
struct ProbeTarget {
  std::string what;  // "fp32 rate"
  double wanted = 0, measured = 0;
  std::string unit;
  std::string source;  // "target of Apple M1", "min_tflops"
  bool met() const { return measured >= wanted; }
};
struct Wanted {
  std::optional<double> tflops = {}, gbs = {};  // empty: the chip's target
  std::optional<int64_t> memory_bytes = {};     // empty: none
};
std::vector<ProbeTarget> targets(const Machine& machine, const MachineCeilings& ceilings, const Wanted& wanted);  // empty: there are none
std::string targets_text(std::span<const ProbeTarget> targets);                                                   // a table; the first line is its header

double best_tflops(const MachineCeilings& ceilings);      // fp32, of the CPU or a GPU
double best_memory_gbs(const MachineCeilings& ceilings);  // of the CPU's memory or a GPU's

}  // namespace ridge
