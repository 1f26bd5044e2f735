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

// A row group that also computes the sums of column groups over the same points (such as a norm's gradient, the gradients of its weights and, from what it
// stores, that of the bias before it): one pass over memory instead of several. `same` maps each operand of the column groups to the row group's operand with
// the same memory, -1: none. Operands: the row group's, then the column groups'; those of the row group that are `unread` are not stored. Null if the groups
// cannot be combined.
std::unique_ptr<Kernel> make_row_kernel_with_sums(const TileGroup& row, std::span<const TileGroup* const> columns, std::span<const int> same,
                                                  std::span<const int> unread, const GpuChip& chip);
std::unique_ptr<Kernel> make_row_kernel_with_sums(const Program& program, size_t row, std::span<const size_t> columns, const GpuChip& chip);

// The column kernels near a kernel whose inputs it reads or writes, and that may store their results when it runs.
std::vector<size_t> columns_near(const Program& program, size_t kernel);

// Finds such groups in a program: for each row kernel, the column kernels that it takes over.
std::vector<std::vector<size_t>> find_row_sums(const Program& program, const GpuChip& chip);

}  // namespace ridge::gpu
