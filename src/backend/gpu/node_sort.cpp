// sort: stable, along any axis. Keys are mapped to unsigned integers with the same order (NaN greatest and all NaNs equal, zeros of either sign equal). Rows of
// up to 2048 elements are sorted in shared memory, several per block; longer rows are radix-sorted in workspace.
#include <algorithm>
#include <bit>

#include <fmt/core.h>

#include "backend/gpu/node_radix.h"

namespace ridge::gpu {
namespace {

constexpr int64_t kSlots = 2048;

// Defines Key and key_of(), which maps a dtype's bits to ordered integers.
std::string key_text(DType dtype) {
  const int64_t bytes = size_of(dtype);
  std::string body;
  if (is_float(dtype)) {
    const char* infinity = dtype == DType::f16 ? "0x7c00u" : dtype == DType::bf16 ? "0x7f80u" : dtype == DType::f32 ? "0x7f800000u" : "0x7ff0000000000000ull";
    body = fmt::format(
        "  const Word sign = Word(Word(1) << {});\n"
        "  if (Word(bits & Word(~sign)) > {}) return Key(Word(-1));\n"
        "  if (bits == sign) bits = 0;\n"
        "  return Key(Word(bits & sign ? Word(~bits) : Word(bits | sign)));\n",
        8 * bytes - 1, infinity);
  } else if (dtype == DType::i32 || dtype == DType::i64) {
    body = fmt::format("  return Key(bits ^ Word(Word(1) << {}));\n", 8 * bytes - 1);
  } else {
    body = "  return Key(bits);\n";
  }
  return word_text(bytes) + fmt::format("typedef {} Key;\nRIDGE_INLINE Key key_of(Word bits) {{\n{}}}\n", bytes == 8 ? "unsigned long long" : "unsigned", body);
}

constexpr const char* kPlaces = R"(
struct Source { @global const Word* x; @global Word* values; @global i64* indices; i64 n, inner, descending; };
RIDGE_INLINE i64 place_of(@constant const Source& s, i64 row, i64 i) { return (row / s.inner * s.n + i) * s.inner + row % s.inner; }
RIDGE_INLINE Key first_key(@constant const Source& s, i64 row, i64 i) {
  const Key key = key_of(s.x[place_of(s, row, i)]);
  return s.descending ? Key(Word(~key)) : key;
}
)";
constexpr const char* kEmit = R"(
RIDGE_INLINE void last_put(@constant const Source& s, i64 row, i64 to, Key, u32 place) {
  const i64 at = place_of(s, row, to);
  if (s.values) s.values[at] = s.x[place_of(s, row, place)];
  if (s.indices) s.indices[at] = place;
}
)";

// A bitonic network over (key, place). Places are distinct, so the order is total. Missing elements sort last.
constexpr const char* kShort = R"(
struct Args { Source source; i64 rows, padded; };
@entry(256; sort_rows; Args a) {
  @shared Key keys[2048];
  @shared u32 places[2048];
  const int t = @thread, padded = int(a.padded);
  const i64 first = i64(@block) * (2048 / padded);
  for (int s = t; s < 2048; s += 256) {
    const i64 row = first + s / padded;
    const int i = s % padded;
    const bool there = row < a.rows && i < a.source.n;
    keys[s] = there ? first_key(a.source, row, i) : ~Key(0);
    places[s] = there ? u32(i) : ~0u;
  }
  @barrier;
  for (int k = 2; k <= padded; k *= 2) {
    for (int j = k / 2; j > 0; j /= 2) {
      for (int p = t; p < 1024; p += 256) {
        const int i = 2 * p - (p & (j - 1)), l = i + j;
        const Key x = keys[i], y = keys[l];
        const u32 u = places[i], v = places[l];
        const bool up = (i & (padded - 1) & k) == 0, greater = x > y || (x == y && u > v);
        if (greater == up) keys[i] = y, keys[l] = x, places[i] = v, places[l] = u;
      }
      @barrier;
    }
  }
  for (int s = t; s < 2048; s += 256) {
    const i64 row = first + s / padded;
    const int i = s % padded;
    if (row < a.rows && i < a.source.n) last_put(a.source, row, i, keys[s], places[s]);
  }
}
)";

class SortKernel final : public NodeKernel {
 public:
  SortKernel(const Graph& graph, NodeId id, const GpuChip& chip) : NodeKernel(chip) {
    const Node& node = graph[id];
    const Shape& shape = graph.shape(node.in[0]);
    const DType dtype = graph.dtype(node.in[0]);
    view_ = AxisView(shape, int(node.attrs.ints[0])), descending_ = node.attrs.ints[1] != 0;
    rows_ = shape.numel() == 0 ? 0 : view_.outer * view_.inner;
    if (rows_ == 0) return;
    if (view_.size <= kSlots) {
      padded_ = int64_t(std::bit_ceil(uint64_t(view_.size)));
      add_text("sort_rows", key_text(dtype) + kPlaces + kEmit + kShort);
    } else {
      radix_ = RadixSort(*this, {key_text(dtype) + kPlaces, kEmit, size_of(dtype) == 8 ? 8 : 4}, rows_, view_.size, int(8 * size_of(dtype)));
    }
  }

  int64_t workspace_bytes() const override { return rows_ > 0 && padded_ == 0 ? radix_.workspace_bytes() : 0; }

  void bind(std::span<const Place> operands, Place workspace, Place) override {
    clear();
    if (rows_ == 0 || (!operands[1] && !operands[2])) return;
    Words source = {operands[0], operands[1], operands[2], view_.size, view_.inner, int64_t(descending_)};
    if (padded_ == 0) return radix_.append(*this, workspace, source);
    source.insert(source.end(), {rows_, padded_});
    launch(0, blocks_of(rows_, kSlots / padded_), std::move(source));
  }

 private:
  AxisView view_;
  bool descending_ = false;
  int64_t rows_ = 0, padded_ = 0;  // 0: in workspace
  RadixSort radix_;
};

}  // namespace

std::unique_ptr<Kernel> make_sort(const Graph& graph, NodeId node, const GpuChip& chip) { return std::make_unique<SortKernel>(graph, node, chip); }

}  // namespace ridge::gpu
