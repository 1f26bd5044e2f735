// dynamic_update_slice, and pad with interior padding: move elements to computed positions.
#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/core.h>

#include "backend/gpu/node_parts.h"
#include "base/half.h"

namespace ridge::gpu {
namespace {

// One thread per word of the update. Starts are read and clamped on the device.
constexpr const char* kUpdate = R"(
struct Args {
  @global const Word* update; @global Word* out; i64 total, row_words;
  @global const i64* starts[kRank + 1]; i64 limit[kRank + 1], stride[kRank + 1], part[kRank + 1];
};
@entry(256; update_slice; Args a) {
  const i64 at = i64(@block) * 256 + @thread;
  if (at >= a.total) return;
  i64 to = 0;
  for (int i = 0; i < kRank; ++i) {
    i64 start = *a.starts[i];
    start = start < 0 ? 0 : start > a.limit[i] ? a.limit[i] : start;
    to += start * a.stride[i];
  }
  i64 row = at / a.row_words;
  to += at - row * a.row_words;
  for (int i = kRowAxes - 1; i >= 0; --i) {
    const i64 next = row / a.part[i];
    to += (row - next * a.part[i]) * a.stride[i];
    row = next;
  }
  a.out[to] = a.update[at];
}
)";

class UpdateSliceKernel final : public NodeKernel {
 public:
  UpdateSliceKernel(const Graph& graph, NodeId id, const GpuChip& chip) : NodeKernel(chip) {
    const Node& node = graph[id];
    whole_ = node.type().shape, part_ = graph.shape(node.in[1]);
    bytes_ = node.type().bytes(), element_ = size_of(node.type().dtype);
    const Shape strides = contiguous_strides(whole_);
    // Axes that the update covers completely are contiguous in both arrays, together with the axis before them.
    const int rank = whole_.rank();
    row_axes_ = rank;
    while (row_axes_ > 0 && part_[row_axes_ - 1] == whole_[row_axes_ - 1]) --row_axes_;
    row_axes_ = std::max(row_axes_ - 1, 0);
    row_bytes_ = product(part_, row_axes_, rank) * element_;
    bool wide = row_bytes_ % 16 == 0;
    for (int i = 0; i < rank; ++i) {
      stride_[i] = strides[i] * element_;
      if (i < row_axes_ || whole_[i] != part_[i]) wide = wide && stride_[i] % 16 == 0;
    }
    if (part_.numel() == 0) return;
    auto text = [&](int64_t word) {
      return add_text("update_slice", word_text(word) + constant_text("kRank", rank) + constant_text("kRowAxes", row_axes_) + kUpdate);
    };
    narrow_ = text(element_);
    if (wide) wide_ = text(16);
  }

  void bind(std::span<const Place> operands, Place, Place) override {
    clear();
    const Place x = operands[0], update = operands[1], out = operands.back();
    copy(x, out, bytes_);
    if (part_.numel() == 0) return;
    const bool wide = wide_ >= 0 && update.offset % 16 == 0 && out.offset % 16 == 0;
    const int64_t word = wide ? 16 : element_, total = part_.numel() * element_ / word;
    const int rank = whole_.rank();
    Words words = {update, out, total, row_bytes_ / word};
    for (int i = 0; i <= rank; ++i) words.push_back(i < rank ? Word(operands[size_t(2 + i)]) : Word(0));
    for (int i = 0; i <= rank; ++i) words.push_back(i < rank ? whole_[i] - part_[i] : 0);
    for (int i = 0; i <= rank; ++i) words.push_back(i < rank ? stride_[i] / word : 0);
    for (int i = 0; i <= rank; ++i) words.push_back(i < rank ? part_[i] : 1);
    launch(wide ? wide_ : narrow_, blocks_of(total, kBlock), std::move(words));
  }

 private:
  Shape whole_, part_;
  int row_axes_ = 0, narrow_ = -1, wide_ = -1;
  int64_t bytes_ = 0, element_ = 1, row_bytes_ = 0, stride_[kMaxRank] = {};  // in bytes
};

// One thread per element of the result.
constexpr const char* kPad = R"(
struct Axis { i64 in, low; Divider size, step; };
struct Args { @global const Word* x; @global Word* out; i64 total; u64 filling; Axis axes[kRank]; };
@entry(256; pad; Args a) {
  const i64 at = i64(@block) * 256 + @thread;
  if (at >= a.total) return;
  Index rest = Index(at), from = 0, scale = 1;
  bool inside = true;
@unroll
  for (int i = kRank - 1; i >= 0; --i) {
    @constant const Axis& d = a.axes[i];
    const Index next = quotient(d.size, rest), c = rest - next * Index(d.size.size) - Index(d.low), in = Index(d.in);
    const Index q = c < 0 ? 0 : quotient(d.step, c);
    inside = inside && c >= 0 && q * Index(d.step.size) == c && q < in;
    from += q * scale, scale *= in, rest = next;
  }
  a.out[at] = inside ? a.x[from] : Word(a.filling);
}
)";

class PadKernel final : public NodeKernel {
 public:
  PadKernel(const Graph& graph, NodeId id, const GpuChip& chip) : NodeKernel(chip) {
    const Node& node = graph[id];
    const Shape &in = graph.shape(node.in[0]), &out = node.type().shape;
    const std::span<const int64_t> pads(node.attrs.ints);
    const int rank = in.rank();
    filling_ = filling(node.type().dtype, node.attrs.reals[0]);
    for (int i = 0; i < rank; ++i) {
      const Axis a{in[i], out[i], pads[size_t(i)], pads[size_t(2 * rank + i)] + 1};
      if (!axes_.empty() && axes_.back().plain() && a.plain())  // merge neighbours that are not padded
        axes_.back().in *= a.in, axes_.back().out *= a.out;
      else
        axes_.push_back(a);
    }
    if (axes_.empty()) axes_.push_back({1, 1, 0, 1});
    total_ = out.numel();
    int64_t largest = std::max(total_ + kBlock, in.numel());
    for (const Axis& a : axes_) largest = std::max({largest, a.step, a.low < 0 ? a.out - a.low : a.low});
    if (total_ > 0) add_text("pad", word_text(size_of(node.type().dtype)) + index_text(largest) + constant_text("kRank", int64_t(axes_.size())) + kPad);
  }

  void bind(std::span<const Place> operands, Place, Place) override {
    clear();
    if (total_ == 0) return;
    Words words = {operands[0], operands[1], total_, int64_t(filling_)};
    for (const Axis& a : axes_) {
      words.insert(words.end(), {a.in, a.low});
      append_divider(words, std::max<int64_t>(a.out, 1)), append_divider(words, a.step);
    }
    launch(0, blocks_of(total_, kBlock), std::move(words));
  }

 private:
  struct Axis {
    int64_t in = 1, out = 1, low = 0, step = 1;
    bool plain() const { return in == out && low == 0 && step == 1; }
  };

  // The fill element's bits in a word.
  static uint64_t filling(DType dtype, double value) {
    switch (dtype) {
      case DType::boolean: return int64_t(value) != 0;
      case DType::u8: return uint8_t(int64_t(value));
      case DType::i32: return uint32_t(int64_t(value));
      case DType::i64: return uint64_t(int64_t(value));
      case DType::f16: return f32_to_f16(float(value));
      case DType::bf16: return f32_to_bf16(float(value));
      case DType::f32: return std::bit_cast<uint32_t>(float(value));
      case DType::f64: return std::bit_cast<uint64_t>(value);
    }
    return 0;
  }

  std::vector<Axis> axes_;
  uint64_t filling_ = 0;
  int64_t total_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_dynamic_update_slice(const Graph& graph, NodeId node, const GpuChip& chip) {
  return std::make_unique<UpdateSliceKernel>(graph, node, chip);
}
std::unique_ptr<Kernel> make_pad(const Graph& graph, NodeId node, const GpuChip& chip) { return std::make_unique<PadKernel>(graph, node, chip); }

}  // namespace ridge::gpu
