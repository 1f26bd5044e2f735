// Makes the kernels that only CUDA has. Nothing here needs a device.
#pragma once
#include <memory>
#include <string>

#include "backend/cuda/kernel.h"
#include "backend/gpu/compiled.h"
#include "backend/gpu/make.h"

namespace ridge::cuda {

// Operands: A, B, C; with an epilogue A, B, then the epilogue's.
std::unique_ptr<Kernel> make_matmul_kernel(const Program& program, const ProgramKernel& kernel, const Chip& chip);
// The same, whose blocks repeat the row kernel that makes A; null if it cannot.
std::unique_ptr<Kernel> make_matmul_with_row(const Program& program, const ProgramKernel& row, const ProgramKernel& kernel, const Chip& chip);
std::string matmul_list_key(const Program& program, const ProgramKernel& kernel, const Chip& chip);  // of products that may run as a list; empty: alone
std::unique_ptr<Kernel> make_matmul_list(const Program& program, std::span<const ProgramKernel* const> kernels, const Chip& chip);

// attention, attention_grad; null if no kernel supports the node (its decomposition runs instead).
std::unique_ptr<Kernel> make_attention_kernel(const Program& program, const ProgramKernel& kernel, const Chip& chip);
// The same, which also stores the rows that two updates (dynamic_update_slice) add to keys and values; null if it cannot.
std::unique_ptr<Kernel> make_attention_with_rows(const Program& program, std::span<const ProgramKernel* const> updates, const ProgramKernel& kernel,
                                                 const Chip& chip);
// attention_grad that also sums its gradients, as the column group of the other kernel does; null if no kernel does both.
std::unique_ptr<Kernel> make_attention_with_sums(const Program& program, const ProgramKernel& kernel, const ProgramKernel& column, const Chip& chip);
bool has_attention_kernel(const Graph& graph, NodeId node, const Chip& chip);

// conv. A node that has no kernel runs as its decomposition: more than two spatial axes, nothing to sum, or 2^30 elements.
std::unique_ptr<Kernel> make_conv_kernel(const Program& program, const ProgramKernel& kernel, const Chip& chip);
bool has_conv_kernel(const Graph& graph, NodeId node);
bool conv_channels_last(const Graph& graph, NodeId conv, const Chip& chip);  // whether it is faster with images and result stored so
// Whether the conv kernel should store this permutation of its result directly.
bool conv_stores_permuted(const Graph& graph, NodeId permuted, const Chip& chip);

bool has_kernel(const Graph& graph, NodeId node, const Chip& chip);  // for a macro node

// Makes kernels for a chip.
class CudaMaker final : public KernelMaker {
 public:
  explicit CudaMaker(const Chip& chip) : chip_(chip) {}
  const GpuChip& chip() const override { return chip_; }
  std::string target() const override { return chip_.target(); }
  std::unique_ptr<Kernel> matmul(const Program& program, const ProgramKernel& kernel) const override { return make_matmul_kernel(program, kernel, chip_); }
  std::unique_ptr<Kernel> macro(const Program& program, const ProgramKernel& kernel) const override;
  std::unique_ptr<Kernel> joined(const Program& program, std::span<const ProgramKernel* const> first, const ProgramKernel& last) const override;
  std::unique_ptr<Kernel> macro_with_sums(const Program& program, const ProgramKernel& kernel, const ProgramKernel& column) const override {
    return make_attention_with_sums(program, kernel, column, chip_);
  }
  std::string matmul_key(const Program& program, const ProgramKernel& kernel) const override { return matmul_list_key(program, kernel, chip_); }
  std::unique_ptr<Kernel> matmuls(const Program& program, std::span<const ProgramKernel* const> kernels) const override {
    return make_matmul_list(program, kernels, chip_);
  }

 private:
  const Chip& chip_;
};

}  // namespace ridge::cuda
