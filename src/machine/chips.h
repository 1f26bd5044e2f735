// First guesses for chips by name: sizes to plan with before anything is measured, and what such a chip should reach. Nothing here is a
// measurement, and whatever is decided by it says so.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "machine/probe.h"

namespace ridge {

struct Range {
  int low = 0, high = 0;
  bool operator==(const Range&) const = default;
};

struct ChipGuess {
  std::string chip;  // "Apple M1 Pro"
  Range batch, hidden;
  int backbone_units = 0, backbone_layers = 0;
  double tflops = 0, gbs = 0;  // what it should reach; of a scaled guess, what was measured
  std::string label;           // "guess for Apple M1 Pro": to be printed with every number above
};

std::span<const ChipGuess> known_chips();                                                   // smallest first
const ChipGuess* find_chip(std::string_view cpu_name);                                      // null: not known; "Apple M1 Pro" is not "Apple M1"
ChipGuess scaled_guess(double tflops, double gbs);                                          // between and beyond the known chips, by whichever is scarcer
ChipGuess guess_for(std::string_view cpu_name, const MachineCeilings* measured = nullptr);  // null: nothing measured yet

// What `ridge probe --check` compares.
struct Target {
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
std::vector<Target> targets(const Machine& machine, const MachineCeilings& ceilings, const Wanted& wanted);  // empty: there are none

double best_tflops(const MachineCeilings& ceilings);      // fp32, of the CPU or a GPU
double best_memory_gbs(const MachineCeilings& ceilings);  // of the CPU's memory or a GPU's

}  // namespace ridge
