#include "ridge/dtype.h"

#include <array>
#include <utility>

namespace ridge {

std::string_view name(DType t) {
  constexpr std::string_view names[kDTypes] = {"bool", "u8", "i32", "i64", "f16", "bf16", "f32", "f64"};
  return names[int(t)];
}

std::optional<DType> dtype_from(std::string_view text) {
  constexpr std::pair<std::string_view, DType> names[] = {
      {"bool", DType::boolean},  {"u8", DType::u8},       {"uint8", DType::u8},  {"i32", DType::i32},     {"int32", DType::i32}, {"i64", DType::i64},
      {"int64", DType::i64},     {"f16", DType::f16},     {"fp16", DType::f16},  {"float16", DType::f16}, {"half", DType::f16},  {"bf16", DType::bf16},
      {"bfloat16", DType::bf16}, {"f32", DType::f32},     {"fp32", DType::f32},  {"float32", DType::f32}, {"float", DType::f32}, {"f64", DType::f64},
      {"fp64", DType::f64},      {"float64", DType::f64}, {"double", DType::f64}};
  for (auto& [key, type] : names)
    if (key == text) return type;
  return std::nullopt;
}

DType promote(DType a, DType b) {
  using enum DType;
  // Rows and columns: bool u8 i32 i64 f16 bf16 f32 f64, as in PyTorch.
  static constexpr DType table[kDTypes][kDTypes] = {{boolean, u8, i32, i64, f16, bf16, f32, f64}, {u8, u8, i32, i64, f16, bf16, f32, f64},
                                                    {i32, i32, i32, i64, f16, bf16, f32, f64},    {i64, i64, i64, i64, f16, bf16, f32, f64},
                                                    {f16, f16, f16, f16, f16, f32, f32, f64},     {bf16, bf16, bf16, bf16, f32, bf16, f32, f64},
                                                    {f32, f32, f32, f32, f32, f32, f32, f64},     {f64, f64, f64, f64, f64, f64, f64, f64}};
  return table[int(a)][int(b)];
}

}  // namespace ridge
