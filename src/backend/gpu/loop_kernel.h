// A whole loop over time as one kernel.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "backend/gpu/kernel.h"
#include "compile/program.h"

namespace ridge::gpu {

struct LoopKernels {
  std::vector<std::unique_ptr<Kernel>> kernels;  // each computes the whole loop; the best one that does not spill registers is to be used
  std::string refusal;                           // why there is none
};
// `kernel` is the scan in the program that contains it; operands for bind are the scan's.
LoopKernels make_loop_kernels(const ProgramKernel& kernel, const GpuChip& chip);

// Bytes of each operand of a scan: inputs of the step, final carries, outputs, carries at the start of each step.
std::vector<int64_t> loop_operand_bytes(const LoopProgram& loop);

}  // namespace ridge::gpu
