// Shared by the kernels of single nodes: element types by dtype, plain copies, and the functions that make the kernels.
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>

#include "backend/node_parts.h"
#include "base/half.h"
#include "threads/task.h"

namespace ridge::cpu {

// How a dtype is stored and summed: half types in f32, integers modulo 2^bits, booleans with `or`.
template <class T, class S = T>
struct PlainElement {
  using Stored = T;
  using Sum = S;
  static Sum load(Stored x) { return Sum(x); }
  static Stored store(Sum x) { return Stored(x); }
  static Sum add(Sum a, Sum b) { return Sum(a + b); }
};
struct Bf16Element : PlainElement<uint16_t, float> {
  static float load(uint16_t x) { return bf16_to_f32(x); }
  static uint16_t store(float x) { return f32_to_bf16(x); }
};
struct F16Element : PlainElement<uint16_t, float> {
  static float load(uint16_t x) { return f16_to_f32(x); }
  static uint16_t store(float x) { return f32_to_f16(x); }
};
struct BoolElement : PlainElement<uint8_t> {
  static uint8_t load(uint8_t x) { return x != 0; }
  static uint8_t add(uint8_t a, uint8_t b) { return a | b; }
};

// Calls f(Element()) with the element type for a dtype.
template <class F>
decltype(auto) with_element(DType dtype, F f) {
  switch (dtype) {
    case DType::boolean: return f(BoolElement());
    case DType::u8: return f(PlainElement<uint8_t>());
    case DType::i32: return f(PlainElement<uint32_t>());
    case DType::i64: return f(PlainElement<uint64_t>());
    case DType::f16: return f(F16Element());
    case DType::bf16: return f(Bf16Element());
    case DType::f32: return f(PlainElement<float>());
    case DType::f64: return f(PlainElement<double>());
  }
  fail(ErrorCode::internal, "[node] unknown dtype {}", int(dtype));
}

// For kernels that only move data: an unsigned integer of the element's size.
template <class F>
decltype(auto) with_word(DType dtype, F f) {
  switch (size_of(dtype)) {
    case 1: return f(uint8_t());
    case 2: return f(uint16_t());
    case 4: return f(uint32_t());
    default: return f(uint64_t());
  }
}

inline int64_t sum_bytes(DType dtype) { return is_float(dtype) && size_of(dtype) == 2 ? 4 : size_of(dtype); }
inline bool sums_are_stored(DType dtype) { return sum_bytes(dtype) == size_of(dtype); }

inline int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

// A flat copy; does nothing if source and target are the same, as in an in-place update.
struct FlatCopy {
  Ref from, to;
  int64_t bytes = 0;
  void append(std::vector<Task>& tasks) const;
};

inline void append_task(std::vector<Task>& tasks, decltype(Task::run) run, const void* args, int64_t units, double unit_ns) {
  if (units > 0) tasks.push_back({run, args, units, unit_ns});
}

}  // namespace ridge::cpu
