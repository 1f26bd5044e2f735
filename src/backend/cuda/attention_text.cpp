// The text of attention for any chip: tiles of scores in registers, products with mma or, for f32, FMA; only the log-sum-exp of each row is kept.
#include "backend/cuda/attention_text.h"

namespace ridge::cuda {
namespace {

constexpr const char* kDropoutText = R"cuda(
// Which elements dropout lets stay: element (query i, key j) of a head has random index first + i * keys + j.
struct Dropout {
  u64 seed, first;
  u32 step, stream, limit;
  int keys;
  bool whole;  // four keys in a row share one random block
};
__device__ __forceinline__ void set_first(Dropout& d, u64 first) {
  d.first = first;
  d.whole = ((first | (u32)d.keys) & 3u) == 0;
}

// Bit w: word w of a random block lets its element stay.
__device__ __forceinline__ unsigned kept_words(const Dropout& d, u64 block) {
  uint4 w = philox(d.seed, d.step, d.stream, block);
  return (w.x >> 8 >= d.limit ? 1u : 0u) | (w.y >> 8 >= d.limit ? 2u : 0u) | (w.z >> 8 >= d.limit ? 4u : 0u) | (w.w >> 8 >= d.limit ? 8u : 0u);
}
__device__ __forceinline__ bool kept_alone(const Dropout& d, int i, int j) {
  u64 index = d.first + (u64)i * d.keys + j;
  return kept_words(d, index >> 2) >> (index & 3) & 1u;
}

// Bits of a tile's four elements (queries i, i + 8; keys j, j + 1) and of the next tile's (8 keys later) from bit 4 on. Two threads hold the
// four keys of a random block, in two tiles: each makes the block of one tile, and they exchange.
__device__ __forceinline__ unsigned kept_in_rows(const Dropout& d, int i, int j) {
  unsigned bits = 0;
  if (d.whole) {
    unsigned odd = lane_id() & 1u;
    int first = (j & ~3) + (odd ? 8 : 0);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      unsigned mine = kept_words(d, (d.first + (u64)(i + 8 * r) * d.keys + first) >> 2);
      unsigned other = __shfl_xor_sync(0xffffffffu, mine, 1);
      unsigned near = odd ? other >> 2 & 3u : mine & 3u, far = odd ? mine >> 2 & 3u : other & 3u;
      bits |= (near << (2 * r)) | far << (4 + 2 * r);
    }
    return bits;
  }
  for (int e = 0; e < 8; ++e) bits |= (kept_alone(d, i + (e >> 1 & 1) * 8, j + (e & 1) + (e >> 2) * 8) ? 1u : 0u) << e;
  return bits;
}
// The same for a tile whose rows are keys: bit 0 (query i, key j), 1 (query i + 1), 2 and 3 (key j + 8). Four threads hold a random block's keys.
__device__ __forceinline__ unsigned kept_in_columns(const Dropout& d, int i, int j) {
  unsigned bits = 0;
  if (d.whole) {
    unsigned part = lane_id() >> 2 & 3u;
    unsigned mine = kept_words(d, (d.first + (u64)(i + (part & 1u)) * d.keys + ((j & ~3) + (part >> 1) * 8)) >> 2);
#pragma unroll
    for (unsigned e = 0; e < 4; ++e) bits |= (__shfl_sync(0xffffffffu, mine, (lane_id() & ~12u) | e << 2) >> part & 1u) << e;
    return bits;
  }
  for (int e = 0; e < 4; ++e) bits |= (kept_alone(d, i + (e & 1), j + (e >> 1) * 8) ? 1u : 0u) << e;
  return bits;
}
)cuda";

// Expects the constants kType (0 f32, 1 bf16, 2 f16), kDim (features, padded to a multiple of 16), kRows (16 per warp), kColumns, kMask (0 none, 1 boolean, 2
// additive), kPlain (tiles are f32), kVector (rows are 16-byte aligned), kCausal, kLength, kDropout, kPieces.
constexpr const char* kTiledCommon = R"cuda(
// What is known when a kernel is put into a stream. Strides in elements: batch, head, position, feature.
struct AttentionArguments {
  const void *q, *k, *v, *mask, *out, *dout;
  const i64 *length, *seed, *step, *base;
  float* lse;    // [batch, heads, queries]
  float* delta;  // as lse: dout . out of each row; kPieces: kRows of lse in base 2, then kRows of this, and so on
  void *out_to, *dq, *dk, *dv;
  i64 q_strides[4], k_strides[4], v_strides[4], out_strides[4], dout_strides[4], dq_strides[4], dk_strides[4], dv_strides[4], mask_strides[4];
  int batch, heads, kv_heads, queries, keys, dim;
  float scale;
  float kept;      // 1 / (1 - dropout)
  unsigned limit;  // dropout in units of 2^-24
  unsigned stream;
};

constexpr int kWarps = kRows / 16, kThreads = kWarps * 32;
constexpr int kPitch = kPlain ? kDim + 4 : kDim + 8;  // elements of a tile's row: ldmatrix and 16-byte loads meet no bank twice
constexpr int kTiles = kColumns / 8;                  // 8 columns of scores
constexpr int kFeatures = kDim / 8;
constexpr float kLog2e = 1.44269504088896340736f, kLn2 = 0.693147180559945309417f;

template <bool kWide>
struct TileElement {
  typedef half_bits Type;
};
template <>
struct TileElement<true> {
  typedef float Type;
};
typedef TileElement<kPlain>::Type Element;  // in shared memory

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ unsigned pack(float low, float high) { return kType == 1 ? pack_bf16(low, high) : pack_f16(low, high); }
__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if (kType == 1)
    mma_bf16(d, a, b0, b1);
  else
    mma_f16(d, a, b0, b1);
}
__device__ __forceinline__ float unpack(half_bits x) { return kType == 1 ? unpack_bf16(x) : unpack_f16(x); }
__device__ __forceinline__ float load_number(const void* p, i64 i) { return kType == 0 ? ((const float*)p)[i] : unpack(((const half_bits*)p)[i]); }
__device__ __forceinline__ void store_number(void* p, i64 i, float x) {
  if (kType == 0)
    ((float*)p)[i] = x;
  else
    ((half_bits*)p)[i] = (half_bits)(pack(x, 0.0f) & 0xffffu);
}

// What a block works on.
struct Problem {
  int b, h;   // batch, query head
  int keys;   // valid ones
  int shift;  // causal: query i sees keys up to i + shift
  Dropout dropout;
};
__device__ __forceinline__ void set_head(const AttentionArguments& a, Problem& p, int h) {
  p.h = h;
  if (kDropout) set_first(p.dropout, (u64)*a.base + ((u64)p.b * a.heads + h) * a.queries * a.keys);
}
__device__ __forceinline__ Problem make_problem(const AttentionArguments& a, int b, int h) {
  Problem p;
  p.b = b, p.keys = a.keys;
  if (kLength) {
    i64 n = *a.length;
    p.keys = n < 0 ? 0 : n > a.keys ? a.keys : (int)n;
  }
  p.shift = p.keys - a.queries;
  if (kDropout) p.dropout = {(u64)*a.seed, 0, (u32)*a.step, a.stream, a.limit, a.keys, true};
  set_head(a, p, h);
  return p;
}

__device__ __forceinline__ bool sees(const AttentionArguments& a, const Problem& p, int i, int j) {
  return j < p.keys && i < a.queries && (!kCausal || j <= i + p.shift);
}
// A score in units of log2, -inf where attention is not allowed.
__device__ __forceinline__ float score(const AttentionArguments& a, const Problem& p, float s, int i, int j, bool inside) {
  if (!inside && !sees(a, p, i, j)) return -infinity();
  if (kMask) {
    i64 at = p.b * a.mask_strides[0] + p.h * a.mask_strides[1] + i * a.mask_strides[2] + j * a.mask_strides[3];
    if (kMask == 1) return ((const unsigned char*)a.mask)[at] ? s * (a.scale * kLog2e) : -infinity();
    return fmaf(s, a.scale, ((const float*)a.mask)[at]) * kLog2e;
  }
  return s * (a.scale * kLog2e);
}
// Whether all of these queries see all of these keys, so that nothing needs to be asked for an element.
__device__ __forceinline__ bool all_inside(const AttentionArguments& a, const Problem& p, int i0, int rows, int j0, int columns) {
  return i0 + rows <= a.queries && j0 + columns <= p.keys && (!kCausal || j0 + columns - 1 <= i0 + p.shift);
}

// Rows [first, first + count) of one head into a tile; zeros beyond the end and beyond the features.
__device__ __forceinline__ void load_tile(Element* tile, const void* from, const i64 (&strides)[4], int b, int h, int first, int count, int end, int dim) {
  i64 start = b * strides[0] + h * strides[1];
  if (!kPlain && kVector) {
    constexpr int kChunks = kDim / 8;
    const half_bits* head = (const half_bits*)from + start;
    for (int c = (int)threadIdx.x; c < count * kChunks; c += kThreads) {
      int row = c / kChunks, chunk = c % kChunks;
      bool there = first + row < end && chunk * 8 < dim;
      copy_async_16(tile + row * kPitch + chunk * 8, head + (there ? (first + row) * strides[2] + chunk * 8 : 0), there);
    }
  } else {
    for (int c = (int)threadIdx.x; c < count * kDim; c += kThreads) {
      int row = c / kDim, column = c % kDim;
      bool there = first + row < end && column < dim;
      i64 at = start + (first + row) * strides[2] + column * strides[3];
      if (kPlain)
        tile[row * kPitch + column] = there ? load_number(from, at) : 0.0f;
      else
        tile[row * kPitch + column] = there ? ((const half_bits*)from)[at] : (half_bits)0;
    }
  }
}

// sums[n] += a's rows [row, row + 16) times b's rows [8 n, 8 n + 8), over features.
__device__ __forceinline__ void multiply_rows(float (&sums)[kTiles][4], const Element* a, int row, const Element* b) {
  int lane = (int)lane_id();
  if (kPlain) {
    const float* x = (const float*)a + (row + lane / 4) * kPitch;
    const float* y = (const float*)b + (lane % 4) * 2 * kPitch;
#pragma unroll 1
    for (int d = 0; d < kDim; d += 4) {
      float4 x0 = *(const float4*)(x + d), x1 = *(const float4*)(x + 8 * kPitch + d);
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float4 z = *(const float4*)(y + (8 * n + c) * kPitch + d);
          sums[n][c] = fmaf(x0.x, z.x, fmaf(x0.y, z.y, fmaf(x0.z, z.z, fmaf(x0.w, z.w, sums[n][c]))));
          sums[n][c + 2] = fmaf(x1.x, z.x, fmaf(x1.y, z.y, fmaf(x1.z, z.z, fmaf(x1.w, z.w, sums[n][c + 2]))));
        }
    }
    return;
  }
  const Element* x = a + (row + lane % 16) * kPitch + lane / 16 * 8;
  const Element* y = b + (lane % 8 + lane / 16 * 8) * kPitch + lane / 8 % 2 * 8;
#pragma unroll
  for (int d = 0; d < kDim; d += 16) {
    unsigned f[4];
    load_matrices(f, x + d);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      unsigned g[4];
      load_matrices(g, y + n * 8 * kPitch + d);
      multiply(sums[n], f, g[0], g[1]);
      multiply(sums[n + 1], f, g[2], g[3]);
    }
  }
}

// sums[f] += weights (16 x kColumns, as multiply_rows leaves them) times b (kColumns rows), 8 features at a time.
__device__ __forceinline__ void multiply_weights(float (&sums)[kFeatures][4], const float (&weights)[kTiles][4], const Element* b) {
  int lane = (int)lane_id();
  if (kPlain) {
    const float* y = (const float*)b + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        float w0 = __shfl_sync(0xffffffffu, weights[n][c % 2], (lane & ~3) | c / 2), w1 = __shfl_sync(0xffffffffu, weights[n][c % 2 + 2], (lane & ~3) | c / 2);
#pragma unroll
        for (int f = 0; f < kFeatures; ++f) {
          float2 z = *(const float2*)(y + (8 * n + c) * kPitch + 8 * f);
          sums[f][0] = fmaf(w0, z.x, sums[f][0]), sums[f][1] = fmaf(w0, z.y, sums[f][1]);
          sums[f][2] = fmaf(w1, z.x, sums[f][2]), sums[f][3] = fmaf(w1, z.y, sums[f][3]);
        }
      }
    return;
  }
  const Element* y = b + (lane % 16) * kPitch + lane / 16 * 8;
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    unsigned w[4] = {pack(weights[n][0], weights[n][1]), pack(weights[n][2], weights[n][3]), pack(weights[n + 1][0], weights[n + 1][1]),
                     pack(weights[n + 1][2], weights[n + 1][3])};
#pragma unroll
    for (int f = 0; f < kFeatures; f += 2) {
      unsigned g[4];
      load_matrices_transposed(g, y + n * 8 * kPitch + f * 8);
      multiply(sums[f], w, g[0], g[1]);
      multiply(sums[f + 1], w, g[2], g[3]);
    }
  }
}

// Rows of sums, each times a factor, to where they stay: through the warp's own 16 rows of a tile that nobody reads any more.
__device__ __forceinline__ void store_rows(const float (&sums)[kFeatures][4], float top, float bottom, Element* tile, void* to, const i64 (&strides)[4], int b,
                                           int h, int first, int end, int dim) {
  int lane = (int)lane_id();
  i64 start = b * strides[0] + h * strides[1];
  if (!kPlain && kVector) {
    unsigned* words = (unsigned*)(tile + (lane / 4) * kPitch) + lane % 4;
#pragma unroll
    for (int f = 0; f < kFeatures; ++f) {
      words[f * 4] = pack(sums[f][0] * top, sums[f][1] * top);
      words[8 * kPitch / 2 + f * 4] = pack(sums[f][2] * bottom, sums[f][3] * bottom);
    }
    __syncwarp();
    constexpr int kChunks = kDim / 8;
    for (int c = lane; c < 16 * kChunks; c += 32) {
      int row = c / kChunks, chunk = c % kChunks;
      if (first + row < end && chunk * 8 < dim)
        *(uint4*)((half_bits*)to + start + (first + row) * strides[2] + chunk * 8) = *(const uint4*)(tile + row * kPitch + chunk * 8);
    }
    return;
  }
#pragma unroll
  for (int f = 0; f < kFeatures; ++f)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      int row = first + lane / 4 + e / 2 * 8, column = f * 8 + lane % 4 * 2 + e % 2;
      if (row < end && column < dim) store_number(to, start + row * strides[2] + column * strides[3], sums[f][e] * (e < 2 ? top : bottom));
    }
}

__device__ __forceinline__ float across_row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float across_row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Blocks that some of the queries [i0, i0 + kRows) see.
__device__ __forceinline__ int visible_blocks(const AttentionArguments& a, const Problem& p, int i0) {
  int last = i0 + kRows < a.queries ? i0 + kRows : a.queries;
  int end = kCausal ? last + p.shift : p.keys;
  end = end < 0 ? 0 : end > p.keys ? p.keys : end;
  return (end + kColumns - 1) / kColumns;
}

__device__ __forceinline__ float finite_lse(float lse) { return lse == -infinity() ? 0.0f : lse * kLog2e; }
)cuda";

constexpr const char* kTiledForward = R"cuda(
// One block: kRows queries of one head; the keys go by.
extern "C" __global__ void __launch_bounds__(kThreads) attention_forward(const AttentionArguments a) {
  Element* q_tile = (Element*)shared_memory;
  Element *k_tile = q_tile + kRows * kPitch, *v_tile = k_tile + kColumns * kPitch;
  int blocks = (a.queries + kRows - 1) / kRows, head = (int)(blockIdx.x / blocks);
  int i0 = (blocks - 1 - (int)(blockIdx.x % blocks)) * kRows;  // those that see most first
  Problem p = make_problem(a, head / a.heads, head % a.heads);
  int kv = p.h / (a.heads / a.kv_heads), steps = visible_blocks(a, p, i0);
  int warp = (int)threadIdx.x / 32, lane = (int)lane_id();
  int i = i0 + warp * 16 + lane / 4;
  float sums[kFeatures][4] = {}, top[2] = {-infinity(), -infinity()}, total[2] = {0.0f, 0.0f};
  load_tile(q_tile, a.q, a.q_strides, p.b, p.h, i0, kRows, a.queries, a.dim);
  if (steps) load_tile(k_tile, a.k, a.k_strides, p.b, kv, 0, kColumns, p.keys, a.dim);
  copy_async_commit();
  for (int step = 0; step < steps; ++step) {
    int j0 = step * kColumns;
    copy_async_wait<0>();
    __syncthreads();  // keys are there, and the values of the step before have been read
    load_tile(v_tile, a.v, a.v_strides, p.b, kv, j0, kColumns, p.keys, a.dim);
    copy_async_commit();
    float s[kTiles][4] = {};
    multiply_rows(s, q_tile, warp * 16, k_tile);
    bool inside = all_inside(a, p, i0, kRows, j0, kColumns);
    float high[2] = {top[0], top[1]};
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[n][e] = score(a, p, s[n][e], i + e / 2 * 8, j0 + n * 8 + lane % 4 * 2 + e % 2, inside);
        high[e / 2] = fmaxf(high[e / 2], s[n][e]);
      }
    float shrink[2], from[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      high[r] = across_row_max(high[r]);
      from[r] = high[r] == -infinity() ? 0.0f : high[r];  // a row that has seen nothing yet
      shrink[r] = exp2_fast(top[r] - from[r]);
      top[r] = high[r];
      total[r] *= shrink[r];
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[n][e] = kPlain ? exp2f(s[n][e] - from[e / 2]) : exp2_fast(s[n][e] - from[e / 2]);
        total[e / 2] += s[n][e];
      }
    if (kDropout) {
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        unsigned bits = kept_in_rows(p.dropout, i, j0 + n * 8 + lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 8; ++e) s[n + e / 4][e % 4] = bits >> e & 1u ? s[n + e / 4][e % 4] : 0.0f;
      }
    }
#pragma unroll
    for (int f = 0; f < kFeatures; ++f)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[f][e] *= shrink[e / 2];
    copy_async_wait<0>();
    __syncthreads();  // values are there, and all have read the keys
    if (step + 1 < steps) load_tile(k_tile, a.k, a.k_strides, p.b, kv, j0 + kColumns, kColumns, p.keys, a.dim);
    copy_async_commit();
    multiply_weights(sums, s, v_tile);
  }
  copy_async_wait<0>();
  __syncthreads();
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] = across_row_sum(total[r]);
    bool some = total[r] != 0.0f;  // a row without keys gives zeros
    factor[r] = some ? (kDropout ? a.kept / total[r] : 1.0f / total[r]) : 0.0f;
    if (lane % 4 == 0 && i + 8 * r < a.queries)
      a.lse[((i64)p.b * a.heads + p.h) * a.queries + i + 8 * r] = some ? fmaf(top[r], kLn2, logf(total[r])) : -infinity();
  }
  store_rows(sums, factor[0], factor[1], q_tile + warp * 16 * kPitch, a.out_to, a.out_strides, p.b, p.h, i0 + warp * 16, a.queries, a.dim);
}
)cuda";

constexpr const char* kDelta = R"cuda(
// delta: a few threads a row. In pieces there are whole ones alone: rows beyond the end have weights of 0.
constexpr bool kWide = kVector && !kPlain;
constexpr int kSharers = !kWide ? 32 : kDim <= 16 ? 2 : kDim <= 32 ? 4 : kDim <= 64 ? 8 : 16;
extern "C" __global__ void __launch_bounds__(128) attention_delta(const AttentionArguments a) {
  int queries = kPieces ? (a.queries + kRows - 1) / kRows * kRows : a.queries, h, at, b;
  bool live = true;
  if (kPieces) {  // a block has rows of one head, so that what is stored for them lies together; the next block those of the next head
    constexpr int kEach = 128 / kSharers;
    int steps = queries / kEach;
    h = (int)(blockIdx.x % a.heads), at = (int)(blockIdx.x / a.heads % steps) * kEach + (int)threadIdx.x / kSharers, b = (int)(blockIdx.x / a.heads / steps);
  } else {  // as the output lies
    i64 row = ((i64)blockIdx.x * 128 + threadIdx.x) / kSharers, rows = (i64)a.batch * a.heads * queries;
    live = row < rows;
    if (!live) row = rows - 1;
    h = (int)(row % a.heads), at = (int)(row / a.heads % queries), b = (int)(row / a.heads / queries);
  }
  int i = at < a.queries ? at : a.queries - 1;
  float sum = 0.0f, lse = kPieces ? a.lse[((i64)b * a.heads + h) * a.queries + i] : 0.0f;
  i64 x = b * a.out_strides[0] + h * a.out_strides[1] + i * a.out_strides[2], y = b * a.dout_strides[0] + h * a.dout_strides[1] + i * a.dout_strides[2];
  int part = (int)threadIdx.x % kSharers;
  if (kWide) {
    if (part * 8 < a.dim) {
      uint4 f = *(const uint4*)((const half_bits*)a.out + x + part * 8), g = *(const uint4*)((const half_bits*)a.dout + y + part * 8);
      unsigned u[4] = {f.x, f.y, f.z, f.w}, v[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sum = fmaf(unpack((half_bits)(u[e] & 0xffffu)), unpack((half_bits)(v[e] & 0xffffu)), sum);
        sum = fmaf(unpack((half_bits)(u[e] >> 16)), unpack((half_bits)(v[e] >> 16)), sum);
      }
    }
  } else {
    for (int c = part; c < a.dim; c += kSharers) sum = fmaf(load_number(a.out, x + c * a.out_strides[3]), load_number(a.dout, y + c * a.dout_strides[3]), sum);
  }
#pragma unroll
  for (int step = kSharers / 2; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (!live || part != 0) return;
  float* to = a.delta + ((i64)b * a.heads + h) * queries * (kPieces ? 2 : 1);
  if (!kPieces) {
    to[i] = sum;
    return;
  }
  to += at / kRows * 2 * kRows + at % kRows;
  to[0] = at < a.queries ? lse * kLog2e : infinity();
  to[kRows] = at < a.queries ? sum : 0.0f;
}
)cuda";

constexpr const char* kGradKeys = R"cuda(
// dk and dv of kRows keys of one kv head: the queries of all heads that share it go by, in order. Scores lie with keys as rows.
extern "C" __global__ void __launch_bounds__(kThreads) attention_grad_keys(const AttentionArguments a) {
  Element* k_tile = (Element*)shared_memory;
  Element *v_tile = k_tile + kRows * kPitch, *q_tile = v_tile + kRows * kPitch, *d_tile = q_tile + kColumns * kPitch;
  float *lse = (float*)(d_tile + kColumns * kPitch), *delta = lse + kColumns;
  int blocks = (a.keys + kRows - 1) / kRows, head = (int)(blockIdx.x / blocks), j0 = (int)(blockIdx.x % blocks) * kRows;
  int share = a.heads / a.kv_heads, kv = head % a.kv_heads;
  Problem p = make_problem(a, head / a.kv_heads, kv * share);
  int warp = (int)threadIdx.x / 32, lane = (int)lane_id();
  int j = j0 + warp * 16 + lane / 4;
  float dk[kFeatures][4] = {}, dv[kFeatures][4] = {};
  load_tile(k_tile, a.k, a.k_strides, p.b, kv, j0, kRows, p.keys, a.dim);
  load_tile(v_tile, a.v, a.v_strides, p.b, kv, j0, kRows, p.keys, a.dim);
  copy_async_commit();  // also waited for if no query sees these keys
  int begin = kCausal ? j0 - p.shift : 0;
  begin = begin < 0 ? 0 : begin / kColumns * kColumns;
  if (j0 >= p.keys) begin = a.queries;
  for (int h = 0; h < share; ++h) {
    set_head(a, p, kv * share + h);
    for (int i0 = begin; i0 < a.queries; i0 += kColumns) {
      __syncthreads();  // all have read the tiles of the step before
      load_tile(q_tile, a.q, a.q_strides, p.b, p.h, i0, kColumns, a.queries, a.dim);
      load_tile(d_tile, a.dout, a.dout_strides, p.b, p.h, i0, kColumns, a.queries, a.dim);
      copy_async_commit();
      for (int c = (int)threadIdx.x; c < kColumns; c += kThreads) {
        i64 at = ((i64)p.b * a.heads + p.h) * a.queries + i0 + c;
        bool there = i0 + c < a.queries;
        lse[c] = there ? finite_lse(a.lse[at]) : 0.0f;
        delta[c] = there ? a.delta[at] : 0.0f;
      }
      copy_async_wait<0>();
      __syncthreads();
      float s[kTiles][4] = {}, dp[kTiles][4] = {};
      multiply_rows(s, k_tile, warp * 16, q_tile);
      multiply_rows(dp, v_tile, warp * 16, d_tile);
      bool inside = all_inside(a, p, i0, kColumns, j0, kRows);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        int c0 = n * 8 + lane % 4 * 2;
        unsigned bits = kDropout ? kept_in_columns(p.dropout, i0 + c0, j) : 15u;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          int c = c0 + e % 2;
          float x = score(a, p, s[n][e], i0 + c, j + e / 2 * 8, inside) - lse[c];
          float w = kPlain ? exp2f(x) : exp2_fast(x);
          bool stays = !kDropout || (bits >> e & 1u);
          float g = kDropout ? (stays ? dp[n][e] * a.kept : 0.0f) : dp[n][e];
          s[n][e] = stays ? w : 0.0f;
          dp[n][e] = w * (g - delta[c]);
        }
      }
      multiply_weights(dv, s, d_tile);
      multiply_weights(dk, dp, q_tile);
    }
  }
  copy_async_wait<0>();
  __syncthreads();
  store_rows(dk, a.scale, a.scale, k_tile + warp * 16 * kPitch, a.dk, a.dk_strides, p.b, kv, j0 + warp * 16, a.keys, a.dim);
  float factor = kDropout ? a.kept : 1.0f;
  store_rows(dv, factor, factor, v_tile + warp * 16 * kPitch, a.dv, a.dv_strides, p.b, kv, j0 + warp * 16, a.keys, a.dim);
}
)cuda";

constexpr const char* kGradQueries = R"cuda(
// dq of kRows queries of one head; the keys go by.
extern "C" __global__ void __launch_bounds__(kThreads) attention_grad_queries(const AttentionArguments a) {
  Element* q_tile = (Element*)shared_memory;
  Element *d_tile = q_tile + kRows * kPitch, *k_tile = d_tile + kRows * kPitch, *v_tile = k_tile + kColumns * kPitch;
  int blocks = (a.queries + kRows - 1) / kRows, head = (int)(blockIdx.x / blocks);
  int i0 = (blocks - 1 - (int)(blockIdx.x % blocks)) * kRows;
  Problem p = make_problem(a, head / a.heads, head % a.heads);
  int kv = p.h / (a.heads / a.kv_heads), steps = visible_blocks(a, p, i0);
  int warp = (int)threadIdx.x / 32, lane = (int)lane_id();
  int i = i0 + warp * 16 + lane / 4;
  float dq[kFeatures][4] = {}, lse[2], delta[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    i64 at = ((i64)p.b * a.heads + p.h) * a.queries + i + 8 * r;
    bool there = i + 8 * r < a.queries;
    lse[r] = there ? finite_lse(a.lse[at]) : 0.0f;
    delta[r] = there ? a.delta[at] : 0.0f;
  }
  load_tile(q_tile, a.q, a.q_strides, p.b, p.h, i0, kRows, a.queries, a.dim);
  load_tile(d_tile, a.dout, a.dout_strides, p.b, p.h, i0, kRows, a.queries, a.dim);
  copy_async_commit();  // also waited for if these queries see no key
  for (int step = 0; step < steps; ++step) {
    int j0 = step * kColumns;
    __syncthreads();  // all have read the tiles of the step before
    load_tile(k_tile, a.k, a.k_strides, p.b, kv, j0, kColumns, p.keys, a.dim);
    load_tile(v_tile, a.v, a.v_strides, p.b, kv, j0, kColumns, p.keys, a.dim);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    float s[kTiles][4] = {}, dp[kTiles][4] = {};
    multiply_rows(s, q_tile, warp * 16, k_tile);
    multiply_rows(dp, d_tile, warp * 16, v_tile);
    bool inside = all_inside(a, p, i0, kRows, j0, kColumns);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      unsigned bits = kDropout ? kept_in_rows(p.dropout, i, j0 + n * 8 + lane % 4 * 2) : 255u;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        int m = n + e / 4, f = e % 4;
        float x = score(a, p, s[m][f], i + f / 2 * 8, j0 + m * 8 + lane % 4 * 2 + f % 2, inside) - lse[f / 2];
        float w = kPlain ? exp2f(x) : exp2_fast(x);
        float g = kDropout ? (bits >> e & 1u ? dp[m][f] * a.kept : 0.0f) : dp[m][f];
        dp[m][f] = w * (g - delta[f / 2]);
      }
    }
    multiply_weights(dq, dp, k_tile);
  }
  copy_async_wait<0>();
  __syncthreads();
  store_rows(dq, a.scale, a.scale, q_tile + warp * 16 * kPitch, a.dq, a.dq_strides, p.b, p.h, i0 + warp * 16, a.queries, a.dim);
}
)cuda";

std::string number(const char* type, const char* name, int64_t value) {
  return std::string("constexpr ") + type + " " + name + " = " + std::to_string(value) + ";\n";
}

}  // namespace

const char* dropout_text() { return kDropoutText; }

namespace {

std::string constants_of(const AttentionShape& s) {
  return number("int", "kType", s.type) + number("int", "kDim", s.dim) + number("int", "kRows", s.rows) + number("int", "kColumns", s.columns) +
         number("int", "kMask", s.mask) + number("bool", "kPlain", s.plain) + number("bool", "kVector", s.vector) + number("bool", "kCausal", s.causal) +
         number("bool", "kLength", s.length) + number("bool", "kDropout", s.dropout) + number("bool", "kPieces", s.pieces) + kDropoutText + kTiledCommon;
}

}  // namespace

KernelText attention_text(AttentionPart part, const AttentionShape& s) {
  constexpr const char* kEntries[] = {"attention_forward",      "attention_delta",  "attention_grad_keys",
                                      "attention_grad_queries", "attention_decode", "attention_decode_end"};
  const char* const bodies[] = {kTiledForward, kDelta, kGradKeys, kGradQueries, decode_text(), decode_end_text()};
  KernelText text;
  text.entry = kEntries[int(part)];
  text.body = std::string(matrix_prelude()) + "extern __shared__ __align__(128) unsigned char shared_memory[];\n" + constants_of(s) + bodies[int(part)];
  const int64_t row = s.plain ? (s.dim + 4) * 4 : (s.dim + 8) * 2;
  if (part == AttentionPart::forward) text.shared = (s.rows + 2 * s.columns) * row;
  if (part == AttentionPart::grad_keys || part == AttentionPart::grad_queries) text.shared = 2 * (s.rows + s.columns) * row + 8 * s.columns;
  return text;
}

namespace {

int decode_sharers(int dim) { return dim <= 16 ? 2 : dim <= 32 ? 4 : dim <= 64 ? 8 : 16; }

}  // namespace

// Keys and values take eight registers per round.
ShortDecode short_decode(int64_t keys, int dim) {
  constexpr int64_t kMostRounds = 8, kFewThreads = 128;
  const int64_t pieces = keys * decode_sharers(dim);
  ShortDecode form;
  while (form.threads > kFewThreads && pieces <= form.threads / 2) form.threads /= 2;
  const int64_t rounds = (pieces + form.threads - 1) / form.threads;
  if (rounds <= kMostRounds) form.rounds = int(rounds);
  return form;
}

KernelText short_decode_text(const AttentionShape& shape, const ShortDecode& form) {
  AttentionShape s = shape;
  s.rows = 64, s.columns = 64, s.plain = false;
  const int warps = form.threads / 32;
  return {"attention_decode_short",
          std::string(matrix_prelude()) + number("int", "kDecodeThreads", form.threads) + number("int", "kRounds", form.rounds) +
              number("int", "kNewRows", form.new_rows) + constants_of(s) + short_decode_text(),
          4 * warps * (s.dim + 2) + 16};
}

}  // namespace ridge::cuda
