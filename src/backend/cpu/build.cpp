#include "backend/cpu/build.h"

#include "backend/cpu/attention.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/node_kernels.h"
#include "backend/cpu/tile_kernel.h"
#include "base/error.h"
#include "graph/ops/attention.h"

namespace ridge::cpu {
namespace {

// A matmul with its epilogue. Operands: A, B, then the epilogue's; without one A, B, C.
class FusedMatmul final : public Kernel {
 public:
  FusedMatmul(MatmulDesc desc, const TileGroup* epilogue) {
    if (epilogue) {
      epilogue_ = make_tile_epilogue(*epilogue);
      desc.epilogue_scratch = epilogue_->scratch_bytes();
    }
    matmul_ = make_matmul(desc);
  }
  int64_t workspace_bytes() const override { return matmul_->workspace_bytes(); }
  int64_t scratch_bytes() const override { return matmul_->scratch_bytes(); }
  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    Ref abc[3] = {operands[0], operands[1], epilogue_ ? Ref{} : operands[2]};
    if (epilogue_) matmul_->set_epilogue(epilogue_->bind(operands.subspan(2)));
    matmul_->bind(abc, workspace, tasks);
  }

 private:
  std::unique_ptr<MatmulKernel> matmul_;
  std::unique_ptr<TileEpilogue> epilogue_;
};

std::unique_ptr<Kernel> matmul(const Program& program, const ProgramKernel& kernel) {
  const Graph& g = program.graph();
  NodeId id = kernel.group.node;
  MatmulDesc desc;
  desc.a_type = g.dtype(g[id].in[0]), desc.b_type = g.dtype(g[id].in[1]);
  desc.c_type = kernel.tiles.empty() ? g.dtype(id) : DType::f32;
  auto copy = [](const std::vector<ContractionLoops::Loop>& from, std::vector<MatmulLoop>& to) {
    for (const auto& l : from) to.push_back({l.size, l.a, l.b, l.c});
  };
  copy(kernel.loops.batch, desc.batch), copy(kernel.loops.m, desc.m), copy(kernel.loops.n, desc.n), copy(kernel.loops.k, desc.k);
  return std::make_unique<FusedMatmul>(std::move(desc), kernel.tiles.empty() ? nullptr : &kernel.tiles[0]);
}

AttentionDesc::Strides strides(const View& v) {
  AttentionDesc::Strides s{};
  for (size_t a = 0; a < 4; ++a) s[a] = v.axes[a].empty() ? 0 : v.axes[a][0].stride;
  return s;
}

AttentionDesc::Strides heads_first(AttentionDesc::Strides s) {  // from [batch, position, head, dim]
  std::swap(s[1], s[2]);
  return s;
}

std::unique_ptr<Kernel> attention(const Program& program, const ProgramKernel& kernel) {
  const Graph& g = program.graph();
  const Node& n = g[kernel.group.node];
  AttentionOperands o = attention_operands(n);
  bool grad = n.op == Op::attention_grad;
  AttentionDesc d;
  const Shape &q = g.shape(o.q), &k = g.shape(o.k);
  d.batch = q[0], d.heads = q[1], d.queries = q[2], d.dim = q[3], d.kv_heads = k[1], d.keys = k[2];
  d.dtype = g.dtype(o.q);
  d.q = strides(kernel.views[0]), d.k = strides(kernel.views[1]), d.v = strides(kernel.views[2]);
  if (o.mask_kind) d.mask = o.mask_kind == 1 ? AttentionDesc::Mask::boolean : AttentionDesc::Mask::additive, d.mask_strides = strides(kernel.views[3]);
  d.scale = o.scale, d.causal = o.causal, d.has_length = o.length != kNone, d.dropout = o.dropout, d.stream = o.stream;
  size_t ins = n.in.size();
  if (!grad) {
    d.out = heads_first(strides(kernel.views[ins]));
    return make_attention(d);
  }
  d.out = heads_first(strides(kernel.views[ins - 3])), d.dout = heads_first(strides(kernel.views[ins - 1]));
  d.dq = heads_first(strides(kernel.views[ins])), d.dk = heads_first(strides(kernel.views[ins + 1])), d.dv = heads_first(strides(kernel.views[ins + 2]));
  return make_attention_grad(d);
}

}  // namespace

std::unique_ptr<Kernel> make_kernel(const Program& program, const ProgramKernel& kernel) {
  switch (kernel.group.kind) {
    case Group::Kind::tile: return make_tile_kernel(kernel.tiles);
    case Group::Kind::matmul: return matmul(program, kernel);
    case Group::Kind::node: break;
  }
  Op op = program.graph()[kernel.group.node].op;
  if (op == Op::attention || op == Op::attention_grad) return attention(program, kernel);
  return make_node_kernel(program.graph(), kernel.group.node);
}

}  // namespace ridge::cpu
