// Generated kernels for fused groups. make_tile_kernel is in make.h.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "backend/gpu/kernel.h"
#include "compile/program.h"

namespace ridge::gpu {

// A matmul's epilogue as a separate kernel, for sums that were first written to memory. The sums are one more operand, the last, contiguous [batch, rows,
// columns] in the type of the accumulator access.
std::unique_ptr<Kernel> make_epilogue_kernel(const TileGroup& group, const GpuChip& chip);

// A row group that also computes the sums of a column group over the same points (such as a norm's gradient and the gradients of its weights): one pass over
// memory instead of two. `same` maps each operand of the column group to the row group's operand with the same memory, -1: none. Operands: the row group's,
// then the column group's. Null if the groups cannot be combined.
std::unique_ptr<Kernel> make_row_kernel_with_sums(const TileGroup& row, const TileGroup& column, std::span<const int> same, const GpuChip& chip);

// Finds such pairs in a program: for each row kernel, the column kernel that it takes over, -1: none. Skips kernels that are already taken over (`takes_over`).
void find_row_sums(const Program& program, const GpuChip& chip, std::vector<int>& takes_over);
std::vector<int> same_operands(const ProgramKernel& row, const ProgramKernel& column);

}  // namespace ridge::gpu
