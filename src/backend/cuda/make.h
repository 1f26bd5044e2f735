// Kernels for the groups of a program that CUDA has for itself. Nothing here needs a device.
#pragma once
#include <memory>
#include <string>

#include "backend/cuda/kernel.h"
#include "backend/gpu/compiled.h"
#include "backend/gpu/make.h"

namespace ridge::cuda {

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

bool has_kernel(const Graph& graph, NodeId node, const Chip& chip);  // for a macro node

// For programs on a chip.
class CudaMaker final : public KernelMaker {
 public:
  explicit CudaMaker(const Chip& chip) : chip_(chip) {}
  const GpuChip& chip() const override { return chip_; }
  std::string target() const override { return chip_.target(); }
  std::unique_ptr<Kernel> matmul(const Program& program, const ProgramKernel& kernel) const override { return make_matmul_kernel(program, kernel, chip_); }
  std::unique_ptr<Kernel> macro(const Program& program, const ProgramKernel& kernel) const override;

 private:
  const Chip& chip_;
};

}  // namespace ridge::cuda
