// The vector instruction tier that selects the kernels.
#pragma once
#include <string_view>

namespace ridge {

// avx512bf16: with a native dot product of bf16 pairs; amx: also with matrix units for bf16.
enum class IsaTier { scalar, sse4, avx2, avx512, avx512bf16, amx, neon, sve };

constexpr bool has_bf16(IsaTier tier) { return tier == IsaTier::avx512bf16 || tier == IsaTier::amx; }
constexpr bool has_avx512(IsaTier tier) { return tier == IsaTier::avx512 || has_bf16(tier); }

std::string_view name(IsaTier tier);
IsaTier isa_tier();  // the best that this CPU supports; RIDGE_ISA=avx2 lowers it

}  // namespace ridge
