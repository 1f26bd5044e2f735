// The interface between attention.cpp, which plans, and the vector code that runs the units.
#pragma once
#include <vector>

#include "backend/cpu/attention.h"
#include "backend/cpu/variant.h"
#include "machine/features.h"

namespace ridge::cpu {

inline constexpr int64_t kAttentionKeys = 64;      // keys in a block
inline constexpr int64_t kAttentionQueries = 64;   // the most queries in a block: the widest target's; every target's width divides it
inline constexpr int64_t kAttentionFeatures = 16;  // rows of features are padded to a multiple of this

// Minimax polynomial of 2^x on [-1/2, 1/2], highest coefficient first, then the constant that rounds by addition, then the smallest exponent. Stored in memory
// that the compiler cannot see through, so that it keeps the constants in registers instead of loading them for each use.
struct Exp2Table {
  float values[8] = {0.001326472731307149f, 0.009671512991189957f, 0.05550733581185341f, 0.24022242426872253f, 0.6931470036506653f, 1.0f, 0x1.8p23f, -126.0f};
};

struct AttentionArgs {
  AttentionDesc desc;
  Exp2Table exp2;
  Ref q, k, v, mask, length, seed, step, base, out, lse, dout, dq, dk, dv, workspace;
  int64_t group = 1;          // query heads per kv head
  int64_t padded = 16;        // dim rounded up to kAttentionFeatures
  int64_t unit_queries = 64;  // forward: queries per unit, a multiple of 32
  int64_t query_units = 1;    // forward: units per (batch, head)
  // Backward: the group's query blocks (head after head) are split into chunks, and each chunk sums dk and dv separately.
  std::vector<int64_t> chunk_begin{0, 1};
  int64_t chunks() const { return int64_t(chunk_begin.size()) - 1; }
  int64_t query_blocks() const { return (desc.queries + kAttentionQueries - 1) / kAttentionQueries; }
  // One chunk with f32 outputs of whole vectors: dk and dv are summed directly in the outputs.
  bool direct() const { return chunks() == 1 && desc.dtype == DType::f32 && desc.dim == padded && desc.dk[3] == 1 && desc.dv[3] == 1; }
  int64_t scratch_sums() const { return chunks() == 1 && !direct() ? sums() : 0; }
  int64_t sums() const { return 2 * desc.keys * padded; }  // floats in one chunk's dk and dv
};

// One thread's scratch; offsets in floats.
struct AttentionScratch {
  int64_t q_t, dout_t, acc_t, q_rows, dout_rows, k_rows, v_rows, tile, bias, keep, rows, probs, words, stats, sums, end;
  AttentionScratch(int64_t padded, int64_t summed) {
    int64_t at = 0;
    auto take = [&](int64_t n) { return (at += n) - n; };
    q_t = take(padded * kAttentionQueries), dout_t = take(padded * kAttentionQueries), acc_t = take(padded * kAttentionQueries);
    q_rows = take(padded * kAttentionQueries), dout_rows = take(padded * kAttentionQueries);
    k_rows = take(padded * kAttentionKeys), v_rows = take(padded * kAttentionKeys);
    tile = take(kAttentionKeys * kAttentionQueries), bias = take(kAttentionKeys * kAttentionQueries);
    keep = take(kAttentionKeys * kAttentionQueries), rows = take(kAttentionKeys * kAttentionQueries);
    probs = take(16 * kAttentionQueries), words = take((kAttentionKeys + 8) * 16), stats = take(8 * kAttentionQueries);
    sums = take(summed), end = at;
  }
};

using AttentionRun = void (*)(const void* args, int64_t begin, int64_t end, Worker& worker);
struct AttentionGradKernels {
  AttentionRun backward, reduce;  // reduce: adds the chunks of dk and dv, one block of keys per unit
};
// `pairs`: multiply pairs of bf16; requires multiplies_pairs().
AttentionRun attention_kernel(IsaTier tier, bool pairs);

// One query against many keys, as in generating text token by token: features run along the lanes, and K and V are streamed once.
bool is_decoding(const AttentionDesc& desc);  // whether the decode kernel can be used
AttentionRun decode_kernel(IsaTier tier, DType dtype);
inline int64_t decode_scratch(const AttentionDesc& d) { return (d.dim + d.keys + kAttentionKeys) * int64_t(sizeof(float)); }
AttentionGradKernels attention_grad_kernels(IsaTier tier, bool pairs);

// Whether a native dot product of bf16 pairs can be used: rows must start with whole pairs of contiguous features.
bool multiplies_pairs(const AttentionDesc& desc, IsaTier tier, bool backward);

// Like make_attention and make_attention_grad, for one instruction tier.
std::unique_ptr<Kernel> make_attention(const AttentionDesc& desc, IsaTier tier, const KernelVariant& variant = {});
std::unique_ptr<Kernel> make_attention_grad(const AttentionDesc& desc, IsaTier tier, const KernelVariant& variant = {});

}  // namespace ridge::cpu
