// The vector instruction tier that selects the kernels.
#pragma once
#include <string_view>

namespace ridge {

enum class IsaTier { scalar, sse4, avx2, avx512, avx512bf16, neon, sve };  // avx512bf16: with a native dot product of bf16 pairs

constexpr bool has_avx512(IsaTier tier) { return tier == IsaTier::avx512 || tier == IsaTier::avx512bf16; }

std::string_view name(IsaTier tier);
IsaTier isa_tier();  // the best that this CPU supports; RIDGE_ISA=avx2 lowers it

}  // namespace ridge
