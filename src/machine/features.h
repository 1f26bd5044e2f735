// The vector instruction tier that kernels are chosen by.
#pragma once
#include <string_view>

namespace ridge {

enum class IsaTier { scalar, sse4, avx2, avx512, neon, sve };

std::string_view name(IsaTier tier);
IsaTier isa_tier();          // the best that this CPU runs; RIDGE_ISA=avx2 lowers it
bool cpu_has_avx512_bf16();  // a native bf16 dot product

}  // namespace ridge
