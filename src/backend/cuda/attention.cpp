// Chooses the attention kernels for a node, and launches them.
#include "backend/cuda/attention.h"

#include <algorithm>

#include "backend/cuda/attention_text.h"
#include "backend/cuda/make.h"
#include "backend/gpu/attention_parts.h"
#include "backend/gpu/node_parts.h"

namespace ridge::cuda {
namespace {

constexpr int64_t kLargestDim = 128;
constexpr int64_t kMaxBlocks = int64_t(1) << 31;

AttentionShape shape_of(const AttentionDesc& d, bool backward, bool aligned, const Chip& chip) {
  AttentionShape s;
  s.type = d.dtype == DType::f32 ? 0 : d.dtype == DType::bf16 ? 1 : 2;
  s.dim = int(std::max<int64_t>(16, blocks_of(d.dim, 16) * 16));
  s.mask = int(d.mask);
  s.plain = s.type == 0 || (s.type == 1 && !chip.bf16()) || d.dim < 16;  // the matrix units would mostly multiply zeros
  s.vector = aligned && in_pieces(d, backward);
  s.causal = d.causal, s.length = d.has_length, s.dropout = d.dropout > 0;
  s.rows = s.plain ? 32 : 64;
  s.columns = s.plain ? (s.dim <= 96 ? 32 : 16) : backward ? 32 : 64;
  return s;
}

AttentionArguments arguments(const AttentionDesc& d, const AttentionPlaces& p, Bases bases) {
  AttentionArguments a{};
  a.q = at(bases, p.q), a.k = at(bases, p.k), a.v = at(bases, p.v), a.mask = at(bases, p.mask);
  a.out = a.out_to = at(bases, p.out), a.lse = at(bases, p.lse), a.dout = at(bases, p.dout), a.delta = at(bases, p.delta);
  a.dq = at(bases, p.dq), a.dk = at(bases, p.dk), a.dv = at(bases, p.dv);
  a.length = at(bases, p.length), a.seed = at(bases, p.seed), a.step = at(bases, p.step), a.base = at(bases, p.base);
  copy(d.q, a.q_strides), copy(d.k, a.k_strides), copy(d.v, a.v_strides), copy(d.out, a.out_strides), copy(d.dout, a.dout_strides);
  copy(d.dq, a.dq_strides), copy(d.dk, a.dk_strides), copy(d.dv, a.dv_strides), copy(d.mask_strides, a.mask_strides);
  a.batch = int(d.batch), a.heads = int(d.heads), a.kv_heads = int(d.kv_heads), a.queries = int(d.queries), a.keys = int(d.keys), a.dim = int(d.dim);
  a.scale = float(d.scale), a.stream = d.stream;
  a.kept = kept_factor(d), a.limit = dropout_limit(d);
  return a;
}

// For any chip and every option.
class TiledAttention final : public Kernel {
 public:
  TiledAttention(const AttentionDesc& d, bool backward, bool aligned, const Chip& chip) : desc_(d), backward_(backward) {
    const AttentionShape s = shape_of(d, backward, aligned, chip);
    const int64_t heads = d.batch * d.heads;
    auto add = [&](AttentionPart part, int64_t blocks, int threads) {
      if (blocks > 0) steps_.push_back({attention_text(part, s), blocks, threads, nullptr});
    };
    if (!backward && d.queries == 1 && d.keys > 0) {
      const int64_t blocks = heads * blocks_of(d.keys, kDecodeKeys);
      add(AttentionPart::decode, blocks, 128);
      add(AttentionPart::decode_end, heads, 128);
      workspace_ = blocks * (s.dim + 2) * int64_t(sizeof(float));
      return;
    }
    if (!backward) {
      add(AttentionPart::forward, heads * blocks_of(d.queries, s.rows), 2 * s.rows);
      return;
    }
    const int64_t sharers = !s.vector || s.plain ? 32 : s.dim <= 16 ? 2 : s.dim <= 32 ? 4 : s.dim <= 64 ? 8 : 16;
    workspace_ = heads * d.queries * int64_t(sizeof(float));
    add(AttentionPart::delta, blocks_of(heads * d.queries * sharers, 128), 128);
    add(AttentionPart::grad_keys, d.batch * d.kv_heads * blocks_of(d.keys, s.rows), 2 * s.rows);
    add(AttentionPart::grad_queries, heads * blocks_of(d.queries, s.rows), 2 * s.rows);
  }

  int64_t workspace_bytes() const override { return workspace_; }
  std::vector<KernelText> texts() const override {
    std::vector<KernelText> all;
    for (const Step& s : steps_) all.push_back(s.text);
    return all;
  }
  void load(gpu::Loader& given) override {
    Loader& loader = cuda_loader(given);
    driver_ = &loader.driver();
    for (Step& s : steps_) s.function = loader.function(s.text);
  }
  void bind(std::span<const Place> operands, Place workspace, Place) override {
    places_ = AttentionPlaces(desc_, backward_, operands);
    places_.delta = workspace;
  }
  void enqueue(Bases bases, LaunchSink& sink) const override {
    const StreamHandle stream = stream_of(sink);
    AttentionArguments a = arguments(desc_, places_, bases);
    void* list[] = {&a};
    for (const Step& s : steps_)
      driver_->launch(s.function, unsigned(s.blocks), 1, 1, unsigned(s.threads), 1, 1, unsigned(s.text.shared), stream, list, nullptr);
  }
  int launches() const override { return int(steps_.size()); }
  std::string note() const override { return "tiles"; }

 private:
  struct Step {
    KernelText text;
    int64_t blocks;
    int threads;
    FunctionHandle function;
  };
  AttentionDesc desc_;
  bool backward_;
  int64_t workspace_ = 0;  // delta, or the partial results of blocks of keys
  std::vector<Step> steps_;
  AttentionPlaces places_;
  const Driver* driver_ = nullptr;
};

}  // namespace

bool has_attention(const AttentionDesc& d) {
  const bool known = d.dtype == DType::f32 || d.dtype == DType::bf16 || d.dtype == DType::f16;
  const int64_t positions = std::max(d.queries, d.keys);
  return known && d.dim <= kLargestDim && positions < (int64_t(1) << 30) && d.batch * d.heads * std::max<int64_t>(positions, 1) < kMaxBlocks * 4;
}

std::unique_ptr<Kernel> make_attention(const AttentionDesc& d, bool backward, bool aligned, const Chip& chip) {
  if (!has_attention(d)) return nullptr;
  if (has_hopper_attention(d, backward, aligned, chip)) return make_hopper_attention(d, backward, chip);
  return make_tiled_attention(d, backward, aligned, chip);
}

std::unique_ptr<Kernel> make_tiled_attention(const AttentionDesc& d, bool backward, bool aligned, const Chip& chip) {
  return std::make_unique<TiledAttention>(d, backward, aligned, chip);
}

std::unique_ptr<Kernel> make_attention_kernel(const Program& program, const ProgramKernel& kernel, const Chip& chip) {
  const bool backward = program.graph[kernel.group.node].op == Op::attention_grad;
  bool aligned = true;
  for (const ProgramOperand& operand : kernel.operands) aligned = aligned && operand.offset % 16 == 0;
  return make_attention(attention_desc(program, kernel), backward, aligned, chip);
}

bool has_attention_kernel(const Graph& graph, NodeId node, const Chip&) {
  const Shape &q = graph.shape(graph[node].in[0]), &k = graph.shape(graph[node].in[1]);
  AttentionDesc d;
  d.dtype = graph.dtype(graph[node].in[0]);
  d.batch = q[0], d.heads = q[1], d.queries = q[2], d.dim = q[3], d.keys = k[2];
  return has_attention(d);
}

}  // namespace ridge::cuda
