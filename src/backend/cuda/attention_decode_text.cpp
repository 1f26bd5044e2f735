// Attention with one query per head, as in generating text token by token: many blocks stream keys and values once.
#include "backend/cuda/attention_text.h"

namespace ridge::cuda {
namespace {

// One query per head: kChunk keys per block, several threads per key; the partial results of a head's blocks are combined afterwards.
constexpr const char* kDecode = R"cuda(
constexpr int kChunk = 128;
constexpr bool kWide = kVector && kType != 0;
constexpr int kSharers = !kWide ? 32 : kDim <= 16 ? 2 : kDim <= 32 ? 4 : kDim <= 64 ? 8 : 16;  // threads of a key
constexpr int kEach = kWide ? 8 : (kDim + 31) / 32;                                             // features of a thread
constexpr int kLines = 128 / kSharers;                                                          // keys at a time
__device__ __forceinline__ void load_features(float (&x)[kEach], const void* from, i64 at, i64 stride, int part, int dim) {
  if (kWide) {
    uint4 f = part * 8 < dim ? *(const uint4*)((const half_bits*)from + at + part * 8) : make_uint4(0, 0, 0, 0);
    unsigned u[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) x[2 * e] = unpack((half_bits)(u[e] & 0xffffu)), x[2 * e + 1] = unpack((half_bits)(u[e] >> 16));
  } else {
#pragma unroll
    for (int e = 0; e < kEach; ++e) x[e] = part + 32 * e < dim ? load_number(from, at + (part + 32 * e) * stride) : 0.0f;
  }
}
__device__ __forceinline__ int feature(int part, int e) { return kWide ? part * 8 + e : part + 32 * e; }

// delta holds for each head and block of keys the largest score, the sum of weights, then the weighted sums of all features.
extern "C" __global__ void __launch_bounds__(128) attention_decode(const AttentionArguments a) {
  __shared__ float weights[kChunk];
  __shared__ float found[kLines][kDim];
  __shared__ float tops[4], totals[4];
  int blocks = (a.keys + kChunk - 1) / kChunk, head = (int)(blockIdx.x / blocks), block = (int)(blockIdx.x % blocks), j0 = block * kChunk;
  Problem p = make_problem(a, head / a.heads, head % a.heads);
  int kv = p.h / (a.heads / a.kv_heads), line = (int)threadIdx.x / kSharers, part = (int)threadIdx.x % kSharers;
  float* to = a.delta + (i64)blockIdx.x * (kDim + 2);
  int count = p.keys - j0 < kChunk ? p.keys - j0 : kChunk;
  if (count <= 0) {  // beyond the valid keys
    if (threadIdx.x == 0) to[0] = -infinity(), to[1] = 0.0f;
    return;
  }
  float q[kEach], x[kEach];
  load_features(q, a.q, p.b * a.q_strides[0] + p.h * a.q_strides[1], a.q_strides[3], part, a.dim);
  i64 k_at = p.b * a.k_strides[0] + kv * a.k_strides[1] + j0 * a.k_strides[2], v_at = p.b * a.v_strides[0] + kv * a.v_strides[1] + j0 * a.v_strides[2];
#pragma unroll 4
  for (int j = line; j < kChunk; j += kLines) {
    float sum = 0.0f;
    if (j < count) {
      load_features(x, a.k, k_at + j * a.k_strides[2], a.k_strides[3], part, a.dim);
#pragma unroll
      for (int e = 0; e < kEach; ++e) sum = fmaf(q[e], x[e], sum);
    }
#pragma unroll
    for (int step = kSharers / 2; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (part == 0) weights[j] = j < count ? score(a, p, sum, 0, j0 + j, false) : -infinity();
  }
  __syncthreads();
  float top = weights[threadIdx.x];
#pragma unroll
  for (int step = 16; step; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
  if (lane_id() == 0) tops[threadIdx.x / 32] = top;
  __syncthreads();
  top = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
  float weight = exp2f(weights[threadIdx.x] - (top == -infinity() ? 0.0f : top)), total = weight;
  weights[threadIdx.x] = kDropout && !kept_alone(p.dropout, 0, j0 + (int)threadIdx.x) ? 0.0f : weight;
#pragma unroll
  for (int step = 16; step; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  if (lane_id() == 0) totals[threadIdx.x / 32] = total;
  __syncthreads();
  float sums[kEach] = {};
#pragma unroll 4
  for (int j = line; j < count; j += kLines) {
    load_features(x, a.v, v_at + j * a.v_strides[2], a.v_strides[3], part, a.dim);
#pragma unroll
    for (int e = 0; e < kEach; ++e) sums[e] = fmaf(weights[j], x[e], sums[e]);
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e)
    if (feature(part, e) < kDim) found[line][feature(part, e)] = sums[e];
  __syncthreads();
  for (int c = (int)threadIdx.x; c < kDim; c += 128) {
    float sum = 0.0f;
    for (int l = 0; l < kLines; ++l) sum += found[l][c];
    to[2 + c] = sum;
  }
  if (threadIdx.x == 0) to[0] = top, to[1] = (totals[0] + totals[1]) + (totals[2] + totals[3]);
}
)cuda";

constexpr const char* kDecodeEnd = R"cuda(
extern "C" __global__ void __launch_bounds__(128) attention_decode_end(const AttentionArguments a) {
  int blocks = (a.keys + 127) / 128, b = (int)blockIdx.x / a.heads, h = (int)blockIdx.x % a.heads;
  const float* from = a.delta + (i64)blockIdx.x * blocks * (kDim + 2);
  float top = -infinity(), total = 0.0f;
  for (int s = 0; s < blocks; ++s) top = fmaxf(top, from[(i64)s * (kDim + 2)]);
  float least = top == -infinity() ? 0.0f : top, sum = 0.0f;
  int c = (int)threadIdx.x;
  for (int s = 0; s < blocks; ++s) {
    const float* x = from + (i64)s * (kDim + 2);
    float factor = exp2f(x[0] - least);
    total = fmaf(factor, x[1], total);
    if (c < kDim && x[1] != 0.0f) sum = fmaf(factor, x[2 + c], sum);
  }
  bool some = total != 0.0f;
  if (c < a.dim) store_number(a.out_to, b * a.out_strides[0] + h * a.out_strides[1] + c * a.out_strides[3], some ? sum * ((kDropout ? a.kept : 1.0f) / total) : 0.0f);
  if (c == 0) a.lse[blockIdx.x] = some ? fmaf(top, kLn2, logf(total)) : -infinity();
}
)cuda";

// The same for fewer keys, with one block for each head and in one launch. What does not depend on the kernel in front is fetched while that still runs.
// With kNewRows, keys and values of the newest positions are in memory of their own: they are used from there, and stored with the others.
constexpr const char* kShortDecode = R"cuda(
#ifndef RIDGE_AFTER_PREVIOUS
#define RIDGE_AFTER_PREVIOUS
#endif
constexpr int kSharers = kDim <= 16 ? 2 : kDim <= 32 ? 4 : kDim <= 64 ? 8 : 16;      // threads of a key, each with 8 features
constexpr int kLines = kDecodeThreads / kSharers, kDecodeWarps = kDecodeThreads / 32;  // keys at a time
// Of each warp: the weighted sums of all features, the largest score, the sum of weights below it.
struct DecodeShared {
  float found[kDecodeWarps][kDim];
  float tops[kDecodeWarps], totals[kDecodeWarps];
  i64 numbers[2];  // valid keys, the first new position
};
struct DecodeArguments {
  AttentionArguments attention;
  uint4 *keys_to, *values_to;
  const uint4 *new_keys, *new_values;  // [batch, heads, kNewRows, dim]
  const i64* start;                    // their first position
  i64 most_start;
};
__device__ __forceinline__ void features_of(float (&x)[8], uint4 f) {
  unsigned u[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
  for (int e = 0; e < 4; ++e) x[2 * e] = unpack((half_bits)(u[e] & 0xffffu)), x[2 * e + 1] = unpack((half_bits)(u[e] >> 16));
}
extern "C" __global__ void __launch_bounds__(kDecodeThreads) attention_decode_short(const RIDGE_CONSTANT DecodeArguments g) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  DecodeShared& s = *(DecodeShared*)shared_memory;
  const AttentionArguments& a = g.attention;
  const int head = (int)blockIdx.x, b = head / a.heads, h = head % a.heads;
  const int kv = h / (a.heads / a.kv_heads), line = (int)threadIdx.x / kSharers, part = (int)threadIdx.x % kSharers, warp = (int)threadIdx.x / 32;
  const bool inside = part * 8 < a.dim;
  const i64 k_at = b * a.k_strides[0] + kv * a.k_strides[1] + part * 8, v_at = b * a.v_strides[0] + kv * a.v_strides[1] + part * 8;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  uint4 k[kRounds], v[kRounds];
  if (kNewRows == 0) {
    RIDGE_AFTER_PREVIOUS;
  }
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int j = line + r * kLines;
    k[r] = inside && j < a.keys ? *(const uint4*)((const half_bits*)a.k + k_at + j * a.k_strides[2]) : zero;
    v[r] = inside && j < a.keys ? *(const uint4*)((const half_bits*)a.v + v_at + j * a.v_strides[2]) : zero;
  }
  Problem p;
  i64 start = 0;
  if (kNewRows > 0) {
    // Numbers from outside of the program, perhaps from the host's memory: one thread asks for them.
    if (threadIdx.x == 0) s.numbers[0] = kLength ? *a.length : a.keys, s.numbers[1] = *g.start;
    __syncthreads();
    const i64 valid = s.numbers[0];
    p.b = b, p.h = h, p.keys = valid < 0 ? 0 : valid > a.keys ? a.keys : (int)valid, p.shift = p.keys - a.queries;
    start = s.numbers[1];
    RIDGE_AFTER_PREVIOUS;
  } else {
    p = make_problem(a, b, h);
  }
  const uint4 query = inside ? *(const uint4*)((const half_bits*)a.q + b * a.q_strides[0] + h * a.q_strides[1] + part * 8) : zero;
  if (kNewRows > 0) {
    const i64 first = (i64)head * kNewRows * (a.dim / 8) + part;
    const uint4 new_key = inside ? g.new_keys[first] : zero, new_value = inside ? g.new_values[first] : zero;
    start = start < 0 ? 0 : start > g.most_start ? g.most_start : start;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const i64 j = line + r * kLines, at = j - start;
      if (inside && at >= 0 && at < kNewRows) {
        k[r] = kNewRows == 1 ? new_key : g.new_keys[first + at * (a.dim / 8)], v[r] = kNewRows == 1 ? new_value : g.new_values[first + at * (a.dim / 8)];
        g.keys_to[(k_at + j * a.k_strides[2]) / 8] = k[r], g.values_to[(v_at + j * a.v_strides[2]) / 8] = v[r];
      }
    }
  }
  // The threads of a key also hold its value, so that a warp waits for no other until it has its weighted sums.
  float q[8], x[8], scores[kRounds], top = -infinity(), total = 0.0f, sums[8] = {};
  features_of(q, query);
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    scores[r] = -infinity();
    if (r * kLines >= p.keys) continue;
    float sum = 0.0f;
    features_of(x, k[r]);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum = fmaf(q[e], x[e], sum);
#pragma unroll
    for (int step = kSharers / 2; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const int j = line + r * kLines;
    if (j < p.keys) scores[r] = score(a, p, sum, 0, j, false);
    top = fmaxf(top, scores[r]);
  }
#pragma unroll
  for (int step = 16; step >= kSharers; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
  const float least = top == -infinity() ? 0.0f : top;
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int j = line + r * kLines;
    if (j >= p.keys) continue;  // what is stored there may be no numbers
    const float weight = exp2f(scores[r] - least), kept = kDropout && !kept_alone(p.dropout, 0, j) ? 0.0f : weight;
    total += weight;
    features_of(x, v[r]);
#pragma unroll
    for (int e = 0; e < 8; ++e) sums[e] = fmaf(kept, x[e], sums[e]);
  }
#pragma unroll
  for (int step = 16; step >= kSharers; step /= 2) {
    total += __shfl_xor_sync(0xffffffffu, total, step);
#pragma unroll
    for (int e = 0; e < 8; ++e) sums[e] += __shfl_xor_sync(0xffffffffu, sums[e], step);
  }
  if ((int)lane_id() < kSharers) {
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (part * 8 + e < kDim) s.found[warp][part * 8 + e] = sums[e];
  }
  if (lane_id() == 0) s.tops[warp] = top, s.totals[warp] = total;
  __syncthreads();
  const int c = (int)threadIdx.x;
  if (c >= kDim) return;
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) top = w == 0 ? s.tops[0] : fmaxf(top, s.tops[w]);
  float sum = 0.0f;
  total = 0.0f;
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) {
    const float factor = s.totals[w] == 0.0f ? 0.0f : exp2f(s.tops[w] - top);
    total = fmaf(factor, s.totals[w], total), sum = fmaf(factor, s.found[w][c], sum);
  }
  const bool some = total != 0.0f;
  if (c < a.dim) store_number(a.out_to, b * a.out_strides[0] + h * a.out_strides[1] + c * a.out_strides[3], some ? sum * ((kDropout ? a.kept : 1.0f) / total) : 0.0f);
  if (c == 0) a.lse[head] = some ? fmaf(top, kLn2, logf(total)) : -infinity();
}
)cuda";

}  // namespace

const char* short_decode_text() { return kShortDecode; }
const char* decode_text() { return kDecode; }
const char* decode_end_text() { return kDecodeEnd; }

}  // namespace ridge::cuda
