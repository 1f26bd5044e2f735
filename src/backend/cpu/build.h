// A program's kernels on the CPU.
#pragma once
#include <memory>

#include "backend/cpu/task.h"
#include "compile/program.h"

namespace ridge::cpu {

// Operands for bind: those of the program's kernel, in its order.
std::unique_ptr<Kernel> make_kernel(const Program& program, const ProgramKernel& kernel);

}  // namespace ridge::cpu
