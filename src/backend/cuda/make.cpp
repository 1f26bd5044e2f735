#include "backend/cuda/make.h"

namespace ridge::cuda {

bool has_kernel(const Graph& graph, NodeId node, const Chip& chip) {
  switch (graph[node].op) {
    case Op::conv: return has_conv_kernel(graph, node);
    case Op::attention:
    case Op::attention_grad: return has_attention_kernel(graph, node, chip);
    default: return true;
  }
}

std::unique_ptr<Kernel> CudaMaker::macro(const Program& program, const ProgramKernel& kernel) const {
  if (program.graph[kernel.group.node].op == Op::conv) return make_conv_kernel(program, kernel, chip_);
  return make_attention_kernel(program, kernel, chip_);
}

std::unique_ptr<Kernel> CudaMaker::joined(const Program& program, std::span<const ProgramKernel* const> first, const ProgramKernel& last) const {
  if (!chip_.joined) return nullptr;
  if (last.group.kind == Group::Kind::matmul) return first.size() == 1 ? make_matmul_with_row(program, *first[0], last, chip_) : nullptr;
  return last.group.kind == Group::Kind::node ? make_attention_with_rows(program, first, last, chip_) : nullptr;
}

}  // namespace ridge::cuda
