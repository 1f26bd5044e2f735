#include "backend/cpu/build.h"

#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/conv.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/node_kernels.h"
#include "backend/cpu/tile_kernel.h"
#include "base/error.h"

namespace ridge::cpu {
namespace {

// A matmul or a convolution and its epilogue. Operands: A, B, then the epilogue's; without an epilogue A, B, C.
class FusedProduct final : public Kernel {
 public:
  // make: creates the product for an epilogue that needs this much scratch; -1: none.
  template <class Make>
  FusedProduct(const ProgramKernel& kernel, const Make& make) {
    if (!kernel.tiles.empty()) epilogue_ = make_tile_epilogue(kernel.tiles[0]);
    product_ = make(epilogue_ ? epilogue_->scratch_bytes() : -1);
  }
  int64_t workspace_bytes() const override { return product_->workspace_bytes(); }
  int64_t scratch_bytes() const override { return product_->scratch_bytes(); }
  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    Ref abc[3] = {operands[0], operands[1], epilogue_ ? Ref{} : operands[2]};
    if (epilogue_) product_->set_epilogue(epilogue_->bind(operands.subspan(2)));
    product_->bind(abc, workspace, tasks);
  }

 private:
  std::unique_ptr<MatmulKernel> product_;
  std::unique_ptr<TileEpilogue> epilogue_;
};

}  // namespace

std::unique_ptr<Kernel> make_product_kernel(const Program& program, const ProgramKernel& kernel, std::vector<int64_t> row_blocks,
                                            const KernelVariant& variant) {
  const Graph& g = program.graph;
  NodeId id = kernel.group.node;
  if (g[id].op == Op::conv) return std::make_unique<FusedProduct>(kernel, [&](int64_t scratch) { return make_conv(conv_desc(program, kernel), scratch); });
  MatmulDesc desc;
  desc.a_type = g.dtype(g[id].in[0]), desc.b_type = g.dtype(g[id].in[1]);
  desc.c_type = kernel.tiles.empty() ? g.dtype(id) : DType::f32;
  auto copy = [](const std::vector<ContractionLoops::Loop>& from, std::vector<MatmulLoop>& to) {
    for (const auto& l : from) to.push_back({l.size, l.a, l.b, l.c});
  };
  desc.row_blocks = std::move(row_blocks);
  copy(kernel.loops.batch, desc.batch), copy(kernel.loops.m, desc.m), copy(kernel.loops.n, desc.n), copy(kernel.loops.k, desc.k);
  return std::make_unique<FusedProduct>(kernel, [&](int64_t scratch) {
    desc.epilogue_scratch = scratch;
    return make_matmul(desc, variant);
  });
}

std::unique_ptr<Kernel> make_kernel(const Program& program, const ProgramKernel& kernel, int threads, const KernelVariant& variant) {
  switch (kernel.group.kind) {
    case Group::Kind::tile: return make_tile_kernel(kernel.tiles, threads, variant);
    case Group::Kind::matmul: return make_product_kernel(program, kernel, {}, variant);
    case Group::Kind::node: break;
  }
  Op op = program.graph[kernel.group.node].op;
  if (op == Op::attention) return make_attention(attention_desc(program, kernel), isa_tier(), variant);
  if (op == Op::attention_grad) return make_attention_grad(attention_desc(program, kernel), isa_tier(), variant);
  return make_node_kernel(program.graph, kernel.group.node);
}

}  // namespace ridge::cpu
