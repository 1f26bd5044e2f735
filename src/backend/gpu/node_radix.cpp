#include "backend/gpu/node_radix.h"

#include <algorithm>

#include "base/error.h"

namespace ridge::gpu {
namespace {

constexpr int64_t kTile = 1024;      // elements that a block places per step
constexpr int64_t kMaxChunks = 128;  // per row; every block adds the counts of all chunks before its own

constexpr const char* kParts = R"(
struct Args { @global const Key* keys; @global const u32* places; @global Key* to_keys; @global u32* to_places; @global u32* counts; i64 n, chunk, chunks, shift; Source source; };
RIDGE_INLINE Key key_at(@constant const Args& a, i64 row, i64 i) {
  if (kFirst) return first_key(a.source, row, i);
  return a.keys[row * a.n + i];
}
RIDGE_INLINE u32 digit_of(@constant const Args& a, Key key) { return u32(key >> a.shift) & 255u; }
)";

constexpr const char* kCount = R"(
@entry(256; radix_count; Args a) {
  @shared u32 bins[256];
  const int t = @thread;
  const i64 row = @block / a.chunks, first = @block % a.chunks * a.chunk, last = first + a.chunk < a.n ? first + a.chunk : a.n;
  bins[t] = 0;
  @barrier;
  for (i64 i = first + t; i < last; i += 256) @atomic_add(&bins[digit_of(a, key_at(a, row, i))], 1u);
  @barrier;
  a.counts[i64(@block) * 256 + t] = bins[t];
}
)";

// Thread t knows where digit t of this chunk starts. In a tile, each warp ranks 128 elements in order, with ballots over the digit's bits; then the warps'
// counts are added up, so that equal digits keep their order.
constexpr const char* kPlace = R"(
@entry(256; radix_place; Args a) {
  @shared u32 starts[8][256];
  @shared u32 sums[2][256];
  const int t = @thread, warp = t / 32, lane = t % 32;
  const i64 row = @block / a.chunks, chunk = @block % a.chunks, first = chunk * a.chunk, last = first + a.chunk < a.n ? first + a.chunk : a.n;
  u32 next = 0, total = 0;
  @global const u32* counts = a.counts + row * a.chunks * 256 + t;
@unroll 16
  for (i64 c = 0; c < a.chunks; ++c) {
    const u32 count = counts[c * 256];
    next += c < chunk ? count : 0;
    total += count;
  }
  sums[0][t] = total;
  @barrier;
  int from = 0;
  for (int d = 1; d < 256; d *= 2, from ^= 1) {
    sums[from ^ 1][t] = sums[from][t] + (t >= d ? sums[from][t - d] : 0);
    @barrier;
  }
  next += sums[from][t] - total;
  for (i64 tile = first; tile < last; tile += 1024) {
    for (int w = 0; w < 8; ++w) starts[w][t] = 0;
    @barrier;
    Key keys[4];
    u32 ranks[4];
    for (int k = 0; k < 4; ++k) {
      const i64 i = tile + warp * 128 + k * 32 + lane;
      const bool there = i < last;
      keys[k] = there ? key_at(a, row, i) : Key(0);
      const u32 digit = digit_of(a, keys[k]);
      u32 peers = @ballot(there);
      for (int bit = 0; bit < 8; ++bit) {
        const bool one = digit >> bit & 1u;
        const u32 ones = @ballot(one);
        peers &= one ? ones : ~ones;
      }
      const u32 before = starts[warp][digit], lower = @count_bits(peers & ((1u << lane) - 1u));
      ranks[k] = before + lower;
      @warp_barrier;
      if (there && lower == 0) starts[warp][digit] = before + @count_bits(peers);
      @warp_barrier;
    }
    @barrier;
    for (int w = 0; w < 8; ++w) {
      const u32 count = starts[w][t];
      starts[w][t] = next;
      next += count;
    }
    @barrier;
    for (int k = 0; k < 4; ++k) {
      const i64 i = tile + warp * 128 + k * 32 + lane;
      if (i >= last) continue;
      const u32 place = kFirst ? u32(i) : a.places[row * a.n + i];
      put(a, row, i64(starts[warp][digit_of(a, keys[k])]) + ranks[k], keys[k], place);
    }
    @barrier;
  }
}
)";

constexpr const char* kStore = R"(
RIDGE_INLINE void put(@constant const Args& a, i64 row, i64 to, Key key, u32 place) {
  a.to_keys[row * a.n + to] = key;
  a.to_places[row * a.n + to] = place;
}
)";
constexpr const char* kPutLast = R"(
RIDGE_INLINE void put(@constant const Args& a, i64 row, i64 to, Key key, u32 place) { last_put(a.source, row, to, key, place); }
)";

}  // namespace

RadixSort::RadixSort(NodeKernel& kernel, const RadixSource& source, int64_t rows, int64_t n, int bits) : rows_(rows), n_(n) {
  if (n >= (int64_t(1) << 32) - 1) fail(ErrorCode::unsupported, "[sort] {} elements to order; the GPU's sort takes fewer than 2^32 - 1 in a row", n);
  passes_ = std::max(1, (bits + 7) / 8), stores_ = source.put.empty();
  chunk_ = std::max(kTile, blocks_of(blocks_of(n, kMaxChunks), kTile) * kTile), chunks_ = blocks_of(n, chunk_);
  key_bytes_ = rounded(rows * n * source.key_bytes), place_bytes_ = rounded(rows * n * 4), counts_bytes_ = rounded(rows * chunks_ * 256 * 4);
  auto texts = [&](bool first, bool last) {
    const std::string start = source.key + constant_text("kFirst", first) + kParts;
    Texts t;
    t.count = kernel.add_text("radix_count", start + kCount);
    t.place = kernel.add_text("radix_place", start + (last && !stores_ ? source.put + kPutLast : kStore) + kPlace);
    return t;
  };
  first_ = texts(true, passes_ == 1);
  if (passes_ > 2 || (passes_ == 2 && stores_)) middle_ = texts(false, false);
  last_ = passes_ == 1 ? first_ : stores_ ? middle_ : texts(false, true);
}

int64_t RadixSort::workspace_bytes() const {
  const int buffers = std::min(2, stores_ ? passes_ : passes_ - 1);
  return counts_bytes_ + buffers * (key_bytes_ + place_bytes_);
}

void RadixSort::append(NodeKernel& kernel, Place workspace, const Words& source) const {
  for (int pass = 0; pass < passes_; ++pass) {
    const bool last = pass == passes_ - 1;
    const Place from = pass > 0 ? keys_at(workspace, pass - 1) : Place(), to = last && !stores_ ? Place() : keys_at(workspace, pass);
    Words words = {from, from ? moved(from, key_bytes_) : Place(), to, to ? moved(to, key_bytes_) : Place(), workspace, n_, chunk_, chunks_, int64_t(8 * pass)};
    words.insert(words.end(), source.begin(), source.end());
    const Texts& t = pass == 0 ? first_ : last ? last_ : middle_;
    kernel.launch(t.count, rows_ * chunks_, words);
    kernel.launch(t.place, rows_ * chunks_, std::move(words));
  }
}

}  // namespace ridge::gpu
