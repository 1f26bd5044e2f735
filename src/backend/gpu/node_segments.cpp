// The sorted order is split into parts of 64 records, so that even a target that takes up half of a batch is summed by many threads. A run of records within
// one part is summed into its target; a run that spans several parts leaves partial sums, which are added in order afterwards.
#include "backend/gpu/node_segments.h"

#include <algorithm>

#include <fmt/core.h>

namespace ridge::gpu {
namespace {

constexpr int64_t kPart = 64;

constexpr const char* kSegmentParts = R"(
struct alignas(kVector * sizeof(Stored)) Vector { Stored e[kVector]; };
struct alignas(kVector * sizeof(Total) < 16 ? kVector * sizeof(Total) : 16) Sums { Total e[kVector]; };
struct Args { @global const Stored* rows; @global Stored* out; @global const Key* keys; @global const u32* places; @global Sums* partial; i64 outer, n, parts, columns, targets, sum_blocks, zero_rows; };
RIDGE_INLINE void write(@constant const Args& a, i64 o, Key key, i64 column, const Sums& sums) {
  Vector* out = (Vector*)a.out + (o * a.targets + i64(key)) * a.columns + column;
  Vector v;
  if (kAdds) v = *out;
@unroll
  for (int e = 0; e < kVector; ++e) v.e[e] = store_element(kAdds ? add_elements(load_element(v.e[e]), sums.e[e]) : sums.e[e]);
  *out = v;
}
// The first record whose key is at least `key`.
RIDGE_INLINE i64 lower_bound(@constant const Args& a, i64 key) {
  i64 low = 0, high = a.n;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (i64(a.keys[middle]) < key) low = middle + 1; else high = middle;
  }
  return low;
}
)";

constexpr const char* kSums = R"(
// Rows that no record goes to.
RIDGE_INLINE void write_zeros(@constant const Args& a, i64 block) {
  @shared unsigned char touched[1024];
  const int t = @thread;
  const i64 groups = (a.targets + a.zero_rows - 1) / a.zero_rows, o = block / groups, first = block % groups * a.zero_rows;
  const i64 last = first + a.zero_rows < a.targets ? first + a.zero_rows : a.targets;
  for (int i = t; i < a.zero_rows; i += 256) touched[i] = 0;
  @barrier;
  const i64 low = lower_bound(a, first), high = lower_bound(a, last);
  for (i64 i = low + t; i < high; i += 256) touched[i64(a.keys[i]) - first] = 1;
  @barrier;
  Vector zeros;
  for (int e = 0; e < kVector; ++e) zeros.e[e] = Stored(0);
  Vector* out = (Vector*)a.out + (o * a.targets + first) * a.columns;
  const u32 columns = u32(a.columns), count = u32((last - first) * a.columns);
  for (u32 w = t; w < count; w += 256)
    if (!touched[w / columns]) out[w] = zeros;
}

@entry(256; segment_sums; Args a) {
  if (i64(@block) >= a.sum_blocks) return write_zeros(a, i64(@block) - a.sum_blocks);
  const i64 at = i64(@block) * 256 + @thread, column = at % a.columns, unit = at / a.columns, part = unit % a.parts, o = unit / a.parts;
  if (o >= a.outer) return;
  const i64 first = part * kPart;
  const int count = int(a.n - first < kPart ? a.n - first : kPart);
  const Key none = ~Key(0), targets = Key(a.targets);
  const Key before = part > 0 ? a.keys[first - 1] : none, after = first + count < a.n ? a.keys[first + count] : none;
  const Vector* rows = (const Vector*)a.rows + o * a.n * a.columns + column;
  Key current = a.keys[first];
  bool begun = current != before;
  Sums sums;
  for (int e = 0; e < kVector; ++e) sums.e[e] = Total(0);
  for (int i = 0; i < count; i += kTogether) {
    Vector v[kTogether];
    Key keys[kTogether];
@unroll
    for (int u = 0; u < kTogether; ++u) {
      keys[u] = i + u < count ? a.keys[first + i + u] : none;
      if (keys[u] < targets) v[u] = rows[i64(a.places[first + i + u]) * a.columns];
    }
@unroll
    for (int u = 0; u < kTogether; ++u) {
      if (keys[u] >= targets) continue;
      if (keys[u] != current) {
        if (begun) write(a, o, current, column, sums); else a.partial[unit * 2 * a.columns + column] = sums;
        current = keys[u], begun = true;
        for (int e = 0; e < kVector; ++e) sums.e[e] = Total(0);
      }
      for (int e = 0; e < kVector; ++e) sums.e[e] = add_elements(sums.e[e], load_element(v[u].e[e]));
    }
  }
  if (current >= targets) return;
  if (begun && current != after) write(a, o, current, column, sums);
  else a.partial[(unit * 2 + (begun ? 1 : 0)) * a.columns + column] = sums;
}
)";

// A run that spans several parts is summed by the part in which it starts.
constexpr const char* kJoins = R"(
@entry(256; segment_joins; Args a) {
  const i64 at = i64(@block) * 256 + @thread, column = at % a.columns, unit = at / a.columns, part = unit % a.parts, o = unit / a.parts;
  if (o >= a.outer) return;
  const i64 first = part * kPart, end = first + kPart;
  if (end >= a.n) return;
  const Key key = a.keys[end - 1];
  if (key >= Key(a.targets) || a.keys[end] != key) return;
  if (a.keys[first] == key && part > 0 && a.keys[first - 1] == key) return;
  const i64 last = (lower_bound(a, i64(key) + 1) - 1) / kPart;
  const Sums* partial = a.partial + unit * 2 * a.columns + column;
  Sums sums = partial[a.columns];
@unroll 8
  for (i64 p = 1; p <= last - part; ++p) {
    const Sums more = partial[p * 2 * a.columns];
    for (int e = 0; e < kVector; ++e) sums.e[e] = add_elements(sums.e[e], more.e[e]);
  }
  write(a, o, key, column, sums);
}
)";

}  // namespace

SegmentSums::SegmentSums(NodeKernel& kernel, DType dtype, Result result, std::string key_type, int64_t outer, int64_t n, int64_t targets, int64_t inner)
    : dtype_(dtype), result_(result), key_type_(std::move(key_type)), outer_(outer), n_(n), targets_(targets), inner_(inner), parts_(blocks_of(n, kPart)) {
  partial_bytes_ = parts_ > 1 ? rounded(outer_ * parts_ * 2 * inner_ * sum_bytes(dtype_)) : 0;
  const int64_t vector = 16 / std::max<int64_t>(size_of(dtype), 2);  // one-byte elements: eight at a time
  narrow_ = add_form(kernel, 1);
  if (inner % vector == 0) wide_ = add_form(kernel, vector);
}

SegmentSums::Form SegmentSums::add_form(NodeKernel& kernel, int64_t vector) const {
  const std::string start = fmt::format("typedef {} Key;\n", key_type_) + element_text(dtype_) + constant_text("kVector", vector) +
                            constant_text("kPart", kPart) + constant_text("kTogether", vector > 1 ? 4 : 8) + constant_text("kAdds", result_ == Result::added) +
                            kSegmentParts;
  Form form{vector, kernel.add_text("segment_sums", start + kSums), -1};
  if (parts_ > 1) form.joins = kernel.add_text("segment_joins", start + kJoins);
  return form;
}

void SegmentSums::append(NodeKernel& kernel, Place rows, Place out, Place keys, Place places, Place workspace) const {
  const bool wide = wide_.vector > 0 && rows.offset % 16 == 0 && out.offset % 16 == 0;
  const Form& form = wide ? wide_ : narrow_;
  const int64_t columns = inner_ / form.vector, sum_blocks = blocks_of(outer_ * parts_ * columns, kBlock);
  const int64_t zero_rows = std::clamp<int64_t>(8192 / columns, 1, 1024);
  const int64_t zero_blocks = result_ == Result::written ? outer_ * blocks_of(targets_, zero_rows) : 0;
  const Words words = {rows, out, keys, places, workspace, outer_, n_, parts_, columns, targets_, sum_blocks, zero_rows};
  kernel.launch(form.sums, sum_blocks + zero_blocks, words);
  if (form.joins >= 0) kernel.launch(form.joins, sum_blocks, words);
}

}  // namespace ridge::gpu
