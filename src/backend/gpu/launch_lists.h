// Kernels that wait for nothing and do the same to different tensors, such as the sums of all gradients of biases after a loop: the last of them does the work
// of all in its launches.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "backend/gpu/compiled.h"

namespace ridge::gpu {

struct LaunchList {
  std::vector<size_t> kernels;     // in the program's order; the last one does all the work
  std::unique_ptr<Kernel> kernel;  // operands: those of the first kernel, then those of the second, …
};

// Extends the lives of values that the last kernel of a list then reads. `alone` are the kernels as they run by themselves, null for loops. Kernels that are
// `taken` have no place in a list.
std::vector<LaunchList> find_launch_lists(Program& program, std::span<const std::unique_ptr<Kernel>> alone, const std::vector<char>& taken,
                                          const KernelMaker& maker);

}  // namespace ridge::gpu
