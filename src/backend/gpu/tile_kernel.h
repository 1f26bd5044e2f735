// Fused groups on a GPU: generated kernels. make_tile_kernel is in make.h.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "backend/gpu/kernel.h"
#include "compile/program.h"

namespace ridge::gpu {

// A matmul's epilogue as a kernel of its own, for sums that were written to memory first: they are one more operand, the last one,
// contiguous [batch, rows, columns] of the accumulator access's type.
std::unique_ptr<Kernel> make_epilogue_kernel(const TileGroup& group, const GpuChip& chip);

// A row group that also makes the sums of a column group over the same points (a norm's gradient and those of its weights): one pass over
// memory instead of two. `same`: for each operand of the column group the row group's operand that is the same memory, -1: none.
// Operands: the row group's, then the column group's. Null where it does not suit.
std::unique_ptr<Kernel> make_row_kernel_with_sums(const TileGroup& row, const TileGroup& column, std::span<const int> same, const GpuChip& chip);

// Such pairs in a program: for each kernel with rows the one with columns that it takes over, -1: none. Kernels that are taken over already
// (`takes_over`) are left alone.
void find_row_sums(const Program& program, const GpuChip& chip, std::vector<int>& takes_over);
std::vector<int> same_operands(const ProgramKernel& row, const ProgramKernel& column);

}  // namespace ridge::gpu
