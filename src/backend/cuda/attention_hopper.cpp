// Attention on Hopper: which nodes it supports, and its launches. Tiles are loaded through tensor maps, which contain addresses and so are made for each
// launch.
#include "backend/cuda/attention.h"

#include <algorithm>

#include "backend/cuda/attention_text.h"
#include "backend/gpu/attention_parts.h"
#include "backend/gpu/node_parts.h"

namespace ridge::cuda {
namespace {

constexpr int64_t kMinQueries = 32;  // fewer would leave most of a tile empty
constexpr int64_t kLargeRows = 256;  // of queries, in a block of four groups

HopperShape shape_of(const AttentionDesc& d, bool backward, const Chip& chip) {
  HopperShape s;
  s.type = d.dtype == DType::bf16 ? 1 : 2;
  s.dim = d.dim <= 64 ? 64 : 128, s.causal = d.causal, s.dropout = d.dropout > 0;
  if (backward) s.stages = 2;
  if (!backward && s.dim == 128) s.stages = 2, s.columns = 128, s.blocks = 1;
  // Larger blocks read keys less often, and a group that only loads spares the others the wait. With dropout, registers do not suffice. Other forms have not
  // been measured.
  const bool training = d.causal && d.queries == d.keys && !s.dropout;
  if (!backward && s.dim == 64 && training && d.batch * d.heads * blocks_of(d.queries, kLargeRows) >= chip.multiprocessors)
    s.groups = int(kLargeRows / 64), s.blocks = 1, s.producer = true;
  return s;
}

// Backward: how many parts the keys of a head are split into, so that even few heads occupy all multiprocessors. Each part has its own sums.
int64_t parts_of(const AttentionDesc& d, const Chip& chip) {
  constexpr int64_t kMaxBytes = int64_t(256) << 20;
  const int64_t heads = d.batch * d.kv_heads, sums = d.batch * d.heads * blocks_of(d.queries, kHopperSide) * kHopperSide * 64 * int64_t(sizeof(float));
  auto busy = [&](int64_t parts) { return double(heads * parts) / double(blocks_of(heads * parts, chip.multiprocessors) * chip.multiprocessors); };
  int64_t best = 1;
  for (int64_t parts = 2; parts <= std::min<int64_t>(8, blocks_of(d.keys, kHopperSide)) && parts * sums <= kMaxBytes; ++parts)
    if (busy(parts) > busy(best) + 0.1) best = parts;
  return best;
}

class HopperAttention final : public Kernel {
 public:
  HopperAttention(const AttentionDesc& d, bool backward, const Chip& chip, const AttentionSums* sums)
      : desc_(d), backward_(backward), chip_(chip), shape_(shape_of(d, backward, chip)) {
    if (!backward) {
      text_ = hopper_forward_text(shape_);
      const int64_t blocks = blocks_of(d.queries, shape_.rows()), slots = chip.multiprocessors * shape_.blocks;
      paired_ = d.batch * d.heads * blocks_of(blocks, 2) >= slots;
      pairs_ = paired_ ? blocks_of(blocks, 2) : blocks;
      return;
    }
    parts_ = parts_of(d, chip);
    shape_.split = parts_ > 1;
    if (sums) shape_.sums = true, sums_ = *sums, sums_text_ = hopper_grad_sums_text(shape_);
    text_ = hopper_grad_text(shape_);
    if (parts_ > 1) end_ = hopper_grad_end_text(shape_);
    AttentionShape s;
    s.type = shape_.type, s.dim = int(blocks_of(d.dim, 16) * 16), s.rows = kHopperSide, s.pieces = true;
    delta_ = attention_text(AttentionPart::delta, s);
    delta_sharers_ = s.dim <= 16 ? 2 : s.dim <= 32 ? 4 : 8;
    blocks_ = std::min<int64_t>(chip.multiprocessors, d.batch * d.kv_heads * parts_);
    rows_ = d.batch * d.heads * blocks_of(d.queries, kHopperSide) * kHopperSide;
  }

  int64_t workspace_bytes() const override {
    if (tiled_) return tiled_->workspace_bytes();
    if (!backward_) return 0;
    const int64_t heads = parts_ > 1 ? desc_.batch * desc_.kv_heads * parts_ : blocks_;
    return rows_ * 2 * int64_t(sizeof(float)) +
           heads * (desc_.heads / desc_.kv_heads) * blocks_of(desc_.queries, kHopperSide) * kHopperSide * 64 * int64_t(sizeof(float)) +
           (shape_.sums ? sum_rows() * sums_.columns * int64_t(sizeof(float)) : 0);
  }
  std::vector<KernelText> texts() const override {
    std::vector<KernelText> all = {text_};
    if (backward_) all.push_back(delta_);
    if (parts_ > 1) all.push_back(end_);
    if (shape_.sums) all.push_back(sums_text_);
    return all;
  }
  void load(gpu::Loader& given) override {
    Loader& loader = cuda_loader(given);
    driver_ = &loader.driver();
    if (!driver_->library().bind(encode_, "cuTensorMapEncodeTiled")) {  // missing from drivers before CUDA 12
      if (shape_.sums) fail(ErrorCode::unsupported, "[attention] the driver does not make tensor maps; update it to CUDA 12 or later");
      tiled_ = make_tiled_attention(desc_, backward_, true, chip_);
      tiled_->load(loader);
      return;
    }
    function_ = loader.function(text_);
    if (backward_) delta_function_ = loader.function(delta_);
    if (parts_ > 1) end_function_ = loader.function(end_);
    if (shape_.sums) sums_function_ = loader.function(sums_text_);
  }
  void bind(std::span<const Place> operands, Place workspace, Place fault) override {
    if (tiled_) return tiled_->bind(operands, workspace, fault);
    if (shape_.sums) sums_place_ = operands[operands.size() - sums_.operands + sums_.written], operands = operands.first(operands.size() - sums_.operands);
    places_ = AttentionPlaces(desc_, backward_, operands);
    places_.delta = workspace;
  }
  void enqueue(Bases bases, LaunchSink& sink) const override {
    if (tiled_) return tiled_->enqueue(bases, sink);
    const StreamHandle stream = stream_of(sink);
    backward_ ? enqueue_backward(bases, stream) : enqueue_forward(bases, stream);
  }
  int launches() const override { return tiled_ ? tiled_->launches() : !backward_ ? 1 : parts_ > 1 || shape_.sums ? 3 : 2; }
  std::string note() const override { return tiled_ ? tiled_->note() : "warpgroups"; }

 private:
  // [batch, head, position, feature] as rows of 64 features, loaded `rows` at a time.
  TensorMap map(DevicePointer address, const AttentionDesc::Strides& s, int64_t heads, int64_t positions, int rows) const {
    constexpr int kFloat16 = 6, kBfloat16 = 9, kSwizzle128 = 3, kPromote256 = 3;
    TensorMap m{};
    const uint64_t sizes[4] = {uint64_t(desc_.dim), uint64_t(positions), uint64_t(heads), uint64_t(desc_.batch)};
    auto bytes = [](int64_t stride, uint64_t size) { return size > 1 ? uint64_t(stride) * 2 : 128; };  // with one element any stride works
    const uint64_t strides[3] = {bytes(s[2], sizes[1]), bytes(s[1], sizes[2]), bytes(s[0], sizes[3])};
    const uint32_t box[4] = {64, uint32_t(rows), 1, 1}, ones[4] = {1, 1, 1, 1};
    const int type = shape_.type == 1 ? kBfloat16 : kFloat16;
    const int code = encode_(&m, type, 4, reinterpret_cast<void*>(address), sizes, strides, box, ones, 0, kSwizzle128, kPromote256, 0);
    if (code) driver_->refuse("cuTensorMapEncodeTiled", code);
    return m;
  }
  template <class Arguments>
  void set_common(Arguments& a, Bases bases) const {
    const AttentionDesc& d = desc_;
    a.seed = at(bases, places_.seed), a.step = at(bases, places_.step), a.base = at(bases, places_.base);
    a.batch = int(d.batch), a.heads = int(d.heads), a.kv_heads = int(d.kv_heads), a.queries = int(d.queries), a.keys = int(d.keys), a.dim = int(d.dim);
    a.scale = float(d.scale), a.kept = kept_factor(d), a.limit = dropout_limit(d), a.stream = d.stream;
  }

  void enqueue_forward(Bases bases, StreamHandle stream) const {
    const AttentionDesc& d = desc_;
    HopperArguments a{};
    set_common(a, bases);
    a.q = map(at(bases, places_.q), d.q, d.heads, d.queries, shape_.rows());
    a.k = map(at(bases, places_.k), d.k, d.kv_heads, d.keys, shape_.columns), a.v = map(at(bases, places_.v), d.v, d.kv_heads, d.keys, shape_.columns);
    a.out = at(bases, places_.out), a.lse = at(bases, places_.lse);
    copy(d.out, a.out_strides);
    a.paired = paired_;
    void* list[] = {&a};
    const int64_t blocks = pairs_ * d.batch * d.heads;
    driver_->launch(function_, unsigned(blocks), 1, 1, unsigned(shape_.threads()), 1, 1, unsigned(text_.shared), stream, list, nullptr);
  }

  void enqueue_backward(Bases bases, StreamHandle stream) const {
    const AttentionDesc& d = desc_;
    AttentionArguments rows{};
    rows.out = at(bases, places_.out), rows.dout = at(bases, places_.dout), rows.lse = at(bases, places_.lse), rows.delta = at(bases, places_.delta);
    copy(d.out, rows.out_strides), copy(d.dout, rows.dout_strides);
    rows.batch = int(d.batch), rows.heads = int(d.heads), rows.queries = int(d.queries), rows.dim = int(d.dim);
    void* row_list[] = {&rows};
    driver_->launch(delta_function_, unsigned(blocks_of(rows_ * delta_sharers_, 128)), 1, 1, 128, 1, 1, 0, stream, row_list, nullptr);
    HopperGradArguments a{};
    set_common(a, bases);
    a.q = map(at(bases, places_.q), d.q, d.heads, d.queries, kHopperSide), a.dout = map(at(bases, places_.dout), d.dout, d.heads, d.queries, kHopperSide);
    a.k = map(at(bases, places_.k), d.k, d.kv_heads, d.keys, kHopperSide), a.v = map(at(bases, places_.v), d.v, d.kv_heads, d.keys, kHopperSide);
    a.dq = at(bases, places_.dq), a.dk = at(bases, places_.dk), a.dv = at(bases, places_.dv);
    a.rows = at(bases, places_.delta), a.sums = a.rows + DevicePointer(rows_ * 2 * int64_t(sizeof(float)));
    copy(d.dq, a.dq_strides), copy(d.dk, a.dk_strides), copy(d.dv, a.dv_strides);
    a.parts = int(parts_);
    if (shape_.sums) {
      a.partials = a.rows + DevicePointer(workspace_bytes() - sum_rows() * sums_.columns * int64_t(sizeof(float)));
      a.columns = int32_t(sums_.columns);
      for (size_t i = 0; i < 3; ++i) a.first[i] = int32_t(sums_.first[i]);
    }
    void* list[] = {&a};
    driver_->launch(function_, unsigned(blocks_), 1, 1, 384, 1, 1, unsigned(text_.shared), stream, list, nullptr);
    if (shape_.sums) {
      DevicePointer out = at(bases, sums_place_);
      int32_t rows_of_sums = int32_t(sum_rows());
      void* sums_list[] = {&a.partials, &out, &rows_of_sums, &a.columns};
      driver_->launch(sums_function_, unsigned(sums_.columns / 32), 1, 1, 256, 1, 1, 0, stream, sums_list, nullptr);
    }
    if (parts_ == 1) return;
    driver_->launch(end_function_, unsigned(d.batch * d.heads * blocks_of(d.queries, kHopperSide)), 1, 1, 256, 1, 1, 0, stream, list, nullptr);
  }

  int64_t sum_rows() const { return desc_.batch * kHopperWarps; }

  AttentionDesc desc_;
  bool backward_;
  Chip chip_;
  AttentionSums sums_;
  Place sums_place_;
  KernelText sums_text_;
  FunctionHandle sums_function_ = nullptr;
  HopperShape shape_;
  KernelText text_, delta_, end_;
  FunctionHandle function_ = nullptr, delta_function_ = nullptr, end_function_ = nullptr;
  bool paired_ = false;
  int64_t pairs_ = 0;  // forward: blocks per head
  int64_t parts_ = 1, blocks_ = 0, rows_ = 0, delta_sharers_ = 8;
  AttentionPlaces places_;
  std::unique_ptr<Kernel> tiled_;
  const Driver* driver_ = nullptr;
  int (*encode_)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int, int, int, int) = nullptr;
};

}  // namespace

bool has_hopper_attention(const AttentionDesc& d, bool backward, bool aligned, const Chip& chip) {
  if (!chip.wgmma() || !aligned || !in_pieces(d, backward) || d.mask != AttentionDesc::Mask::none || d.has_length || !(d.scale > 0)) return false;
  if (d.queries < kMinQueries || d.keys < 1 || d.batch < 1) return false;
  auto mapped = [&](const AttentionDesc::Strides& s, int64_t heads, int64_t positions) {
    const int64_t sizes[3] = {d.batch, heads, positions};
    for (size_t i = 0; i < 3; ++i)
      if (sizes[i] > 1 && (s[i] < 8 || s[i] >= int64_t(1) << 38)) return false;
    return true;
  };
  if (!mapped(d.q, d.heads, d.queries) || !mapped(d.k, d.kv_heads, d.keys) || !mapped(d.v, d.kv_heads, d.keys)) return false;
  if (!backward) return true;
  return d.dim <= 64 && mapped(d.dout, d.heads, d.queries) && (!d.causal || d.keys >= d.queries);  // every query sees a key
}

std::unique_ptr<Kernel> make_hopper_attention(const AttentionDesc& d, bool backward, const Chip& chip) {
  return std::make_unique<HopperAttention>(d, backward, chip, nullptr);
}

// The gradients must be all columns of one matrix.
std::unique_ptr<Kernel> make_hopper_attention_with_sums(const AttentionDesc& d, const AttentionSums& sums, const Chip& chip) {
  const int64_t width = d.heads * d.dim;
  const AttentionDesc::Strides rows{d.queries * sums.columns, d.dim, sums.columns, 1};
  if (d.dim != 64 || d.heads != d.kv_heads || d.queries != d.keys || d.dropout > 0 || sums.columns != 3 * width || parts_of(d, chip) > 1) return nullptr;
  if (d.dq != rows || d.dk != rows || d.dv != rows) return nullptr;
  std::array<int64_t, 3> first = sums.first;
  std::sort(first.begin(), first.end());
  if (first != std::array<int64_t, 3>{0, width, 2 * width}) return nullptr;
  return std::make_unique<HopperAttention>(d, true, chip, &sums);
}

}  // namespace ridge::cuda
