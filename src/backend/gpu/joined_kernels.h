// Short kernels whose work the kernel behind them does as well, which saves a launch: a norm that every block of a product repeats, rows that attention adds to
// its keys and values.
#pragma once
#include <memory>
#include <vector>

#include "backend/gpu/compiled.h"

namespace ridge::gpu {

struct JoinedKernels {
  std::vector<size_t> kernels;     // in order; the last one does the work of all
  std::unique_ptr<Kernel> kernel;  // operands: those of the first, then those of the second, …
};

// Skips kernels that others have taken (by index). What the kernels use lives until the last one.
std::vector<JoinedKernels> find_joined_kernels(Program& program, const std::vector<char>& taken, const KernelMaker& maker);

}  // namespace ridge::gpu
