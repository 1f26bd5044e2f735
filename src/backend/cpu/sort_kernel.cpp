// Radix sort of (key, position) records. Keys are mapped to unsigned integers with the same order, so that one sort serves every dtype and both directions, and
// equal keys keep their order. Rows are distributed over threads; if there are few long rows, all threads sort them together, digit by digit.
#include "backend/cpu/sort_kernel.h"

#include "backend/cpu/node_parts.h"

namespace ridge::cpu {
namespace {

constexpr int64_t kDigits = 256;
constexpr int64_t kComparedSort = 192;  // rows up to this length are sorted by comparison
constexpr int64_t kSortUnit = 4096;     // elements per unit for short rows
constexpr int64_t kFewRows = 16, kLongRow = 65536, kChunk = 16384, kChunks = 32;

// Maps floats to unsigned integers with the same order: negative ones reversed below the positive ones, zeros equal, NaN on top.
template <class U, U kInfinity>
U float_key(U bits) {
  constexpr U kSign = U(~(U(-1) >> 1));
  if (U(bits & ~kSign) > kInfinity) return U(-1);
  if (bits == kSign) bits = 0;
  return bits & kSign ? U(~bits) : U(bits | kSign);
}
template <class U>
U signed_key(U bits) {
  return U(bits ^ U(~(U(-1) >> 1)));
}

template <DType t>
auto key_of(auto bits) {
  if constexpr (t == DType::f16)
    return float_key<uint16_t, 0x7c00>(bits);
  else if constexpr (t == DType::bf16)
    return float_key<uint16_t, 0x7f80>(bits);
  else if constexpr (t == DType::f32)
    return float_key<uint32_t, 0x7f800000>(bits);
  else if constexpr (t == DType::f64)
    return float_key<uint64_t, 0x7ff0000000000000>(bits);
  else if constexpr (t == DType::i32 || t == DType::i64)
    return signed_key(bits);
  else
    return bits;
}

// Key and position in one word, if both fit.
struct Packed {
  uint64_t word;
  Packed() = default;
  Packed(uint64_t key, int64_t at) : word(key << 32 | uint64_t(at)) {}
  int64_t at() const { return int64_t(word & 0xffffffff); }
  size_t digit(int d) const { return word >> (32 + 8 * d) & 0xff; }
  bool operator<(const Packed& o) const { return word < o.word; }
};
struct Pair {
  uint64_t key, place;
  Pair() = default;
  Pair(uint64_t k, int64_t at) : key(k), place(uint64_t(at)) {}
  int64_t at() const { return int64_t(place); }
  size_t digit(int d) const { return key >> (8 * d) & 0xff; }
  bool operator<(const Pair& o) const { return key != o.key ? key < o.key : place < o.place; }
};

template <DType t, bool kLong>
struct Kind {
  static constexpr int kBytes = int(size_of(t));
  using Word = std::conditional_t<kBytes == 1, uint8_t, std::conditional_t<kBytes == 2, uint16_t, std::conditional_t<kBytes == 4, uint32_t, uint64_t>>>;
  using Record = std::conditional_t<kBytes == 8 || kLong, Pair, Packed>;
  static Record record(Word bits, int64_t at, bool descending) {
    const Word key = key_of<t>(bits);
    return Record(descending ? Word(~key) : key, at);
  }
};

// Sorts `a` by its low `bytes` digits, using `b` as a buffer; returns the one that holds the result.
template <class Record>
Record* sort_row(Record* a, Record* b, int64_t n, int bytes) {
  if (n <= kComparedSort) {
    std::sort(a, a + n);
    return a;
  }
  int64_t counts[8][kDigits] = {};
  for (int64_t i = 0; i < n; ++i)
    for (int d = 0; d < bytes; ++d) ++counts[d][a[i].digit(d)];
  for (int d = 0; d < bytes; ++d) {
    if (counts[d][a[0].digit(d)] == n) continue;
    int64_t sum = 0;
    for (int64_t& c : counts[d]) {
      const int64_t count = c;
      c = sum, sum += count;
    }
    for (int64_t i = 0; i < n; ++i) b[counts[d][a[i].digit(d)]++] = a[i];
    std::swap(a, b);
  }
  return a;
}

class SortKernel final : public Kernel {
 public:
  SortKernel(const Graph& graph, NodeId id) {
    const Node& node = graph[id];
    const Shape& shape = graph.shape(node.in[0]);
    dtype_ = graph.dtype(node.in[0]), view_ = AxisView(shape, int(node.attrs.ints[0])), descending_ = node.attrs.ints[1] != 0;
    rows_ = shape.numel() == 0 ? 0 : view_.outer * view_.inner;
    long_positions_ = view_.size >= int64_t(1) << 32;
    record_bytes_ = size_of(dtype_) == 8 || long_positions_ ? 16 : 8;
    together_ = rows_ > 0 && rows_ < kFewRows && view_.size >= kLongRow;
    chunk_ = std::max(kChunk, blocks(view_.size, kChunks)), chunks_ = blocks(view_.size, chunk_);
    rows_per_unit_ = std::max<int64_t>(1, kSortUnit / std::max<int64_t>(view_.size, 1));
  }

  // When rows are sorted together: records [2, rows, size], then counts [rows, chunks, digits].
  int64_t workspace_bytes() const override { return together_ ? 2 * records() + rows_ * chunks_ * kDigits * 8 : 0; }
  int64_t scratch_bytes() const override { return together_ || rows_ == 0 ? 0 : 2 * view_.size * record_bytes_; }

  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    x_ = operands[0], values_ = operands[1], indices_ = operands[2], workspace_ = workspace;
    if (!values_ && !indices_) return;
    switch (dtype_) {
#define RIDGE_DTYPE(name, bytes, kind) \
  case DType::name: return long_positions_ ? append<Kind<DType::name, true>>(tasks) : append<Kind<DType::name, false>>(tasks);
      RIDGE_DTYPES(RIDGE_DTYPE)
#undef RIDGE_DTYPE
    }
  }

 private:
  int64_t records() const { return rows_ * view_.size * record_bytes_; }
  int64_t row_start(int64_t row) const { return row / view_.inner * view_.size * view_.inner + row % view_.inner; }

  template <class K>
  void load(int64_t row, int64_t first, int64_t last, typename K::Record* to, Worker& w) const {
    const auto* x = w.at<typename K::Word>(x_) + row_start(row);
    for (int64_t i = first; i < last; ++i) to[i] = K::record(x[i * view_.inner], i, descending_);
  }

  template <class K>
  void emit(int64_t row, int64_t first, int64_t last, const typename K::Record* from, Worker& w) const {
    const int64_t start = row_start(row), step = view_.inner;
    if (values_) {
      const auto* x = w.at<typename K::Word>(x_) + start;
      auto* values = w.at<typename K::Word>(values_) + start;
      for (int64_t i = first; i < last; ++i) values[i * step] = x[from[i].at() * step];
    }
    if (indices_) {
      int64_t* indices = w.at<int64_t>(indices_) + start;
      for (int64_t i = first; i < last; ++i) indices[i * step] = from[i].at();
    }
  }

  template <class K>
  void append(std::vector<Task>& tasks) {
    if (!together_) {
      const int64_t n = view_.size;
      const double element_ns = (view_.inner > 1 ? 6 : 3) + (n <= kComparedSort ? 12 : 2.0 * K::kBytes);
      return append_task(tasks, run_rows<K>, this, blocks(rows_, rows_per_unit_), double(std::min(rows_, rows_per_unit_) * n) * element_ns);
    }
    const double size = double(std::min(chunk_, view_.size));
    append_task(tasks, run_load<K>, this, rows_ * chunks_, size * 1.5);
    [&]<size_t... d>(std::index_sequence<d...>) {
      ((append_task(tasks, run_count<K, d>, this, rows_ * chunks_, size), append_task(tasks, run_place<K, d>, this, rows_ * chunks_, size * 3)), ...);
    }
    (std::make_index_sequence<size_t(K::kBytes)>());
    append_task(tasks, run_emit<K>, this, rows_ * chunks_, size * 4);
  }

  template <class K>
  static void run_rows(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const SortKernel*>(args);
    const int64_t n = k.view_.size, last = std::min(end * k.rows_per_unit_, k.rows_);
    auto *a = reinterpret_cast<typename K::Record*>(w.scratch), *b = a + n;
    for (int64_t row = begin * k.rows_per_unit_; row < last; ++row) {
      k.load<K>(row, 0, n, a, w);
      k.emit<K>(row, 0, n, sort_row(a, b, n, K::kBytes), w);
    }
  }

  // A chunk of a long row in the workspace. Records move between the two halves, once per digit.
  template <class K>
  struct Chunk {
    Chunk(const SortKernel& k, int64_t unit, size_t digit, Worker& w) : row(unit / k.chunks_), index(unit % k.chunks_) {
      first = index * k.chunk_, last = std::min(first + k.chunk_, k.view_.size);
      std::byte* base = w.at<std::byte>(k.workspace_);
      from = reinterpret_cast<typename K::Record*>(base + digit % 2 * k.records()) + row * k.view_.size;
      to = reinterpret_cast<typename K::Record*>(base + (digit + 1) % 2 * k.records()) + row * k.view_.size;
      counts = reinterpret_cast<int64_t*>(base + 2 * k.records()) + row * k.chunks_ * kDigits;
    }
    int64_t row, index, first, last;
    typename K::Record *from, *to;
    int64_t* counts;  // for the whole row, [chunks, digits]
  };

  template <class K>
  static void run_load(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const SortKernel*>(args);
    for (int64_t unit = begin; unit < end; ++unit) {
      const Chunk<K> c(k, unit, 0, w);
      k.load<K>(c.row, c.first, c.last, c.from, w);
    }
  }

  template <class K, size_t kDigit>
  static void run_count(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const SortKernel*>(args);
    for (int64_t unit = begin; unit < end; ++unit) {
      const Chunk<K> c(k, unit, kDigit, w);
      int64_t* counts = c.counts + c.index * kDigits;
      std::fill_n(counts, kDigits, 0);
      for (int64_t i = c.first; i < c.last; ++i) ++counts[c.from[i].digit(kDigit)];
    }
  }

  // A record is placed after all smaller digits, and after its own digit in earlier chunks.
  template <class K, size_t kDigit>
  static void run_place(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const SortKernel*>(args);
    for (int64_t unit = begin; unit < end; ++unit) {
      const Chunk<K> c(k, unit, kDigit, w);
      int64_t next[kDigits], smaller = 0;
      for (int64_t d = 0; d < kDigits; ++d) {
        next[d] = smaller;
        for (int64_t other = 0; other < k.chunks_; ++other) {
          const int64_t count = c.counts[other * kDigits + d];
          smaller += count;
          if (other < c.index) next[d] += count;
        }
      }
      for (int64_t i = c.first; i < c.last; ++i) c.to[next[c.from[i].digit(kDigit)]++] = c.from[i];
    }
  }

  template <class K>
  static void run_emit(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const SortKernel*>(args);
    for (int64_t unit = begin; unit < end; ++unit) {
      const Chunk<K> c(k, unit, size_t(K::kBytes), w);
      k.emit<K>(c.row, c.first, c.last, c.from, w);
    }
  }

  DType dtype_;
  AxisView view_;
  bool descending_ = false, long_positions_ = false, together_ = false;
  int64_t rows_ = 0, record_bytes_ = 8, rows_per_unit_ = 1, chunk_ = 1, chunks_ = 0;
  Ref x_, values_, indices_, workspace_;
};

}  // namespace

std::unique_ptr<Kernel> make_sort(const Graph& graph, NodeId node) { return std::make_unique<SortKernel>(graph, node); }

}  // namespace ridge::cpu
