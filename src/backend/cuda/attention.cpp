// Chooses the attention kernels for a node, and launches them.
#include "backend/cuda/attention.h"

#include <algorithm>
#include <optional>

#include "backend/cuda/attention_text.h"
#include "backend/cuda/make.h"
#include "backend/gpu/attention_parts.h"
#include "backend/gpu/memory_use.h"
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

// Two updates of rows that attention reads: of its keys and of its values. Operands of each: the old rows, the new ones, the start along each of four axes, the
// result.
struct NewRows {
  static constexpr size_t kStart = 4, kResult = 6, kOperands = 7;
  bool keys_first = true;
  int64_t count = 0, bytes = 0;  // positions; bytes of all keys
};

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
    for (Step& s : steps_) s.function = loader.function(s.text);
  }
  void bind(std::span<const Place> operands, Place workspace, Place) override {
    places_ = AttentionPlaces(desc_, backward_, operands);
    places_.delta = workspace;
  }
  void enqueue(Bases bases, LaunchSink& sink) const override {
    const AttentionArguments a = arguments(desc_, places_, bases);
    for (const Step& s : steps_) sink.launch(s.function, s.blocks, s.threads, s.text.shared, std::as_bytes(std::span(&a, 1)));
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
};

// How one query per head is computed in one launch, if it is.
ShortDecode short_decode_of(const AttentionDesc& d, bool aligned, const Chip& chip) {
  if (d.queries != 1 || d.keys == 0 || d.dim < 8 || d.batch * d.heads == 0 || !aligned || !in_pieces(d, false)) return {};
  return short_decode(d.keys, shape_of(d, false, aligned, chip).dim);
}

// One query per head, in one launch.
class ShortDecodeKernel final : public Kernel {
 public:
  // `rows`: the operands of the two updates come before attention's own.
  ShortDecodeKernel(const AttentionDesc& d, ShortDecode form, std::optional<NewRows> rows, const Chip& chip) : desc_(d), form_(form), rows_(rows) {
    if (rows_) form_.new_rows = int(rows_->count);
    text_ = short_decode_text(shape_of(d, false, true, chip), form_);
  }
  std::vector<KernelText> texts() const override { return {text_}; }
  void load(gpu::Loader& loader) override { function_ = loader.loaded(text_); }
  void bind(std::span<const Place> operands, Place, Place) override {
    if (rows_) {
      first_.assign(operands.begin(), operands.begin() + 2 * NewRows::kOperands);
      operands = operands.subspan(2 * NewRows::kOperands);
    }
    places_ = AttentionPlaces(desc_, false, operands);
  }
  void enqueue(Bases bases, LaunchSink& sink) const override {
    DecodeArguments g{};
    g.attention = arguments(desc_, places_, bases);
    if (rows_) {
      const Place *keys = &first_[rows_->keys_first ? 0 : NewRows::kOperands], *values = &first_[rows_->keys_first ? NewRows::kOperands : 0];
      for (const Place* x : {keys, values})  // usually the same memory
        if (at(bases, x[0]) != at(bases, x[NewRows::kResult])) sink.copy(at(bases, x[NewRows::kResult]), at(bases, x[0]), rows_->bytes);
      g.keys_to = at(bases, keys[NewRows::kResult]), g.values_to = at(bases, values[NewRows::kResult]);
      g.new_keys = at(bases, keys[1]), g.new_values = at(bases, values[1]), g.start = at(bases, keys[NewRows::kStart]);
      g.most_start = desc_.keys - rows_->count;
    }
    sink.launch(function_, desc_.batch * desc_.heads, form_.threads, text_.shared, std::as_bytes(std::span(&g, 1)));
  }
  std::string note() const override { return rows_ ? "one launch, which also stores the new keys and values" : "one launch"; }

 private:
  AttentionDesc desc_;
  ShortDecode form_;
  std::optional<NewRows> rows_;
  KernelText text_;
  KernelFunction function_ = nullptr;
  std::vector<Place> first_;
  AttentionPlaces places_;
};

}  // namespace

bool has_attention(const AttentionDesc& d) {
  const bool known = d.dtype == DType::f32 || d.dtype == DType::bf16 || d.dtype == DType::f16;
  const int64_t positions = std::max(d.queries, d.keys);
  return known && d.dim <= kLargestDim && positions < (int64_t(1) << 30) && d.batch * d.heads * std::max<int64_t>(positions, 1) < kMaxBlocks * 4;
}

std::unique_ptr<Kernel> make_attention(const AttentionDesc& d, bool backward, bool aligned, const Chip& chip) {
  if (!has_attention(d)) return nullptr;
  if (!backward)
    if (const ShortDecode form = short_decode_of(d, aligned, chip)) return std::make_unique<ShortDecodeKernel>(d, form, std::nullopt, chip);
  if (has_hopper_attention(d, backward, aligned, chip)) return make_hopper_attention(d, backward, chip);
  return make_tiled_attention(d, backward, aligned, chip);
}

std::unique_ptr<Kernel> make_tiled_attention(const AttentionDesc& d, bool backward, bool aligned, const Chip& chip) {
  return std::make_unique<TiledAttention>(d, backward, aligned, chip);
}

namespace {

bool kernel_aligned(const ProgramKernel& kernel) {
  return std::ranges::all_of(kernel.operands, [](const ProgramOperand& operand) { return operand.offset % 16 == 0; });
}

}  // namespace

std::unique_ptr<Kernel> make_attention_kernel(const Program& program, const ProgramKernel& kernel, const Chip& chip) {
  const bool backward = program.graph[kernel.group.node].op == Op::attention_grad;
  return make_attention(attention_desc(program, kernel), backward, kernel_aligned(kernel), chip);
}

std::unique_ptr<Kernel> make_attention_with_rows(const Program& program, std::span<const ProgramKernel* const> updates, const ProgramKernel& kernel,
                                                 const Chip& chip) {
  const Graph& g = program.graph;
  const Node& node = g[kernel.group.node];
  if (node.op != Op::attention || updates.size() != 2) return nullptr;
  const AttentionDesc d = attention_desc(program, kernel);
  const ShortDecode form = short_decode_of(d, kernel_aligned(kernel), chip);
  if (!form || d.dropout > 0 || d.heads != d.kv_heads || d.keys > INT32_MAX) return nullptr;
  const AttentionDesc::Strides rows = {d.kv_heads * d.keys * d.dim, d.keys * d.dim, d.dim, 1};
  if (d.k != rows || d.v != rows) return nullptr;
  const NodeId read[] = {kernel.operands[0].owner, kernel.operands[1].owner, kernel.operands[2].owner};
  NewRows found;
  for (size_t i = 0; i < 2; ++i) {
    const ProgramKernel& update = *updates[i];
    if (update.group.kind != Group::Kind::node || g[update.group.node].op != Op::dynamic_update_slice || update.operands.size() != NewRows::kOperands)
      return nullptr;
    const Shape &whole = g.shape(g[update.group.node].in[0]), &part = g.shape(g[update.group.node].in[1]);
    if (whole.rank() != 4 || part[0] != whole[0] || part[1] != whole[1] || part[3] != whole[3] || part[2] == 0) return nullptr;
    if (update.operands[1].offset % 16 || update.operands[1].owner == read[1] || update.operands[1].owner == read[2]) return nullptr;
    const ProgramOperand& result = update.operands[NewRows::kResult];
    if (result.offset != 0) return nullptr;
    found.count = part[2], found.bytes = g[update.group.node].type().bytes();
    if (result.owner == read[1] && i == 0)
      found.keys_first = true;
    else if (result.owner == read[2] && i == 0)
      found.keys_first = false;
    else if (result.owner != read[found.keys_first ? 2 : 1])
      return nullptr;
  }
  if (kernel.operands[1].offset != 0 || kernel.operands[2].offset != 0 || read[1] == read[2]) return nullptr;
  // The numbers of valid keys and of the first new row are read ahead, too.
  const NodeId start = updates[0]->operands[NewRows::kStart].owner;
  if (!is_constant(program, start)) return nullptr;
  if (d.has_length && !is_constant(program, kernel.operands[3 + (d.mask != AttentionDesc::Mask::none)].owner)) return nullptr;
  // Both updates start at the same position, and nothing else writes where they do: rows are read before the kernels in front have finished.
  if (updates[0]->operands[NewRows::kStart].owner != updates[1]->operands[NewRows::kStart].owner ||
      updates[0]->operands[NewRows::kStart].offset != updates[1]->operands[NewRows::kStart].offset)
    return nullptr;
  for (const ProgramKernel* update : updates) {
    const NodeId result = update->operands[NewRows::kResult].owner;
    if (program.buffer_of(result).place != ProgramBuffer::Place::output || g.shape(g[update->group.node].in[1])[2] != found.count) return nullptr;
    for (const ProgramKernel& other : program.kernels)
      if (&other != update && memory_use(program, other).written.count(memory_of(program, result))) return nullptr;
  }
  return std::make_unique<ShortDecodeKernel>(d, form, found, chip);
}

std::unique_ptr<Kernel> make_attention_with_sums(const Program& program, const ProgramKernel& kernel, const ProgramKernel& column, const Chip& chip) {
  if (program.graph[kernel.group.node].op != Op::attention_grad || column.operands.size() != 2 || kernel.operands.size() < 3) return nullptr;
  // A sum of 16-bit numbers over all axes but the last.
  const TileGroup& group = column.tiles[0];
  const TileAccess *from = nullptr, *to = nullptr;
  int sums = 0;
  for (const TileNode& node : group.nodes) {
    using Kind = TileNode::Kind;
    if (node.kind == Kind::load) from = &group.accesses[size_t(node.access)];
    if (node.kind == Kind::store) to = &group.accesses[size_t(node.access)];
    sums += node.kind == Kind::reduce && node.op == Op::reduce_sum;
    const bool plain = node.kind == Kind::load ? node.in[0] < 0 : node.kind == Kind::elementwise ? node.op == Op::cast : true;
    if (!plain || node.kind == Kind::random || node.kind == Kind::index || node.kind == Kind::check) return nullptr;
  }
  constexpr size_t kMostNodes = 4;  // load, cast, sum, store
  if (group.nodes.size() > kMostNodes || !from || !to || sums != 1 || group.reduced != group.domain.rank() - 1) return nullptr;
  AttentionDesc d = attention_desc(program, kernel);
  Shape along = Shape::filled(group.domain.rank(), 0);
  along[group.domain.rank() - 1] = 1;
  if (from->dtype != d.dtype || from->strides != contiguous_strides(group.domain) || from->offset != 0 || from->gather >= 0 || !from->bounds.empty())
    return nullptr;
  if (to->dtype != DType::f32 || to->strides != along || to->offset != 0) return nullptr;
  AttentionSums s;
  s.columns = group.domain.back(), s.operands = 2, s.written = size_t(to->operand);
  if (group.domain.numel() != d.batch * d.queries * s.columns) return nullptr;
  bool aligned = true;
  for (const ProgramOperand& operand : kernel.operands) aligned = aligned && operand.offset % 16 == 0;
  const ProgramOperand& matrix = column.operands[size_t(from->operand)];
  for (size_t i = 0; i < 3; ++i) {
    const ProgramOperand& gradient = kernel.operands[kernel.operands.size() - 3 + i];
    if (gradient.owner != matrix.owner) return nullptr;
    s.first[i] = (gradient.offset - matrix.offset) / size_of(d.dtype);
  }
  return has_hopper_attention(d, true, aligned, chip) ? make_hopper_attention_with_sums(d, s, chip) : nullptr;
}

bool has_attention_kernel(const Graph& graph, NodeId node, const Chip&) {
  const Shape &q = graph.shape(graph[node].in[0]), &k = graph.shape(graph[node].in[1]);
  AttentionDesc d;
  d.dtype = graph.dtype(graph[node].in[0]);
  d.batch = q[0], d.heads = q[1], d.queries = q[2], d.dim = q[3], d.keys = k[2];
  return has_attention(d);
}

}  // namespace ridge::cuda
