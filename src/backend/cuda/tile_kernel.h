// Fused groups on a GPU: generated kernels. make_tile_kernel is in make.h.
#pragma once
#include <memory>

#include "backend/cuda/kernel.h"
#include "compile/tile_group.h"

namespace ridge::cuda {

// A matmul's epilogue as a kernel of its own, for sums that were written to memory first: they are one more operand, the last one,
// contiguous [batch, rows, columns] of the accumulator access's type.
std::unique_ptr<Kernel> make_epilogue_kernel(const TileGroup& group, const Chip& chip);

}  // namespace ridge::cuda
