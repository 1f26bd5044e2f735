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

}  // namespace ridge::cuda
