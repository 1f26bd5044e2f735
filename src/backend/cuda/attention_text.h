// Attention's kernel texts and the numbers that they are launched with.
#pragma once
#include <cstdint>

#include "backend/cuda/kernel.h"
#include "backend/cuda/prelude.h"

namespace ridge::cuda {

// What a text is made for. Equal ones are compiled once.
struct AttentionShape {
  int type = 1;                 // 0 f32, 1 bf16, 2 f16
  int dim = 64;                 // a multiple of 16
  int rows = 64, columns = 64;  // of a tile of scores: those of a block, and those that go by
  int mask = 0;                 // 0 none, 1 boolean, 2 additive
  bool plain = false;           // f32 tiles and FMA instead of the matrix units
  bool vector = true;           // rows lie at 16-byte addresses
  bool causal = false, length = false, dropout = false;
};

enum class AttentionPart { forward, delta, grad_keys, grad_queries };
KernelText attention_text(AttentionPart part, const AttentionShape& shape);

// As the texts declare it.
struct AttentionArguments {
  DevicePointer q, k, v, mask, out, dout, length, seed, step, base, lse, delta, out_to, dq, dk, dv;
  int64_t q_strides[4], k_strides[4], v_strides[4], out_strides[4], dout_strides[4], dq_strides[4], dk_strides[4], dv_strides[4], mask_strides[4];
  int32_t batch, heads, kv_heads, queries, keys, dim;
  float scale, kept;
  uint32_t limit, stream;
};

}  // namespace ridge::cuda
