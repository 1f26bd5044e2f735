// fold, the adjoint of windows, and cumsum. The order of every sum depends only on the shape.
#include <algorithm>

#include "backend/gpu/node_parts.h"

namespace ridge::gpu {
namespace {

// Every element of the result gathers the taps that read it, in tap order: element s is tap w of window q if q * stride + w * dilation = s.
constexpr const char* kFold = R"(
struct Args { @global const Stored* g; @global Stored* out; i64 total, window, dilation, windows; Divider size, inner, stride; };
@entry(256; fold; Args a) {
  const i64 at = i64(@block) * 256 + @thread;
  if (at >= a.total) return;
  const Index size = Index(a.size.size), inner = Index(a.inner.size), stride = Index(a.stride.size), window = Index(a.window), windows = Index(a.windows);
  const Index row = quotient(a.inner, Index(at)), m = Index(at) - row * inner, o = quotient(a.size, row), s = row - o * size;
  Total sum = 0;
  Index d = s;
  for (Index w = 0; w < window && d >= 0; ++w, d -= Index(a.dilation)) {
    const Index q = quotient(a.stride, d);
    if (q * stride == d && q < windows) sum = add_elements(sum, load_element(a.g[((o * windows + q) * inner + m) * window + w]));
  }
  a.out[at] = store_element(sum);
}
)";

class FoldKernel final : public NodeKernel {
 public:
  FoldKernel(const Graph& graph, NodeId id, const GpuChip& chip) : NodeKernel(chip) {
    const Node& node = graph[id];
    const Shape& in = graph.shape(node.in[0]);
    const auto& a = node.attrs.ints;
    const int axis = int(a[0]);
    window_ = a[1], stride_ = a[2], dilation_ = a[3], windows_ = in[axis], view_ = AxisView(node.type().shape, axis);
    total_ = node.type().shape.numel();
    const int64_t largest = std::max({total_ + kBlock, in.numel(), view_.size + window_ * dilation_, stride_});
    if (total_ > 0) add_text("fold", element_text(node.type().dtype) + index_text(largest) + kFold);
  }

  void bind(std::span<const Place> operands, Place, Place) override {
    clear();
    if (total_ == 0) return;
    Words words = {operands[0], operands[1], total_, window_, dilation_, windows_};
    for (int64_t size : {view_.size, view_.inner, stride_}) append_divider(words, size);
    launch(0, blocks_of(total_, kBlock), std::move(words));
  }

 private:
  int64_t total_ = 0, window_ = 1, stride_ = 1, dilation_ = 1, windows_ = 0;
  AxisView view_;
};

// If there are few lines, they are split into chunks: first the totals of the chunks, then each chunk starting from the sum of those before it. For adjacent or
// short lines, one thread processes a chunk. For single long lines, one block does, a tile of 2048 elements at a time.
constexpr const char* kCumsumParts = R"(
struct Args { @global const Stored* x; @global Stored* out; @global Total* totals; i64 outer, size, inner, chunk, chunks, reverse; };
RIDGE_INLINE i64 place_of(@constant const Args& a, i64 o, i64 i, i64 j) { return (o * a.size + (a.reverse ? a.size - 1 - i : i)) * a.inner + j; }
RIDGE_INLINE Total start_of(@constant const Args& a, i64 o, i64 chunk, i64 j) {
  Total sum = 0;
  if (a.chunks > 1)
    for (i64 c = 0; c < chunk; ++c) sum = add_elements(sum, a.totals[(o * a.chunks + c) * a.inner + j]);
  return sum;
}
)";

constexpr const char* kCumsumLines = R"(
@entry(256; cumsum_lines; Args a) {
  const i64 at = i64(@block) * 256 + @thread;
  const i64 j = at % a.inner, rest = at / a.inner, c = rest % a.chunks, o = rest / a.chunks;
  if (o >= a.outer) return;
  const i64 first = c * a.chunk, last = first + a.chunk < a.size ? first + a.chunk : a.size;
  Total sum = kWrites ? start_of(a, o, c, j) : Total(0);
@unroll 8
  for (i64 i = first; i < last; ++i) {
    const i64 p = place_of(a, o, i, j);
    sum = add_elements(sum, load_element(a.x[p]));
    if (kWrites) a.out[p] = store_element(sum);
  }
  if (!kWrites) a.totals[(o * a.chunks + c) * a.inner + j] = sum;
}
)";

constexpr const char* kCumsumTiles = R"(
constexpr int kItems = 8, kTile = 256 * kItems;
// Over the lanes before this one; the warp's sum in the last lane's `sum`.
RIDGE_INLINE Total before_in_warp(Total& sum) {
  const int lane = @thread % 32;
  for (int d = 1; d < 32; d *= 2) {
    const Total other = @shuffle(sum, lane >= d ? lane - d : lane);
    if (lane >= d) sum = add_elements(other, sum);
  }
  const Total before = @shuffle(sum, lane > 0 ? lane - 1 : 0);
  return lane > 0 ? before : Total(0);
}
@entry(256; cumsum_tiles; Args a) {
  @shared @aligned(16) Total tile[kTile];
  @shared Total warps[8];
  const int t = @thread, warp = t / 32;
  const i64 c = @block % a.chunks, line = @block / a.chunks, j = line % a.inner, o = line / a.inner;
  const i64 first = c * a.chunk, last = first + a.chunk < a.size ? first + a.chunk : a.size;
  Total carry = 0;
  if (kWrites && c > 0) {  // the totals of the chunks before this one
    Total sum = 0;
    for (i64 k = t; k < c; k += 256) sum = add_elements(sum, a.totals[(o * a.chunks + k) * a.inner + j]);
    tile[t] = sum;
    @barrier;
    for (int d = 128; d > 0; d /= 2) {
      if (t < d) tile[t] = add_elements(tile[t], tile[t + d]);
      @barrier;
    }
    carry = tile[0];
    @barrier;
  }
  for (i64 start = first; start < last; start += kTile) {
@unroll
    for (int k = 0; k < kItems; ++k) {
      const i64 i = start + k * 256 + t;
      tile[k * 256 + t] = i < last ? load_element(a.x[place_of(a, o, i, j)]) : Total(0);
    }
    @barrier;
    Total mine[kItems];
    Total sum = 0;
@unroll
    for (int k = 0; k < kItems; ++k) mine[k] = sum = add_elements(sum, tile[t * kItems + k]);
    const Total before = before_in_warp(sum);
    if (t % 32 == 31) warps[warp] = sum;
    @barrier;
    Total ahead = carry;
    for (int w = 0; w < 8; ++w) {
      if (w < warp) ahead = add_elements(ahead, warps[w]);
      carry = add_elements(carry, warps[w]);
    }
    ahead = add_elements(ahead, before);
@unroll
    for (int k = 0; k < kItems; ++k) tile[t * kItems + k] = add_elements(ahead, mine[k]);
    @barrier;
    if (kWrites) {
@unroll
      for (int k = 0; k < kItems; ++k) {
        const i64 i = start + k * 256 + t;
        if (i < last) a.out[place_of(a, o, i, j)] = store_element(tile[k * 256 + t]);
      }
    }
    @barrier;
  }
  if (!kWrites && t == 0) a.totals[(o * a.chunks + c) * a.inner + j] = carry;
}
)";

class CumsumKernel final : public NodeKernel {
 public:
  CumsumKernel(const Graph& graph, NodeId id, const GpuChip& chip) : NodeKernel(chip) {
    const Node& node = graph[id];
    const DType dtype = node.type().dtype;
    view_ = AxisView(node.type().shape, int(node.attrs.ints[0])), reverse_ = node.attrs.ints[1] != 0;
    if (node.type().shape.numel() == 0) return;
    const int64_t lines = view_.outer * view_.inner;
    by_lines_ = view_.inner >= 16 || view_.size <= 64;
    const int64_t enough = by_lines_ ? 32768 : 1024, least = by_lines_ ? 64 : 4096, unit = by_lines_ ? 1 : 2048, most = by_lines_ ? 128 : 4096;
    chunk_ = view_.size;
    if (lines < enough && view_.size > 4 * least) {
      const int64_t chunks = std::min({most, blocks_of(view_.size, least), blocks_of(enough * 4, lines)});
      chunk_ = blocks_of(blocks_of(view_.size, chunks), unit) * unit;
    }
    chunks_ = blocks_of(view_.size, chunk_);
    totals_bytes_ = chunks_ > 1 ? lines * chunks_ * sum_bytes(dtype) : 0;
    auto text = [&](bool writes) {
      return add_text(by_lines_ ? "cumsum_lines" : "cumsum_tiles",
                      element_text(dtype) + constant_text("kWrites", writes) + kCumsumParts + (by_lines_ ? kCumsumLines : kCumsumTiles));
    };
    write_ = text(true);
    if (chunks_ > 1) totals_ = text(false);
  }

  int64_t workspace_bytes() const override { return totals_bytes_; }

  void bind(std::span<const Place> operands, Place workspace, Place) override {
    clear();
    if (write_ < 0) return;
    const int64_t units = view_.outer * view_.inner * chunks_, blocks = by_lines_ ? blocks_of(units, kBlock) : units;
    const Words words = {operands[0], operands[1], workspace, view_.outer, view_.size, view_.inner, chunk_, chunks_, int64_t(reverse_)};
    if (chunks_ > 1) launch(totals_, blocks, words);
    launch(write_, blocks, words);
  }

 private:
  AxisView view_;
  bool reverse_ = false, by_lines_ = false;
  int write_ = -1, totals_ = -1;
  int64_t chunk_ = 1, chunks_ = 1, totals_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_fold(const Graph& graph, NodeId node, const GpuChip& chip) { return std::make_unique<FoldKernel>(graph, node, chip); }
std::unique_ptr<Kernel> make_cumsum(const Graph& graph, NodeId node, const GpuChip& chip) { return std::make_unique<CumsumKernel>(graph, node, chip); }

}  // namespace ridge::gpu
