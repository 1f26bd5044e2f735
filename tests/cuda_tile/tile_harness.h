// Runs generated kernels on a group's memory and compares the results with the group's values, point by point.
#pragma once
#include "backend/cuda/make.h"
#include "support/cuda_device.h"
#include "support/tile_case.h"

namespace ridge::cuda::tile_test {

using namespace ridge::tile_test;

struct Outcome {
  FaultRecord fault;
  int launches = 0;
};
// shift: elements between every operand's start and the preceding multiple of 256 bytes.
Outcome run(std::span<const TileGroup> groups, std::vector<Memory>& memory, int shift = 0);
inline Outcome run(const TileGroup& group, std::vector<Memory>& memory, int shift = 0) { return run({&group, 1}, memory, shift); }
Outcome run(Kernel& kernel, std::vector<Memory>& memory, int shift = 0);

// Starts compiling the group's kernels.
void ask(std::span<const TileGroup> groups);

// Runs the group on a copy of the memory and compares: |difference| <= tolerance * (1 + |value|).
void check(const TileGroup& group, const std::vector<Memory>& memory, double tolerance, int shift = 0);

}  // namespace ridge::cuda::tile_test
