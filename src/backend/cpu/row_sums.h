// Sums selected rows of a matrix: the inner loop of an embedding's gradient.
#pragma once
#include <cstdint>

#include "ridge/dtype.h"

namespace ridge::cpu {

// out[c] = sum over k of rows[which[k] * stride + c] for c < columns, added in the order of k, in f32. `out` is f32 if `wide`, else of the rows' dtype. count
// >= 1.
using SumRows = void (*)(const void* rows, int64_t stride, const int64_t* which, int64_t count, int64_t columns, void* out, bool wide);

// For f32, bf16 and f16, using this machine's vector tier.
SumRows sum_rows(DType dtype);

}  // namespace ridge::cpu
