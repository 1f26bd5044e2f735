// Numbers in the tensor code of environments. Written this way they are literals of the graph, which the compiler can merge and fold, and not inputs.
#pragma once
#include <utility>

#include "ridge/ops.h"

namespace ridge::rl {

inline Tensor num(double value) { return full({}, value); }
inline Tensor whole(int64_t value) { return full({}, double(value), DType::i64); }

// Sine and cosine as polynomials of + − ×, so that every device computes the same bits. For |x| up to a few thousand; in double precision the error is below
// 1e-13.
std::pair<Tensor, Tensor> sine_cosine(const Tensor& x);

}  // namespace ridge::rl
