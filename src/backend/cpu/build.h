// Makes the CPU kernels of a program.
#pragma once
#include <memory>

#include "backend/cpu/variant.h"
#include "compile/program.h"
#include "threads/task.h"

namespace ridge::cpu {

// Operands for bind: those of the program's kernel, in the same order. threads: that will share the units; results do not depend on their number.
std::unique_ptr<Kernel> make_kernel(const Program& program, const ProgramKernel& kernel, int threads = 1, const KernelVariant& variant = {});
std::unique_ptr<Kernel> make_product_kernel(const Program& program, const ProgramKernel& kernel, std::vector<int64_t> row_blocks = {},
                                            const KernelVariant& variant = {});  // row_blocks: see MatmulDesc

}  // namespace ridge::cpu
