// How much a kernel computes and how many bytes it moves, and how much of that is unavoidable.
#pragma once
#include "compile/program.h"

namespace ridge {

struct KernelWork {
  double flops = 0, bytes = 0;   // as executed: includes recomputed values; counts every touched element of an operand once
  double algorithmic_flops = 0;  // without recomputation
  double unavoidable_bytes = 0;  // excludes kernels that only recompute, and stores of recomputed values
  double exponentials = 0;       // of attention: one for each score, which take time that its flops do not show
};

KernelWork work_of(const Program& program, const ProgramKernel& kernel);

}  // namespace ridge
