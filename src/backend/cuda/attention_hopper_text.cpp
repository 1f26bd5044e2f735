// Attention for Hopper, as text: products of warpgroups on tiles that the tensor memory accelerator brings. Where texts are compiled for
// other machines the entries are empty, and nothing asks for them.
#include "backend/cuda/attention_text.h"

namespace ridge::cuda {
namespace {

constexpr const char* kCommon = R"cuda(
constexpr float kLog2e = 1.44269504088896340736f;
__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ unsigned pack(float low, float high) { return kType == 1 ? pack_bf16(low, high) : pack_f16(low, high); }
)cuda";

// Constants before it: kType (1 bf16, 2 f16), kDim (64 or 128), kCausal, kDropout, kGroups (of 64 queries), kProducers (threads that bring tiles;
// 0: the first of the others does), kColumns, kStages, kBlocks (of one multiprocessor), kRegisters.
constexpr const char* kForward = R"cuda(
struct HopperArguments {
  TensorMap q, k, v;
  void* out;
  float* lse;
  i64 out_strides[4];
  const i64 *seed, *step, *base;
  int batch, heads, kv_heads, queries, keys;
  float scale;  // > 0
  float kept;
  unsigned limit, stream;
};

constexpr int kRows = kGroups * 64, kThreads = kGroups * 128 + kProducers;
constexpr int kParts = kDim / 64;  // tiles are 64 features wide
constexpr int kQueryBytes = kRows * kDim * 2, kKeyBytes = kColumns * kDim * 2;


extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) attention_hopper_forward(const RIDGE_CONSTANT HopperArguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  unsigned char* q_tile = shared_memory;
  unsigned char* k_tiles = q_tile + kQueryBytes;
  unsigned char* v_tiles = k_tiles + kStages * kKeyBytes;
  u64* barriers = (u64*)(v_tiles + kStages * kKeyBytes);
  u64 *q_full = barriers, *k_full = barriers + 1, *k_empty = k_full + kStages, *v_full = k_empty + kStages, *v_empty = v_full + kStages;
  int blocks = (a.queries + kRows - 1) / kRows;
  int head = (int)blockIdx.x / blocks, i0 = (blocks - 1 - (int)blockIdx.x % blocks) * kRows;
  int b = head / a.heads, h = head % a.heads, kv = h / (a.heads / a.kv_heads), shift = a.keys - a.queries;
  int group = (int)threadIdx.x / 128, last = i0 + kRows < a.queries ? i0 + kRows : a.queries;
  int end = kCausal ? last + shift : a.keys;
  int steps = end <= 0 ? 0 : (end + kColumns - 1) / kColumns;
  if (threadIdx.x == 0) {
    barrier_init(q_full, 1);
    for (int s = 0; s < kStages; ++s) barrier_init(k_full + s, 1), barrier_init(v_full + s, 1), barrier_init(k_empty + s, kGroups), barrier_init(v_empty + s, kGroups);
    barrier_init_done();
  }
  __syncthreads();
  // One thread asks for tiles; it waits until all have read what was there.
  int fed = 0;
  auto feed = [&](int until) {
    until = until < steps ? until : steps;
    if (fed == 0 && until) {
      barrier_expect(q_full, kQueryBytes);
      for (int part = 0; part < kParts; ++part) tensor_load_4d(q_tile + part * kRows * 128, &a.q, q_full, part * 64, i0, h, b);
    }
    for (; fed < until; ++fed) {
      int j0 = (steps - 1 - fed) * kColumns, s = fed % kStages;
      unsigned parity = (unsigned)(fed / kStages + 1) & 1u;
      barrier_wait(k_empty + s, parity);
      barrier_expect(k_full + s, kKeyBytes);
      for (int part = 0; part < kParts; ++part) tensor_load_4d(k_tiles + s * kKeyBytes + part * kColumns * 128, &a.k, k_full + s, part * 64, j0, kv, b);
      barrier_wait(v_empty + s, parity);
      barrier_expect(v_full + s, kKeyBytes);
      for (int part = 0; part < kParts; ++part) tensor_load_4d(v_tiles + s * kKeyBytes + part * kColumns * 128, &a.v, v_full + s, part * 64, j0, kv, b);
    }
  };
  if (kProducers && group == kGroups) {
    if (kProducers == 128) registers_down<24>();
    if (threadIdx.x == kGroups * 128) feed(steps);
    return;
  }
  if (kProducers == 128) registers_up<kRegisters>();
  int lane = (int)lane_id(), warp = (int)threadIdx.x / 32 % 4, row0 = i0 + group * 64, i = row0 + warp * 16 + lane / 4;
  float sums[kDim / 2], top[2] = {-infinity(), -infinity()}, total[2] = {0.0f, 0.0f}, s[kColumns / 2];
#pragma unroll
  for (int c = 0; c < kDim / 2; ++c) sums[c] = 0.0f;
  unsigned p[kColumns / 16][4];
  float c = a.scale * kLog2e;
  // Blocks after the last that this group's rows see: nothing to do but to say so.
  int skip = 0;
  if (kCausal) {
    int mine = row0 + 64 + shift;
    mine = mine <= 0 ? 0 : (mine + kColumns - 1) / kColumns;
    skip = steps - mine > 0 ? steps - mine : 0;
  }
  for (int step = 0; step < skip; ++step)
    if (threadIdx.x % 128 == 0) barrier_arrive(k_empty + step % kStages), barrier_arrive(v_empty + step % kStages);
  if (kProducers == 0 && threadIdx.x == 0) feed(skip == steps ? steps : skip + kStages);

  auto scores = [&](int step) {
    int stage = step % kStages;
    barrier_wait(k_full + stage, (unsigned)(step / kStages) & 1u);
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      u64 x = tile_descriptor(q_tile + d / 4 * kRows * 128 + group * 64 * 128 + d % 4 * 32, 16);
      u64 y = tile_descriptor(k_tiles + stage * kKeyBytes + d / 4 * kColumns * 128 + d % 4 * 32, 16);
      WGMMA<0, 0>(s, x, y, d != 0);
    }
    wgmma_commit();
  };
  auto values = [&](int step) {
    int stage = step % kStages;
    barrier_wait(v_full + stage, (unsigned)(step / kStages) & 1u);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) WGMMA<1>(sums, p[n], tile_descriptor(v_tiles + stage * kKeyBytes + n * 2048, kColumns * 128), 1);
    wgmma_commit();
  };
  float shrink[2];
  auto softmax = [&](int step) {
    int j0 = (steps - 1 - step) * kColumns;
    if (j0 + kColumns > a.keys || (kCausal && j0 + kColumns - 1 > row0 + shift)) {
#pragma unroll
      for (int e = 0; e < kColumns / 2; ++e) {
        int j = j0 + e / 4 * 8 + lane % 4 * 2 + e % 2;
        if (j >= a.keys || (kCausal && j > i + e / 2 % 2 * 8 + shift)) s[e] = -infinity();
      }
    }
    float from[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float high = top[r];
#pragma unroll
      for (int e = 0; e < kColumns / 2; e += 4) high = fmaxf(high, fmaxf(s[e + 2 * r], s[e + 2 * r + 1]));
      high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
      high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
      from[r] = high == -infinity() ? 0.0f : high * c;
      shrink[r] = exp2_fast(fmaf(top[r], c, -from[r]));
      top[r] = high;
      float sum = 0.0f;
#pragma unroll
      for (int e = 0; e < kColumns / 2; e += 4)
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          s[e + 2 * r + x] = exp2_fast(fmaf(s[e + 2 * r + x], c, -from[r]));
          sum += s[e + 2 * r + x];
        }
      total[r] = fmaf(total[r], shrink[r], sum);
    }
  };
  Dropout dropout = {};
  if (kDropout) {
    dropout = {(u64)*a.seed, 0, (u32)*a.step, a.stream, a.limit, a.keys, true};
    set_first(dropout, (u64)*a.base + ((u64)b * a.heads + h) * a.queries * a.keys);
  }
  auto weights = [&](int step) {
    if (kDropout) {
      int j0 = (steps - 1 - step) * kColumns + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        unsigned bits = kept_in_rows(dropout, i, j0 + n * 16);
#pragma unroll
        for (int e = 0; e < 8; ++e) s[n * 8 + e] = bits >> e & 1u ? s[n * 8 + e] : 0.0f;
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) p[n][e] = pack(s[n * 8 + 2 * e], s[n * 8 + 2 * e + 1]);
  };

  if (steps > skip) {
    barrier_wait(q_full, 0);
    scores(skip);
    wgmma_wait<0>();
    if (threadIdx.x % 128 == 0) barrier_arrive(k_empty + skip % kStages);
    softmax(skip);
    weights(skip);
    for (int step = skip + 1; step < steps; ++step) {
      scores(step);
      values(step - 1);
      wgmma_wait<1>();
      keep_sums(s);
      if (threadIdx.x % 128 == 0) barrier_arrive(k_empty + step % kStages);
      softmax(step);
      wgmma_wait<0>();
      keep_sums(sums);
      if (threadIdx.x % 128 == 0) barrier_arrive(v_empty + (step - 1) % kStages);
      if (kProducers == 0 && threadIdx.x == 0) feed(step + kStages);
#pragma unroll
      for (int e = 0; e < kDim / 2; ++e) sums[e] *= shrink[e / 2 % 2];
      weights(step);
    }
    values(steps - 1);
    wgmma_wait<0>();
    keep_sums(sums);
  }
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
    total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
    bool some = total[r] != 0.0f;
    factor[r] = some ? (kDropout ? a.kept : 1.0f) / total[r] : 0.0f;
    if (lane % 4 == 0 && i + 8 * r < a.queries)
      a.lse[((i64)b * a.heads + h) * a.queries + i + 8 * r] = some ? fmaf(top[r], a.scale, logf(total[r])) : -infinity();
  }
  // Through the warp's own rows of the queries' tile, so that whole rows are written.
  unsigned char* mine = q_tile + (group * 64 + warp * 16) * 128;
#pragma unroll
  for (int e = 0; e < kDim / 2; e += 2) {
    int row = lane / 4 + e / 2 % 2 * 8, column = e / 4 * 8;
    *(unsigned*)(mine + column / 64 * kRows * 128 + row * 128 + ((column % 64 / 8) ^ (row % 8)) * 16 + lane % 4 * 4) = pack(sums[e] * factor[e / 2 % 2], sums[e + 1] * factor[e / 2 % 2]);
  }
  __syncwarp();
#pragma unroll
  for (int x = lane; x < 16 * kDim / 8; x += 32) {
    int row = x / (kDim / 8), chunk = x % (kDim / 8), at = row0 + warp * 16 + row;
    if (at < a.queries)
      *(uint4*)((half_bits*)a.out + b * a.out_strides[0] + h * a.out_strides[1] + at * a.out_strides[2] + chunk * 8) =
          *(const uint4*)(mine + chunk / 8 * kRows * 128 + row * 128 + ((chunk % 8) ^ (row % 8)) * 16);
  }
#endif
}
)cuda";

// Constants before it: kType, kDim (64), kCausal, kDropout, kStages.
constexpr const char* kGrad = R"cuda(
struct HopperGradArguments {
  TensorMap q, k, v, dout;
  void *dq, *dk, *dv;
  const float *lse, *delta;
  float* sums;  // of dq: per block, query and feature
  i64 dq_strides[4], dk_strides[4], dv_strides[4];
  const i64 *seed, *step, *base;
  int batch, heads, kv_heads, queries, keys;  // keys >= queries when causal
  float scale;
  float kept;
  unsigned limit, stream;
};

constexpr int kQueries = 64, kKeys = 128, kThreads = 256 + 128;
constexpr int kQueryBytes = kQueries * 128, kKeyBytes = kKeys * 128, kScoreBytes = kKeys * kQueries * 2;


// The work of a block in order: key blocks of a head, for each the query heads that share it and their queries from the first that sees it.
struct Item {
  int head, n, h, m;      // kv head (of all batches), key block, query head of the group, query block
  int heads, blocks, share, ends;  // how many
  int shift, stride;
  bool causal;
  __device__ __forceinline__ int first() const {
    int i = n * kKeys - shift;
    return !causal || i < 0 ? 0 : i / kQueries;
  }
  __device__ __forceinline__ bool live() const { return head < heads; }
};
__device__ __forceinline__ Item first_item(const HopperGradArguments& a) {
  Item x;
  x.head = (int)blockIdx.x, x.n = 0, x.h = 0, x.m = 0;
  x.heads = a.batch * a.kv_heads, x.blocks = (a.keys + kKeys - 1) / kKeys, x.share = a.heads / a.kv_heads, x.ends = (a.queries + kQueries - 1) / kQueries;
  x.shift = a.keys - a.queries, x.causal = kCausal, x.stride = (int)gridDim.x;
  return x;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) attention_hopper_grad(const RIDGE_CONSTANT HopperGradArguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  unsigned char* k_tiles = shared_memory;                        // two
  unsigned char* v_tiles = k_tiles + 2 * kKeyBytes;              // two
  unsigned char* s_tiles = v_tiles + 2 * kKeyBytes;              // two: gradients of scores, keys as rows
  unsigned char* q_tiles = s_tiles + 2 * kScoreBytes;            // kStages
  unsigned char* d_tiles = q_tiles + kStages * kQueryBytes;      // kStages
  float* lse = (float*)(d_tiles + kStages * kQueryBytes);        // kStages x kQueries
  float* delta = lse + kStages * kQueries;
  u64* barriers = (u64*)(delta + kStages * kQueries);
  u64 *kv_full = barriers, *kv_empty = barriers + 2, *s_full = barriers + 4, *s_empty = barriers + 6, *q_full = barriers + 8, *q_empty = q_full + kStages;
  int group = (int)threadIdx.x / 128, lane = (int)lane_id(), warp = (int)threadIdx.x / 32 % 4;
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) barrier_init(kv_full + s, 1), barrier_init(kv_empty + s, 2), barrier_init(s_full + s, 256), barrier_init(s_empty + s, 2);
    for (int s = 0; s < kStages; ++s) barrier_init(q_full + s, 2), barrier_init(q_empty + s, 2);
    barrier_init_done();
  }
  __syncthreads();
  Item x = first_item(a);
  if (group == 2) {
    registers_down<40>();
    if (warp != 0) return;
    int block = 0, step = 0;
    for (; x.live(); x.head += x.stride) {
      int b = x.head / a.kv_heads, kv = x.head % a.kv_heads;
      for (x.n = 0; x.n < x.blocks; ++x.n, ++block) {
        if (lane == 0) {
          barrier_wait(kv_empty + block % 2, (unsigned)(block / 2 + 1) & 1u);
          barrier_expect(kv_full + block % 2, 2 * kKeyBytes);
          tensor_load_4d(k_tiles + block % 2 * kKeyBytes, &a.k, kv_full + block % 2, 0, x.n * kKeys, kv, b);
          tensor_load_4d(v_tiles + block % 2 * kKeyBytes, &a.v, kv_full + block % 2, 0, x.n * kKeys, kv, b);
        }
        for (int h = kv * x.share; h < (kv + 1) * x.share; ++h)
          for (int m = x.first(); m < x.ends; ++m, ++step) {
            int s = step % kStages;
            barrier_wait(q_empty + s, (unsigned)(step / kStages + 1) & 1u);
            if (lane == 0) {
              barrier_expect(q_full + s, 2 * kQueryBytes);
              tensor_load_4d(q_tiles + s * kQueryBytes, &a.q, q_full + s, 0, m * kQueries, h, b);
              tensor_load_4d(d_tiles + s * kQueryBytes, &a.dout, q_full + s, 0, m * kQueries, h, b);
            }
            i64 row = ((i64)b * a.heads + h) * a.queries;
#pragma unroll
            for (int c = lane; c < kQueries; c += 32) {
              int i = m * kQueries + c;
              bool there = i < a.queries;
              lse[s * kQueries + c] = there ? a.lse[row + i] * kLog2e : infinity();  // beyond the end every weight is 0
              delta[s * kQueries + c] = there ? a.delta[row + i] : 0.0f;
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(q_full + s);
          }
      }
    }
    return;
  }
  registers_up<232>();
  float c = a.scale * kLog2e;
  Dropout dropout = {};
  if (kDropout) dropout = {(u64)*a.seed, 0, (u32)*a.step, a.stream, a.limit, a.keys, true};
  int block = 0, step = 0;
  float* sums = a.sums + (i64)blockIdx.x * x.share * x.ends * (kQueries * kDim) + threadIdx.x * 4;
  float dq[16];
  // What the products of the step before belong to.
  int last_n = 0, last_h = 0, last_m = 0, last_head = 0, last_block = 0;
  bool some = false;
  auto put_dq = [&]() {
    float* to = sums + (i64)(last_h * x.ends + last_m) * (kQueries * kDim);
    int end = kCausal ? (last_m * kQueries + kQueries - 1 + x.shift) / kKeys : x.blocks - 1;
    end = end < x.blocks - 1 ? end : x.blocks - 1;
    if (last_n < end) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (last_n == 0)
          *(float4*)(to + e * 1024) = make_float4(dq[4 * e], dq[4 * e + 1], dq[4 * e + 2], dq[4 * e + 3]);
        else
          add_4(to + e * 1024, dq[4 * e], dq[4 * e + 1], dq[4 * e + 2], dq[4 * e + 3]);
      }
      return;
    }
    if (last_n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float4 f = load_4_added(to + e * 1024);
        dq[4 * e] += f.x, dq[4 * e + 1] += f.y, dq[4 * e + 2] += f.z, dq[4 * e + 3] += f.w;
      }
    }
    int b = last_head / a.kv_heads, h = last_head % a.kv_heads * x.share + last_h;
    half_bits* out = (half_bits*)a.dq + b * a.dq_strides[0] + h * a.dq_strides[1] + group * 32 + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int i = last_m * kQueries + warp * 16 + lane / 4 + 8 * r;
      if (i < a.queries) {
#pragma unroll
        for (int e = 0; e < 4; ++e) *(unsigned*)(out + i * a.dq_strides[2] + e * 8) = pack(dq[4 * e + 2 * r] * a.scale, dq[4 * e + 2 * r + 1] * a.scale);
      }
    }
  };
  auto multiply_dq = [&](int last) {  // of the step before: all keys, this group's half of the features
    if (some) barrier_wait(s_full + last, (unsigned)((step - 1) / 2) & 1u);  // before the first step there is nothing, and its result is left
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
      WGMMA<1, 1>(dq, tile_descriptor(s_tiles + last * kScoreBytes + k * 2048, 16), tile_descriptor(k_tiles + last_block % 2 * kKeyBytes + k * 2048 + group * 64, 16), k != 0);
    wgmma_commit();
  };
  for (; x.live(); x.head += x.stride) {
    int b = x.head / a.kv_heads, kv = x.head % a.kv_heads;
    for (x.n = 0; x.n < x.blocks; ++x.n, ++block) {
      barrier_wait(kv_full + block % 2, (unsigned)(block / 2) & 1u);
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        int row = group * 64 + warp * 16 + lane % 16, at = row * 128 + ((d * 2 + lane / 16) ^ (row % 8)) * 16;
      }
      float dk[32], dv[32];
#pragma unroll
      for (int e = 0; e < 32; ++e) dk[e] = 0.0f, dv[e] = 0.0f;
      int j = x.n * kKeys + group * 64 + warp * 16 + lane / 4;
      unsigned p[4][4], ds[4][4];
      int start = x.first();
      bool held = false;  // a stage of this block that products may still read
      for (int h = 0; h < x.share; ++h)
        for (int m = start; m < x.ends; ++m, ++step) {
          int s = step % kStages;
          barrier_wait(q_full + s, (unsigned)(step / kStages) & 1u);
          float st[32], dp[32];
          wgmma_fence();
#pragma unroll
          for (int d = 0; d < 4; ++d) WGMMA<0, 0>(st, tile_descriptor(k_tiles + block % 2 * kKeyBytes + group * 64 * 128 + d * 32, 16), tile_descriptor(q_tiles + s * kQueryBytes + d * 32, 16), d != 0);
          wgmma_commit();
#pragma unroll
          for (int d = 0; d < 4; ++d) WGMMA<0, 0>(dp, tile_descriptor(v_tiles + block % 2 * kKeyBytes + group * 64 * 128 + d * 32, 16), tile_descriptor(d_tiles + s * kQueryBytes + d * 32, 16), d != 0);
          wgmma_commit();
          multiply_dq((step + 1) & 1);
          wgmma_wait<2>();
          keep_sums(st);
          if (held && threadIdx.x % 128 == 0) barrier_arrive(q_empty + (step - 1) % kStages);
          held = true;
          int i0 = m * kQueries;
          if (x.n * kKeys + kKeys > a.keys || (kCausal && x.n * kKeys + group * 64 + 63 > i0 + x.shift)) {
#pragma unroll
            for (int e = 0; e < 32; ++e) {
              int at = j + e / 2 % 2 * 8;
              if (at >= a.keys || (kCausal && at > i0 + e / 4 * 8 + lane % 4 * 2 + e % 2 + x.shift)) st[e] = -infinity();
            }
          }
          unsigned kept = 0xffffffffu;
          if (kDropout) {
            set_first(dropout, (u64)*a.base + ((u64)b * a.heads + kv * x.share + h) * a.queries * a.keys);
            kept = 0;
#pragma unroll
            for (int n = 0; n < 8; ++n) kept |= kept_in_columns(dropout, i0 + n * 8 + lane % 4 * 2, j) << (4 * n);
          }
          const float* l = lse + s * kQueries + lane % 4 * 2;
#pragma unroll
          for (int e = 0; e < 32; e += 4) {
            float2 w = *(const float2*)(l + e * 2);
            st[e] = exp2_fast(fmaf(st[e], c, -w.x)), st[e + 1] = exp2_fast(fmaf(st[e + 1], c, -w.y));
            st[e + 2] = exp2_fast(fmaf(st[e + 2], c, -w.x)), st[e + 3] = exp2_fast(fmaf(st[e + 3], c, -w.y));
          }
#pragma unroll
          for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              int at = n * 8 + 2 * e;
              p[n][e] = kDropout ? pack(kept >> at & 1u ? st[at] : 0.0f, kept >> (at + 1) & 1u ? st[at + 1] : 0.0f) : pack(st[at], st[at + 1]);
            }
          wgmma_fence();
#pragma unroll
          for (int n = 0; n < 4; ++n) WGMMA<1>(dv, p[n], tile_descriptor(d_tiles + s * kQueryBytes + n * 2048, 16), 1);
          wgmma_commit();
          wgmma_wait<1>();
          keep_sums(dq);
          keep_sums(dp);
          if (some) {
            if (threadIdx.x % 128 == 0) {
              barrier_arrive(s_empty + (step - 1) % 2);
              if (last_block != block) barrier_arrive(kv_empty + last_block % 2);
            }
            put_dq();
          }
          if (kDropout) {
#pragma unroll
            for (int e = 0; e < 32; ++e) dp[e] = kept >> e & 1u ? dp[e] * a.kept : 0.0f;
          }
          const float* g = delta + s * kQueries + lane % 4 * 2;
#pragma unroll
          for (int e = 0; e < 32; e += 4) {
            float2 w = *(const float2*)(g + e * 2);
            st[e] *= dp[e] - w.x, st[e + 1] *= dp[e + 1] - w.y, st[e + 2] *= dp[e + 2] - w.x, st[e + 3] *= dp[e + 3] - w.y;
          }
#pragma unroll
          for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) ds[n][e] = pack(st[n * 8 + 2 * e], st[n * 8 + 2 * e + 1]);
          barrier_wait(s_empty + step % 2, (unsigned)(step / 2 + 1) & 1u);
          unsigned char* to = s_tiles + step % 2 * kScoreBytes + (group * 64 + warp * 16 + lane % 16) * 128;
#pragma unroll
          for (int n = 0; n < 4; ++n) store_matrices(to + ((n * 2 + lane / 16) ^ (lane % 8)) * 16, ds[n]);
          fence_async_proxy();
          barrier_arrive(s_full + step % 2);
          wgmma_fence();
#pragma unroll
          for (int n = 0; n < 4; ++n) WGMMA<1>(dk, ds[n], tile_descriptor(q_tiles + s * kQueryBytes + n * 2048, 16), 1);
          wgmma_commit();
          some = true, last_n = x.n, last_h = h, last_m = m, last_head = x.head, last_block = block;
        }
      wgmma_wait<0>();
      keep_sums(dk);
      keep_sums(dv);
      if (held && threadIdx.x % 128 == 0) barrier_arrive(q_empty + (step - 1) % kStages);
      float by = kDropout ? a.kept : 1.0f;
      half_bits* to_k = (half_bits*)a.dk + b * a.dk_strides[0] + kv * a.dk_strides[1] + lane % 4 * 2;
      half_bits* to_v = (half_bits*)a.dv + b * a.dv_strides[0] + kv * a.dv_strides[1] + lane % 4 * 2;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (j + 8 * r < a.keys) {
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            *(unsigned*)(to_k + (j + 8 * r) * a.dk_strides[2] + e * 8) = pack(dk[4 * e + 2 * r] * a.scale, dk[4 * e + 2 * r + 1] * a.scale);
            *(unsigned*)(to_v + (j + 8 * r) * a.dv_strides[2] + e * 8) = pack(dv[4 * e + 2 * r] * by, dv[4 * e + 2 * r + 1] * by);
          }
        }
    }
  }
  if (some) {
    multiply_dq((step + 1) & 1);
    wgmma_wait<0>();
    keep_sums(dq);
    put_dq();
  }
#endif
}
)cuda";

std::string number(const char* name, int64_t value) { return std::string("constexpr int ") + name + " = " + std::to_string(value) + ";\n"; }

KernelText text_of(const char* entry, const std::string& constants, int type, const char* body) {
  return {entry,
          std::string(matrix_prelude()) + "extern __shared__ __align__(1024) unsigned char shared_memory[];\n#define WGMMA " +
              (type == 1 ? "wgmma_bf16" : "wgmma_f16") + "\n" + constants + dropout_text() + kCommon + body,
          0};
}

}  // namespace

KernelText hopper_forward_text(const HopperShape& s) {
  const std::string constants = number("kType", s.type) + number("kDim", s.dim) + number("kCausal", s.causal) + number("kDropout", s.dropout) +
                                number("kGroups", s.groups) + number("kProducers", s.producers) + number("kColumns", s.columns) + number("kStages", s.stages) +
                                number("kBlocks", s.blocks) + number("kRegisters", s.registers);
  KernelText text = text_of("attention_hopper_forward", constants, s.type, kForward);
  text.shared = (s.rows() + 2 * s.stages * s.columns) * s.dim * 2 + 8 * (1 + 4 * s.stages);
  return text;
}

KernelText hopper_grad_text(const HopperShape& s) {
  const std::string constants =
      number("kType", s.type) + number("kDim", s.dim) + number("kCausal", s.causal) + number("kDropout", s.dropout) + number("kStages", s.stages);
  KernelText text = text_of("attention_hopper_grad", constants, s.type, kGrad);
  text.shared = (4 * 128 + 2 * 128 + 2 * s.stages * 64) * 128 + s.stages * 64 * 8 + 8 * (8 + 2 * s.stages);
  return text;
}

}  // namespace ridge::cuda
