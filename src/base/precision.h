// Number formats for activations and matmuls, by name.
#pragma once
#include <optional>
#include <string_view>

namespace ridge {

enum class Precision { fp32, tf32, bf16, fp16 };
std::string_view name(Precision precision);

// fp32 (float32, f32), tf32, bf16 (bfloat16), fp16 (float16, f16), case-insensitive; empty means auto. Anything else is ErrorCode::usage.
std::optional<Precision> parse_precision(std::string_view text);

}  // namespace ridge
