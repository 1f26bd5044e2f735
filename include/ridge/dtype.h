// Element types of tensors: size, name, class and type promotion.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace ridge {

// The table of element types: name, size in bytes, class ('b': boolean, 'i': integer, 'f': floating point).
#define RIDGE_DTYPES(X) \
  X(boolean, 1, 'b')    \
  X(u8, 1, 'i')         \
  X(i32, 4, 'i')        \
  X(i64, 8, 'i')        \
  X(f16, 2, 'f')        \
  X(bf16, 2, 'f')       \
  X(f32, 4, 'f')        \
  X(f64, 8, 'f')

// The type of a tensor's elements. f16 and bf16 are storage formats: Ridge computes in f32 and rounds the results.
enum class DType : uint8_t {
#define RIDGE_DTYPE(name, bytes, kind) name,
  RIDGE_DTYPES(RIDGE_DTYPE)
#undef RIDGE_DTYPE
};
inline constexpr int kDTypes = 8;  // number of element types

// Bytes per element.
constexpr int64_t size_of(DType t) {
  constexpr int8_t bytes[kDTypes] = {
#define RIDGE_DTYPE(name, bytes, kind) bytes,
      RIDGE_DTYPES(RIDGE_DTYPE)
#undef RIDGE_DTYPE
  };
  return bytes[int(t)];
}

// The class of the type: 'b', 'i' or 'f'.
constexpr char kind_of(DType t) {
  constexpr char kinds[kDTypes] = {
#define RIDGE_DTYPE(name, bytes, kind) kind,
      RIDGE_DTYPES(RIDGE_DTYPE)
#undef RIDGE_DTYPE
  };
  return kinds[int(t)];
}

// Whether the type is floating point, or an integer. bool is neither.
constexpr bool is_float(DType t) { return kind_of(t) == 'f'; }
constexpr bool is_integer(DType t) { return kind_of(t) == 'i'; }

// The short name: "f32", "bool".
std::string_view name(DType t);

// The type with this name, also "float32", "bfloat16", "fp16" and the like; empty if there is none.
std::optional<DType> dtype_from(std::string_view text);

// The result type of an operation on a and b: bool < u8 < i32 < i64 < f16, bf16 < f32 < f64; f16 with bf16 gives f32.
DType promote(DType a, DType b);

}  // namespace ridge
