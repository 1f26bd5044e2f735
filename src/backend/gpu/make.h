// Makes the kernels that GPUs share. Nothing here needs a device.
#pragma once
#include <memory>
#include <span>

#include "backend/gpu/kernel.h"
#include "compile/program.h"

namespace ridge::gpu {

// One launch for all groups. Operands: those of the first group, then those of the second, …
std::unique_ptr<Kernel> make_tile_kernel(std::span<const TileGroup> groups, const GpuChip& chip);

// For ops of class Fusion::alone that are not macros, and pad with interior padding. Operands are contiguous.
std::unique_ptr<Kernel> make_node_kernel(const Graph& graph, NodeId node, const GpuChip& chip);

}  // namespace ridge::gpu
