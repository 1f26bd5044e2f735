// Runs the tile kernel on a group's memory and compares it with the group's values, point by point.
#pragma once
#include <random>

#include "backend/cpu/tile_kernel.h"
#include "support/tile_case.h"

namespace ridge::cpu::tile_test {

using namespace ridge::tile_test;

// How the units of a task are distributed.
enum class Split { whole, single_backwards, thirds };
struct Outcome {
  bool fault = false;
  int64_t value = 0, limit = 0;
  size_t tasks = 0;
  int64_t units = 0;  // of the task that has the most
};
Outcome run(std::span<const TileGroup> groups, std::vector<Memory>& memory, Split split = Split::whole, int threads = 1, const KernelVariant& variant = {});
inline Outcome run(const TileGroup& group, std::vector<Memory>& memory, Split split = Split::whole, int threads = 1) {
  return run({&group, 1}, memory, split, threads);
}

// Runs the group on copies of the memory and compares all operands with the evaluator: |difference| <= tolerance * (1 + |value|).
void check(const TileGroup& group, const std::vector<Memory>& memory, double tolerance);

}  // namespace ridge::cpu::tile_test
