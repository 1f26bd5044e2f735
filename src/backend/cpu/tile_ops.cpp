// Handlers of the tile interpreter that only call vector code, and the choice of the instruction tier.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "backend/cpu/tile_handlers.h"
#include "base/simd.h"

namespace ridge::cpu {

// Each file of vector code fills its part of the table, for every target it is compiled for.
using Fill = void(TileHandlers&);
#if RIDGE_TIERS
namespace N_AVX3 {
Fill fill_elementwise, fill_moves, fill_reductions, fill_pairs, fill_panels;
}
namespace N_AVX2 {
Fill fill_elementwise, fill_moves, fill_reductions, fill_pairs, fill_panels;
}
namespace N_SSE4 {
Fill fill_elementwise, fill_moves, fill_reductions, fill_pairs, fill_panels;
}
#else
namespace RIDGE_ONLY_TARGET {
Fill fill_elementwise, fill_moves, fill_reductions, fill_pairs, fill_panels;
}
#endif

namespace {

TileHandlers filled_by(std::initializer_list<Fill*> parts) {
  TileHandlers t;
  for (Fill* fill : parts) fill(t);
  return t;
}

}  // namespace

const TileHandlers& tile_handlers(IsaTier tier) {
#if RIDGE_TIERS
  static const TileHandlers avx512 =
      filled_by({N_AVX3::fill_elementwise, N_AVX3::fill_moves, N_AVX3::fill_reductions, N_AVX3::fill_pairs, N_AVX3::fill_panels});
  static const TileHandlers avx2 = filled_by({N_AVX2::fill_elementwise, N_AVX2::fill_moves, N_AVX2::fill_reductions, N_AVX2::fill_pairs, N_AVX2::fill_panels});
  static const TileHandlers sse4 = filled_by({N_SSE4::fill_elementwise, N_SSE4::fill_moves, N_SSE4::fill_reductions, N_SSE4::fill_pairs, N_SSE4::fill_panels});
  static const TileHandlers avx512bf16 = [] {
    TileHandlers t = avx512;
    t.native_bf16 = true;
    t.round[int(DType::bf16)] = t.round_native, t.store[int(DType::bf16)][0] = t.store_native;
    return t;
  }();
  return has_bf16(tier) ? avx512bf16 : has_avx512(tier) ? avx512 : tier == IsaTier::avx2 ? avx2 : sse4;
#else
  (void)tier;
  namespace only = RIDGE_ONLY_TARGET;
  static const TileHandlers handlers = filled_by({only::fill_elementwise, only::fill_moves, only::fill_reductions, only::fill_pairs, only::fill_panels});
  return handlers;
#endif
}

namespace {

struct Rect {
  int64_t row = 0, rows = 0, col = 0, cols = 0;
};

// The part of the block that is within the bounds.
Rect clip(const TileLoad& load, const TileFrame& f, int64_t rows, int64_t cols) {
  int64_t r0 = 0, r1 = rows, c0 = 0, c1 = cols;
  for (const auto& b : load.bounds) {
    int64_t first = f.index[b.axis];
    if (b.axis == load.row_axis) {
      r0 = std::max(r0, b.low - first), r1 = std::min(r1, b.high - first);
    } else if (b.axis == load.col_axis) {
      c0 = std::max(c0, b.low - first), c1 = std::min(c1, b.high - first);
    } else if (first < b.low || first >= b.high) {
      return {};
    }
  }
  return {r0, std::max<int64_t>(r1 - r0, 0), c0, std::max<int64_t>(c1 - c0, 0)};
}

int64_t checked(const TileLoad& load, const TileFrame& f, int64_t index) {
  if (index >= 0 && index < load.gather_size) return index * load.gather_stride;
  f.fault->raise(index, load.gather_size);
  return 0;
}

void gather(const TileLoad& load, const TileInstr& in, const TileFrame& f, const Rect& rect) {
  const TileSlot &d = f.slots[in.d], &a = f.slots[in.a], &c = f.slots[in.c];
  auto index = [&](int64_t row, int64_t col) {
    const std::byte* p = c.p + row * c.row;
    return load.gather_wide ? reinterpret_cast<const int64_t*>(p)[col] : reinterpret_cast<const int32_t*>(p)[col];
  };
  if (load.gather_words && !load.gather_per_row && load.row_stride == 0 && rect.col == 0 && d.row == rect.cols * 4 && c.row == rect.cols * 8) {
    const int64_t n = rect.rows * rect.cols;  // one table for all rows, whose indices and results are contiguous
    if (load.gather_words(reinterpret_cast<const int64_t*>(c.p + rect.row * c.row), reinterpret_cast<const float*>(a.p), load.gather_size,
                          reinterpret_cast<float*>(d.p + rect.row * d.row), n) == n)
      return;
  }
  for (int64_t r = rect.row; r < rect.row + rect.rows; ++r) {
    std::byte* out = d.p + r * d.row + rect.col * load.bytes;
    const std::byte* p = a.p + r * load.row_stride + rect.col * load.col_stride;
    if (load.gather_per_row) {
      load.rect(out, 0, p + checked(load, f, index(r, 0)), 0, load.col_stride, 1, rect.cols);
      continue;
    }
    int64_t first = 0;
    if (load.gather_words) {
      const int64_t* indices = reinterpret_cast<const int64_t*>(c.p + r * c.row) + rect.col;
      first = load.gather_words(indices, reinterpret_cast<const float*>(p), load.gather_size, reinterpret_cast<float*>(out), rect.cols);
    }
    for (int64_t i = first; i < rect.cols; ++i)
      load.rect(out + i * load.bytes, 0, p + i * load.col_stride + checked(load, f, index(r, rect.col + i)), 0, 0, 1, 1);
  }
}

}  // namespace

void tile_load(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const TileLoad& load = *static_cast<const TileLoad*>(in.aux);
  const TileSlot &d = f.slots[in.d], &a = f.slots[in.a];
  Rect rect{0, rows, 0, cols};
  if (!load.bounds.empty()) {
    rect = clip(load, f, rows, cols);
    if (rect.rows < rows || rect.cols < cols) {
      if (load.fill) {
        TileInstr fill;
        fill.d = in.d, fill.a = in.b;
        load.fill(fill, f, rows, cols);
      } else {
        for (int64_t r = 0; r < rows; ++r) std::memset(d.p + r * d.row, 0, size_t(cols * load.bytes));
      }
    }
    if (rect.rows == 0 || rect.cols == 0) return;
  }
  if (load.gathers) return gather(load, in, f, rect);
  load.rect(d.p + rect.row * d.row + rect.col * load.bytes, d.row, a.p + rect.row * load.row_stride + rect.col * load.col_stride, load.row_stride,
            load.col_stride, rect.rows, rect.cols);
}

void tile_store(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const TileStore& store = *static_cast<const TileStore*>(in.aux);
  store.rect(f.slots[in.d].p, store.row_stride, store.col_stride, f.slots[in.a].p, f.slots[in.a].row, rows, cols);
}

template <class T>
void tile_index(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const TileIndex& index = *static_cast<const TileIndex*>(in.aux);
  int64_t first = index.offset;
  for (auto [axis, stride] : index.terms) first += f.index[axis] * stride;
  for (int64_t r = 0; r < rows; ++r, first += index.row_stride) {
    T* out = reinterpret_cast<T*>(f.slots[in.d].p + r * f.slots[in.d].row);
    for (int64_t i = 0; i < cols; ++i) out[i] = T(first + i * index.col_stride);
  }
}
template void tile_index<int32_t>(const TileInstr&, const TileFrame&, int64_t, int64_t);
template void tile_index<int64_t>(const TileInstr&, const TileFrame&, int64_t, int64_t);

void tile_check(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const TileIndex& index = *static_cast<const TileIndex*>(in.aux);
  const TileSlot &d = f.slots[in.d], &a = f.slots[in.a];
  int64_t first = index.offset;
  for (auto [axis, stride] : index.terms) first += f.index[axis] * stride;
  for (int64_t r = 0; r < rows; ++r) {
    float* out = reinterpret_cast<float*>(d.p + r * d.row);
    const std::byte* p = a.p + r * a.row;
    for (int64_t i = 0; i < cols; ++i) {
      const int64_t at = index.per_row ? 0 : i;
      const int64_t value = index.wide ? reinterpret_cast<const int64_t*>(p)[at] : reinterpret_cast<const int32_t*>(p)[at];
      const bool good = value >= 0 && value < index.limit;
      out[i] = good ? 0.f : std::numeric_limits<float>::quiet_NaN();
      if (!good) f.fault->raise(value, index.limit, first + r * index.row_stride + i * index.col_stride);
    }
  }
}

void tile_random(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const TileIndex& index = *static_cast<const TileIndex*>(in.aux);
  auto scalar = [&](uint32_t slot) { return *reinterpret_cast<const int64_t*>(f.slots[slot].p); };
  RandomKey key{uint64_t(scalar(in.a)), uint32_t(scalar(in.b)), index.stream};
  int64_t first = index.offset + scalar(in.c);
  for (auto [axis, stride] : index.terms) first += f.index[axis] * stride;
  for (int64_t r = 0; r < rows; ++r, first += index.row_stride) {
    std::byte* out = f.slots[in.d].p + r * f.slots[in.d].row;
    if (index.col_stride == 1) {
      index.words(key, uint64_t(first), cols, index.uniform, out);
    } else {
      for (int64_t i = 0; i < cols; ++i) {
        uint32_t word = random_word(key, uint64_t(first + i * index.col_stride));
        if (index.uniform) {
          reinterpret_cast<float*>(out)[i] = uniform_from(word);
        } else {
          reinterpret_cast<uint32_t*>(out)[i] = word;
        }
      }
    }
  }
}

namespace {

template <class T>
void combine_as(TileReduce op, T* value, int64_t* position, const T* other, const int64_t* other_position, int64_t n) {
  using U = std::conditional_t<std::is_same_v<T, float>, float, std::make_unsigned_t<std::conditional_t<std::is_same_v<T, float>, int, T>>>;
  for (int64_t i = 0; i < n; ++i) {
    T a = value[i], x = other[i];
    switch (op) {
      case TileReduce::sum: value[i] = T(U(a) + U(x)); break;
      case TileReduce::prod: value[i] = T(U(a) * U(x)); break;
      case TileReduce::max: value[i] = x > a || x != x ? x : a; break;
      case TileReduce::min: value[i] = x < a || x != x ? x : a; break;
      case TileReduce::arg_max:
      case TileReduce::arg_min: {
        bool wins = x != x ? a == a : op == TileReduce::arg_max ? x > a : x < a;
        if (other_position[i] >= 0 && (position[i] < 0 || wins)) value[i] = x, position[i] = other_position[i];
        break;
      }
    }
  }
}

}  // namespace

void tile_combine(TileReduce op, TileReg reg, void* value, int64_t* position, const void* other, const int64_t* other_position, int64_t n) {
  switch (reg) {
    case TileReg::f32: return combine_as(op, static_cast<float*>(value), position, static_cast<const float*>(other), other_position, n);
    case TileReg::i32: return combine_as(op, static_cast<int32_t*>(value), position, static_cast<const int32_t*>(other), other_position, n);
    case TileReg::i64: return combine_as(op, static_cast<int64_t*>(value), position, static_cast<const int64_t*>(other), other_position, n);
  }
}

}  // namespace ridge::cpu
