// Element types: size, name, class, and the one table of promotion.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace ridge {

// name, bytes, class (b: bool, i: integer, f: floating)
#define RIDGE_DTYPES(X) \
  X(boolean, 1, 'b')    \
  X(u8, 1, 'i')         \
  X(i32, 4, 'i')        \
  X(i64, 8, 'i')        \
  X(f16, 2, 'f')        \
  X(bf16, 2, 'f')       \
  X(f32, 4, 'f')        \
  X(f64, 8, 'f')

enum class DType : uint8_t {
#define RIDGE_DTYPE(name, bytes, kind) name,
  RIDGE_DTYPES(RIDGE_DTYPE)
#undef RIDGE_DTYPE
};
inline constexpr int kDTypes = 8;

constexpr int64_t size_of(DType t) {
  constexpr int8_t bytes[kDTypes] = {
#define RIDGE_DTYPE(name, bytes, kind) bytes,
      RIDGE_DTYPES(RIDGE_DTYPE)
#undef RIDGE_DTYPE
  };
  return bytes[int(t)];
}

constexpr char kind_of(DType t) {
  constexpr char kinds[kDTypes] = {
#define RIDGE_DTYPE(name, bytes, kind) kind,
      RIDGE_DTYPES(RIDGE_DTYPE)
#undef RIDGE_DTYPE
  };
  return kinds[int(t)];
}

constexpr bool is_float(DType t) { return kind_of(t) == 'f'; }
constexpr bool is_integer(DType t) { return kind_of(t) == 'i'; }

std::string_view name(DType t);                          // "f32", "bool"
std::optional<DType> dtype_from(std::string_view text);  // also "float32", "bfloat16", "fp16", …
DType promote(DType a, DType b);                         // the type of a binary operation's result

}  // namespace ridge
