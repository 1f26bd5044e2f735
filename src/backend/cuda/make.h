// Kernels for the groups of a program. Nothing here needs a device.
#pragma once
#include <memory>
#include <span>

#include "backend/cuda/kernel.h"
#include "compile/program.h"

namespace ridge::cuda {

// One launch for all groups. Operands: those of the first group, then the second's, …
std::unique_ptr<Kernel> make_tile_kernel(std::span<const TileGroup> groups, const Chip& chip);

// Operands: A, B, C; with an epilogue A, B, then the epilogue's.
std::unique_ptr<Kernel> make_matmul_kernel(const Program& program, const ProgramKernel& kernel, const Chip& chip);

// attention, attention_grad; null where there is no kernel for such a one (its decomposition runs instead).
std::unique_ptr<Kernel> make_attention_kernel(const Program& program, const ProgramKernel& kernel, const Chip& chip);
bool has_attention_kernel(const Graph& graph, NodeId node, const Chip& chip);

// conv; where there is no kernel for such a one its decomposition runs instead: more than two spatial axes, nothing to sum, 2^30 elements.
std::unique_ptr<Kernel> make_conv_kernel(const Program& program, const ProgramKernel& kernel, const Chip& chip);
bool has_conv_kernel(const Graph& graph, NodeId node);
// Whether a permutation of a conv is best what the kernel stores.
bool conv_stores_permuted(const Graph& graph, NodeId permuted, const Chip& chip);

// Other ops of the class Fusion::alone, and pad with interior padding; operands contiguous.
std::unique_ptr<Kernel> make_node_kernel(const Graph& graph, NodeId node, const Chip& chip);

}  // namespace ridge::cuda
