// Attention as all backends' kernels take it: sizes, strides and options of one node of a program.
#pragma once
#include <array>
#include <cstdint>

#include "ridge/dtype.h"

namespace ridge {

struct Program;
struct ProgramKernel;

struct AttentionDesc {
  int64_t batch = 1, heads = 1, kv_heads = 1;  // kv_heads divides heads; query head h reads kv head h / (heads / kv_heads)
  int64_t queries = 1, keys = 1, dim = 1;
  DType dtype = DType::f32;                                // of q, k, v, out and their gradients; sums are f32
  using Strides = std::array<int64_t, 4>;                  // batch, head, position, feature, in elements
  Strides q{}, k{}, v{}, out{}, dout{}, dq{}, dk{}, dv{};  // only the backward kernel uses those of the gradients
  double scale = 1;
  bool causal = false;                                            // aligned at the end: query i sees keys up to i + length - queries
  enum class Mask { none, boolean, additive } mask = Mask::none;  // boolean: u8, nonzero = may attend; additive: f32
  Strides mask_strides{};                                         // batch, head, query, key; 0 where broadcast
  bool has_length = false;                                        // extra operand: one i64 at run time, the number of valid keys (a cache)
  double dropout = 0;                                             // extra operands: i64 seed, i64 step, i64 first index of this batch (see rng.h)
  uint32_t stream = 0;                                            // element index = base + ((b * heads + h) * queries + i) * keys + j
};

AttentionDesc attention_desc(const Program& program, const ProgramKernel& kernel);  // of attention or attention_grad

}  // namespace ridge
