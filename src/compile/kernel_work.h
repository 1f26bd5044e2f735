// What a kernel of a program computes and moves, and how much of that is unavoidable.
#pragma once
#include "compile/program.h"

namespace ridge {

struct KernelWork {
  double flops = 0, bytes = 0;   // as it runs: recomputed values included, every element of an operand that is touched counted once
  double algorithmic_flops = 0;  // without recomputation
  double unavoidable_bytes = 0;  // without kernels that only recompute, and without storing recomputed values
};

KernelWork work_of(const Program& program, const ProgramKernel& kernel);

}  // namespace ridge
