// Attention's kernel texts and their launch parameters.
#pragma once
#include <cstdint>
#include <string>

#include "backend/cuda/kernel.h"
#include "backend/cuda/prelude.h"

namespace ridge::cuda {

// The parameters of a text. Equal shapes are compiled once.
struct AttentionShape {
  int type = 1;                 // 0 f32, 1 bf16, 2 f16
  int dim = 64;                 // a multiple of 16
  int rows = 64, columns = 64;  // of a tile of scores: rows belong to the block, columns are iterated over
  int mask = 0;                 // 0 none, 1 boolean, 2 additive
  bool plain = false;           // f32 tiles and FMA instead of the matrix units
  bool vector = true;           // rows are 16-byte aligned
  bool causal = false, length = false, dropout = false;
  bool pieces = false;  // delta: store lse in base 2 and delta alternately, `rows` of each, padding the last group
};

enum class AttentionPart { forward, delta, grad_keys, grad_queries, decode, decode_end };
inline constexpr int kDecodeKeys = 128;  // keys per block of decode
KernelText attention_text(AttentionPart part, const AttentionShape& shape);
const char* dropout_text();  // used by all attention texts

// Attention with one query per head in one launch. The threads of a block keep so many rounds of keys and values in registers.
struct ShortDecode {
  int threads = 512;
  int rounds = 0;    // 0: there are too many keys
  int new_rows = 0;  // keys and values of the newest positions come from elsewhere and are stored; 0: none do
  explicit operator bool() const { return rounds > 0; }
};
ShortDecode short_decode(int64_t keys, int dim);
KernelText short_decode_text(const AttentionShape& shape, const ShortDecode& form);
const char* short_decode_text();
const char* decode_text();
const char* decode_end_text();

// Must match the declaration in the texts.
struct AttentionArguments {
  DevicePointer q, k, v, mask, out, dout, length, seed, step, base, lse, delta, out_to, dq, dk, dv;
  int64_t q_strides[4], k_strides[4], v_strides[4], out_strides[4], dout_strides[4], dq_strides[4], dk_strides[4], dv_strides[4], mask_strides[4];
  int32_t batch, heads, kv_heads, queries, keys, dim;
  float scale, kept;
  uint32_t limit, stream;
};

// Must match the declaration in short_decode_text.
struct DecodeArguments {
  AttentionArguments attention;
  DevicePointer keys_to, values_to, new_keys, new_values, start;
  int64_t most_start;
};

// The kernels for Hopper. A forward block takes `groups` x 64 queries and `columns` keys at a time; a backward block takes kHopperSide of both.
inline constexpr int kHopperSide = 128, kHopperWarps = 8;  // warps that compute, in a backward block
struct HopperShape {
  int type = 1;  // 1 bf16, 2 f16
  int dim = 64;  // 64 or 128; backward 64
  bool causal = false, dropout = false;
  int groups = 2, columns = 64, stages = 4, blocks = 2;
  bool split = false;  // backward: several blocks share a head
  bool sums = false;   // backward: also sums the gradients over batches and positions
  int rows() const { return groups * 64; }
  bool producer = false;  // forward: a group of its own loads tiles
  int threads() const { return groups * 128 + (producer ? 128 : 0); }
};
KernelText hopper_text(const char* entry, const HopperShape& shape, const std::string& constants, const std::string& body);
KernelText hopper_forward_text(const HopperShape& shape);
KernelText hopper_grad_text(const HopperShape& shape);
KernelText hopper_grad_end_text(const HopperShape& shape);
KernelText hopper_grad_sums_text(const HopperShape& shape);

struct alignas(64) TensorMap {  // encoded by the driver
  uint64_t words[16];
};

struct HopperArguments {
  TensorMap q, k, v;
  DevicePointer out, lse;
  int64_t out_strides[4];
  DevicePointer seed, step, base;
  int32_t batch, heads, kv_heads, queries, keys, dim, paired;
  float scale, kept;
  uint32_t limit, stream;
};

struct HopperGradArguments {
  TensorMap q, k, v, dout;
  DevicePointer dq, dk, dv, rows, sums;
  int64_t dq_strides[4], dk_strides[4], dv_strides[4];
  DevicePointer seed, step, base;
  int32_t batch, heads, kv_heads, queries, keys, dim, parts;
  float scale, kept;
  uint32_t limit, stream;
  DevicePointer partials;
  int32_t columns, first[3];
};

}  // namespace ridge::cuda
