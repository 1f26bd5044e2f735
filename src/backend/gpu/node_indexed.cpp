// take_grad, scatter and scatter_add: deterministic for any indices. A bad index is reported and skipped.
#include <algorithm>
#include <bit>
#include <limits>

#include "backend/gpu/node_radix.h"
#include "backend/gpu/node_segments.h"
#include "base/error.h"

namespace ridge::gpu {
namespace {

constexpr int64_t kNarrowKeys = (int64_t(1) << 32) - 1;  // keys up to here take 32 bits; the largest value means none

struct KeyType {
  explicit KeyType(int64_t targets) : wide(targets >= kNarrowKeys), bits(int(std::bit_width(uint64_t(targets)))) {}
  bool wide;
  int bits;  // bad indices get the key `targets`, which is above all others
  int64_t bytes() const { return wide ? 8 : 4; }
  std::string name() const { return wide ? "unsigned long long" : "unsigned"; }
  std::string text() const { return "typedef " + name() + " Key;\n"; }
};

constexpr const char* kTakeKey = R"(
struct Source { @global const i64* index; i64 targets; @global Fault* fault; };
RIDGE_INLINE Key first_key(@constant const Source& s, i64, i64 i) {
  const i64 v = s.index[i];
  if (u64(v) < u64(s.targets)) return Key(v);
  raise_fault(s.fault, v, s.targets, -1);
  return Key(s.targets);
}
)";

// out[o, index[k], :] += g[o, k, :]
class TakeGradKernel final : public NodeKernel {
 public:
  TakeGradKernel(const Graph& graph, NodeId id, const GpuChip& chip) : NodeKernel(chip) {
    const Node& node = graph[id];
    const AxisView out(node.type().shape, int(node.attrs.ints[0]));
    const DType dtype = node.type().dtype;
    picks_ = graph.shape(node.in[1]).numel(), targets_ = out.size, bytes_ = node.type().bytes();
    // Without targets every index is bad, and the sort reports that.
    sorts_ = graph.shape(node.in[0]).numel() > 0;
    sums_ = sorts_ && bytes_ > 0;
    const KeyType key(targets_);
    if (sorts_) sort_ = RadixSort(*this, {key.text() + kTakeKey, {}, key.bytes()}, 1, picks_, key.bits);
    if (sums_) segments_ = SegmentSums(*this, dtype, SegmentSums::Result::written, key.name(), out.outer, picks_, out.size, out.inner);
  }

  int64_t workspace_bytes() const override { return sorts_ ? sort_.workspace_bytes() + (sums_ ? segments_.workspace_bytes() : 0) : 0; }

  void bind(std::span<const Place> operands, Place workspace, Place fault) override {
    clear();
    const Place g = operands[0], index = operands[1], out = operands[2];
    if (sorts_) sort_.append(*this, workspace, {index, targets_, fault});
    if (sums_)
      segments_.append(*this, g, out, sort_.keys(workspace), sort_.places(workspace), moved(workspace, sort_.workspace_bytes()));
    else
      fill_with_zeros(out, bytes_);
  }

 private:
  int64_t picks_ = 0, targets_ = 0, bytes_ = 0;
  bool sorts_ = false, sums_ = false;
  RadixSort sort_;
  SegmentSums segments_;
};

// Elements of the index that share all coordinates except the axis form a line; lines never overlap.
constexpr const char* kLines = R"(
struct Source { @global const i64* index; @global const Stored* from; @global Stored* out; @global u32* winners; i64 lines, size, inner, targets, step, numel; @global Fault* fault; i64 dims[kRank], strides[kRank]; };
// Where a line starts in the target: its coordinates with 0 on the axis.
RIDGE_INLINE i64 line_start(@constant const Source& s, i64 line) {
  i64 at = 0;
@unroll
  for (int i = kRank - 1; i >= 0; --i) {
    const i64 next = line / s.dims[i];
    at += (line - next * s.dims[i]) * s.strides[i];
    line = next;
  }
  return at;
}
// The target of element i of the index, or -1.
RIDGE_INLINE i64 target_of(@constant const Source& s, i64 i) {
  const i64 v = s.index[i];
  if (u64(v) < u64(s.targets)) return line_start(s, i / (s.size * s.inner) * s.inner + i % s.inner) + v * s.step;
  raise_fault(s.fault, v, s.targets, -1);
  return -1;
}
)";

// One thread per line, in index order.
constexpr const char* kWalk = R"(
@entry(256; scatter_lines; Source s) {
  const i64 line = i64(@block) * 256 + @thread;
  if (line >= s.lines) return;
  const i64 start = line_start(s, line), first = line / s.inner * s.size * s.inner + line % s.inner;
  for (i64 a = 0; a < s.size; ++a) {
    const i64 v = s.index[first + a * s.inner];
    if (u64(v) >= u64(s.targets)) {
      raise_fault(s.fault, v, s.targets, -1);
      continue;
    }
    @global Stored* to = s.out + start + v * s.step;
    const Stored x = s.from[first + a * s.inner];
    *to = kAdds ? store_element(add_elements(load_element(*to), load_element(x))) : x;
  }
}
)";

// The last of equal indices wins: first, each target records the highest position that writes to it.
constexpr const char* kWinners = R"(
@entry(256; scatter_winners; Source s) {
  const i64 i = i64(@block) * 256 + @thread;
  if (i >= s.lines * s.size) return;
  const i64 to = target_of(s, i);
  const u32 turn = u32(i / s.inner % s.size) + 1;
  if (to < 0) return;
  if (kMarks) @atomic_max(s.winners + to, turn);
  else if (s.winners[to] == turn) s.out[to] = s.from[i];
}
)";

// Integer sums do not depend on the order.
constexpr const char* kAtomic = R"(
@entry(256; scatter_integers; Source s) {
  const i64 i = i64(@block) * 256 + @thread;
  if (i >= s.lines * s.size) return;
  const i64 to = target_of(s, i);
  if (to >= 0) @atomic_add(s.out + to, s.from[i]);
}
)";

constexpr const char* kScatterKey = R"(
RIDGE_INLINE Key first_key(@constant const Source& s, i64, i64 i) {
  const i64 to = target_of(s, i);
  return to < 0 ? Key(s.numel) : Key(to);
}
)";

class ScatterKernel final : public NodeKernel {
 public:
  ScatterKernel(const Graph& graph, NodeId id, const GpuChip& chip) : NodeKernel(chip) {
    const Node& node = graph[id];
    const Shape &x = graph.shape(node.in[0]), &index = graph.shape(node.in[1]);
    const int axis = int(node.attrs.ints[0]);
    const DType dtype = node.type().dtype;
    const bool adds = node.op == Op::scatter_add;
    bytes_ = node.type().bytes(), numel_ = x.numel(), target_ = AxisView(x, axis), index_ = AxisView(index, axis);
    count_ = index.numel(), lines_ = index_.outer * index_.inner;
    if (count_ == 0) return;
    const Shape strides = contiguous_strides(x);
    for (int i = 0; i < index.rank(); ++i) dims_.push_back(i == axis ? 1 : index[i]), strides_.push_back(strides[i]);
    const std::string start = element_text(dtype) + constant_text("kRank", index.rank()) + constant_text("kAdds", adds) + kLines;
    const bool short_lines = index_.size <= 32 || (lines_ >= 16384 && index_.size <= 1024);
    if (index_.size == 1 || (short_lines && !(adds && is_half(dtype)))) {
      way_ = Way::lines, add_text("scatter_lines", start + kWalk);
    } else if (!adds) {
      if (index_.size >= kNarrowKeys) fail(ErrorCode::unsupported, "[scatter] {} indices along one axis; the GPU takes fewer than 2^32 - 1", index_.size);
      way_ = Way::winners;
      for (bool marks : {true, false}) add_text("scatter_winners", start + constant_text("kMarks", marks) + kWinners);
    } else if (dtype == DType::i32 || dtype == DType::i64) {
      way_ = Way::integers, add_text("scatter_integers", start + kAtomic);
    } else {
      way_ = Way::sorted;
      const KeyType key(numel_);
      sort_ = RadixSort(*this, {key.text() + start + kScatterKey, {}, key.bytes()}, 1, count_, key.bits);
      segments_ = SegmentSums(*this, dtype, SegmentSums::Result::added, key.name(), 1, count_, numel_, 1);
    }
  }

  int64_t workspace_bytes() const override {
    return way_ == Way::winners ? numel_ * 4 : way_ == Way::sorted ? sort_.workspace_bytes() + segments_.workspace_bytes() : 0;
  }

  void bind(std::span<const Place> operands, Place workspace, Place fault) override {
    clear();
    const Place x = operands[0], index = operands[1], source = operands[2], out = operands[3];
    copy(x, out, bytes_);
    if (way_ == Way::none) return;
    Words words = {index,         source, out,  way_ == Way::winners ? workspace : Place(), lines_, index_.size, index_.inner, target_.size,
                   target_.inner, numel_, fault};
    words.insert(words.end(), dims_.begin(), dims_.end());
    words.insert(words.end(), strides_.begin(), strides_.end());
    const int64_t blocks = blocks_of(way_ == Way::lines ? lines_ : count_, kBlock);
    if (way_ == Way::sorted) {
      sort_.append(*this, workspace, words);
      segments_.append(*this, source, out, sort_.keys(workspace), sort_.places(workspace), moved(workspace, sort_.workspace_bytes()));
    } else if (way_ == Way::winners) {
      fill_with_zeros(workspace, numel_ * 4);
      launch(0, blocks, words);
      launch(1, blocks, std::move(words));
    } else {
      launch(0, blocks, std::move(words));
    }
  }

 private:
  enum class Way { none, lines, winners, integers, sorted };
  Way way_ = Way::none;
  AxisView target_, index_;
  int64_t bytes_ = 0, numel_ = 0, count_ = 0, lines_ = 0;
  std::vector<int64_t> dims_, strides_;  // per line: the index's sizes, the target's strides
  RadixSort sort_;
  SegmentSums segments_;
};

}  // namespace

std::unique_ptr<Kernel> make_take_grad(const Graph& graph, NodeId node, const GpuChip& chip) { return std::make_unique<TakeGradKernel>(graph, node, chip); }
std::unique_ptr<Kernel> make_scatter(const Graph& graph, NodeId node, const GpuChip& chip) { return std::make_unique<ScatterKernel>(graph, node, chip); }

}  // namespace ridge::gpu
