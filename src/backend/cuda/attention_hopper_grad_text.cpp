// The text of attention's gradients for Hopper: a block of the grid iterates over the keys of a head and sums dq in memory.
#include "backend/cuda/attention_text.h"

namespace ridge::cuda {
namespace {

// Expects the constants kType, kDim (64), kCausal, kDropout, kStages, kSplit (several blocks share a head), kSums (also sums the gradients over batches and
// positions: they are columns of one matrix).
constexpr const char* kGradCommon = R"cuda(
struct HopperGradArguments {
  TensorMap q, k, v, dout;
  void *dq, *dk, *dv;
  const float* rows;  // lse in base 2 and delta, kSide of each in turn: those of a tile of queries come as one piece
  float* sums;  // of dq: per block of the grid, query and feature
  i64 dq_strides[4], dk_strides[4], dv_strides[4];
  const i64 *seed, *step, *base;
  int batch, heads, kv_heads, queries, keys, dim;  // keys >= queries when causal
  int parts;                                  // blocks of the grid that share the keys of a head, each with sums of dq of its own
  float scale;
  float kept;
  unsigned limit, stream;
  float* partials;       // of kSums: per batch and warp, a row of the matrix
  int columns, first[3]; // of the matrix, and where dq, dk and dv begin in its rows
};

constexpr int kSide = 128;  // queries and keys of a tile of scores; each of two groups has 64 of the keys
constexpr int kTileBytes = kSide * 128, kScoreBytes = kSide * kSide * 2, kRowBytes = 2 * kSide * 4, kThreads = 384;

// The work of a block in order: key blocks of a head, for each the query heads that share it, and their queries from the first that sees it.
struct Item {
  int head, n, h, m;  // part of a kv head, of all batches; key block, query head of the group, query block
  int block, step;    // key blocks and items so far
};
struct Sizes {
  int heads, blocks, share, ends, shift, parts;
  __device__ __forceinline__ int first(int n) const {
    int i = n * kSide - shift;
    return !kCausal || i < 0 ? 0 : i / kSide;
  }
  __device__ __forceinline__ int head_of(const Item& x) const { return kSplit ? x.head / parts : x.head; }
  __device__ __forceinline__ int part_of(const Item& x) const { return kSplit ? x.head % parts : 0; }
  __device__ __forceinline__ void advance(Item& x) const {
    ++x.step;
    if (++x.m < ends) return;
    if (++x.h == share) {
      x.h = 0, ++x.block;
      x.n += kSplit ? parts : 1;
      if (x.n >= blocks) x.head += (int)gridDim.x, x.n = part_of(x);
    }
    x.m = first(x.n);
  }
};
__device__ __forceinline__ Sizes sizes_of(const HopperGradArguments& a) {
  int parts = kSplit ? a.parts : 1;
  return {a.batch * a.kv_heads * parts, (a.keys + kSide - 1) / kSide, a.heads / a.kv_heads, (a.queries + kSide - 1) / kSide, a.keys - a.queries, parts};
}

// Two lanes share what both have summed: each ends with half of it.
template <int kHalf> __device__ __forceinline__ void join_lanes(float (&sums)[16]) {
  bool upper = lane_id() & (unsigned)(2 * kHalf);
#pragma unroll
  for (int k = 0; k < kHalf; ++k) {
    float mine = upper ? sums[k + kHalf] : sums[k], other = upper ? sums[k] : sums[k + kHalf];
    sums[k] = mine + __shfl_xor_sync(0xffffffffu, other, 2 * kHalf);
  }
}
// Rows row and row + 8 of 64 features, each times `by`, to where they stay. `columns`: what this lane has summed over rows, of two features.
__device__ __forceinline__ void put_rows(const float (&sums)[32], float by, void* to, const i64 (&strides)[4], int b, int h, int row, int end, int dim,
                                         float2* columns = nullptr) {
  float column[16] = {};
  half_bits* out = (half_bits*)to + b * strides[0] + h * strides[1] + row * strides[2] + lane_id() % 4 * 8;
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned w[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) w[e] = pack(sums[half * 16 + 4 * e + 2 * r] * by, sums[half * 16 + 4 * e + 2 * r + 1] * by);
      if (columns && row + 8 * r < end) {
#pragma unroll
        for (int e = 0; e < 4; ++e) column[half * 8 + 2 * e] += low_half(w[e]), column[half * 8 + 2 * e + 1] += high_half(w[e]);
      }
      transpose_four(w);
      if (row + 8 * r < end && half * 32 + (int)lane_id() % 4 * 8 < dim) *(uint4*)(out + 8 * r * strides[2] + half * 32) = make_uint4(w[0], w[1], w[2], w[3]);
    }
  if (columns == nullptr) return;
  // Eight lanes have the same 16 features; each ends with the sums of two.
  join_lanes<8>(column);
  join_lanes<4>(column);
  join_lanes<2>(column);
  columns->x += column[0], columns->y += column[1];
}
// The first of a lane's two features.
__device__ __forceinline__ int summed_feature() {
  int lane = (int)lane_id();
  return (lane & 16 ? 32 : 0) + (lane & 8 ? 16 : 0) + (lane & 4 ? 8 : 0) + lane % 4 * 2;
}

)cuda";

constexpr const char* kGrad = R"cuda(
extern "C" __global__ void __launch_bounds__(kThreads, 1) attention_hopper_grad(const RIDGE_CONSTANT HopperGradArguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  unsigned char* k_tiles = shared_memory;                   // two
  unsigned char* v_tiles = k_tiles + 2 * kTileBytes;        // two
  unsigned char* s_tiles = v_tiles + 2 * kTileBytes;        // two: gradients of scores, for each 64 queries, keys as rows
  unsigned char* q_tiles = s_tiles + 2 * kScoreBytes;       // kStages
  unsigned char* d_tiles = q_tiles + kStages * kTileBytes;  // kStages
  float* rows = (float*)(d_tiles + kStages * kTileBytes);   // kStages: lse and delta, kSide of each
  u64* barriers = (u64*)(rows + kStages * 2 * kSide);
  float2* columns = (float2*)(barriers + 8 + 2 * kStages) + threadIdx.x / 32 * 96 + lane_id();  // sums of dq, dk and dv, 32 apart, of two features each
  u64 *kv_full = barriers, *kv_empty = barriers + 2, *s_full = barriers + 4, *s_empty = barriers + 6, *q_full = barriers + 8, *q_empty = q_full + kStages;
  int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0), lane = (int)lane_id(), warp = (int)threadIdx.x / 32 % 4;
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) barrier_init(kv_full + s, 1), barrier_init(kv_empty + s, 2), barrier_init(s_full + s, 256), barrier_init(s_empty + s, 2);
    for (int s = 0; s < kStages; ++s) barrier_init(q_full + s, 1), barrier_init(q_empty + s, 2);
    barrier_init_done();
  }
  __syncthreads();
  Sizes size = sizes_of(a);
  Item x = {(int)blockIdx.x, 0, 0, 0, 0, 0};
  x.n = size.part_of(x), x.m = size.first(x.n);
  if (group == 2) {
    registers_down<40>();
    if (warp != 0 || lane != 0) return;
    for (int loaded = 0; x.head < size.heads; size.advance(x)) {
      int b = size.head_of(x) / a.kv_heads, kv = size.head_of(x) % a.kv_heads, h = kv * size.share + x.h, s = x.step % kStages;
      if (loaded == x.block) {
        int side = x.block % 2;
        barrier_wait(kv_empty + side, (unsigned)(x.block / 2 + 1) & 1u);
        barrier_expect(kv_full + side, 2 * kTileBytes);
        tensor_load_4d(k_tiles + side * kTileBytes, &a.k, kv_full + side, 0, x.n * kSide, kv, b);
        tensor_load_4d(v_tiles + side * kTileBytes, &a.v, kv_full + side, 0, x.n * kSide, kv, b);
        ++loaded;
      }
      // Every thread has read lse and delta of a tile when its gradients of scores are there; products have read the rest when q_empty says so.
      static_assert(kStages == 2, "as many as tiles of scores");
      barrier_wait(s_full + s, (unsigned)(x.step / kStages + 1) & 1u);
      barrier_wait(q_empty + s, (unsigned)(x.step / kStages + 1) & 1u);
      barrier_expect(q_full + s, 2 * kTileBytes + kRowBytes);
      tensor_load_4d(q_tiles + s * kTileBytes, &a.q, q_full + s, 0, x.m * kSide, h, b);
      tensor_load_4d(d_tiles + s * kTileBytes, &a.dout, q_full + s, 0, x.m * kSide, h, b);
      bulk_load(rows + s * 2 * kSide, a.rows + (((i64)b * a.heads + h) * size.ends + x.m) * 2 * kSide, kRowBytes, q_full + s);
    }
    return;
  }
  registers_up<232>();
  if (kSums) columns[0] = columns[32] = columns[64] = make_float2(0.0f, 0.0f);
  float c = a.scale * kLog2e;
  bool leader = threadIdx.x % 128 == 0;
  float dk[32], dv[32];
  auto scores = [&](float (&st)[64], const Item& y) {
    u64 ka = tile_descriptor(k_tiles + y.block % 2 * kTileBytes + group * 64 * 128, 16), qa = tile_descriptor(q_tiles + y.step % kStages * kTileBytes, 16);
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < 4; ++d) WGMMA<0, 0>(st, ka + d * 2, qa + d * 2, d != 0);
    wgmma_commit();
  };
  auto arrived = [&](const Item& y) {
    barrier_wait(kv_full + y.block % 2, (unsigned)(y.block / 2) & 1u);
    barrier_wait(q_full + y.step % kStages, (unsigned)(y.step / kStages) & 1u);
  };
  if (x.head >= size.heads) return;
  Item old = x;
  auto last_block = [&](int m) {  // of keys, that queries of m see
    int end = kCausal ? (m * kSide + kSide - 1 + size.shift) / kSide : size.blocks - 1;
    return end < size.blocks - 1 ? end : size.blocks - 1;
  };
  auto sums_of = [&](const Item& y) {
    return a.sums + ((((i64)(kSplit ? y.head : (int)blockIdx.x) * size.share + y.h) * size.ends + y.m) * kSide * kDim + threadIdx.x % 128 * 4 + group * 64 * kDim);
  };
  auto put_keys = [&]() {
    int head = size.head_of(old), b = head / a.kv_heads, kv = head % a.kv_heads, row = old.n * kSide + group * 64 + warp * 16 + lane / 4;
    put_rows(dk, a.scale, a.dk, a.dk_strides, b, kv, row, a.keys, a.dim, kSums ? columns + 32 : nullptr);
    put_rows(dv, kDropout ? a.kept : 1.0f, a.dv, a.dv_strides, b, kv, row, a.keys, a.dim, kSums ? columns + 64 : nullptr);
  };
  // dq of the item before: this group's 64 queries, all keys.
  auto multiply_dq = [&](float (&dq)[32], unsigned side) {
    u64 sa = tile_descriptor(s_tiles + side * kScoreBytes + group * kTileBytes, 16), ka = tile_descriptor(k_tiles + old.block % 2 * kTileBytes, 16);
#pragma unroll
    for (int k = 0; k < 8; ++k) WGMMA<1, 1>(dq, sa + k * 128, ka + k * 128, k != 0);
  };
  auto put_dq = [&](float (&dq)[32]) {
    float* sums = sums_of(old);
    if (kSplit || old.n < last_block(old.m)) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (old.n == size.part_of(old))
          *(float4*)(sums + e * 512) = make_float4(dq[4 * e], dq[4 * e + 1], dq[4 * e + 2], dq[4 * e + 3]);
        else
          add_4(sums + e * 512, dq[4 * e], dq[4 * e + 1], dq[4 * e + 2], dq[4 * e + 3]);
      }
      return;
    }
    if (old.n) {
#pragma unroll
      for (int half = 0; half < 8; half += 4) {
        float4 f[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) f[e] = load_4_added(sums + (half + e) * 512);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          int at = 4 * (half + e);
          dq[at] += f[e].x, dq[at + 1] += f[e].y, dq[at + 2] += f[e].z, dq[at + 3] += f[e].w;
        }
      }
    }
    int head = size.head_of(old);
    put_rows(dq, a.scale, a.dq, a.dq_strides, head / a.kv_heads, head % a.kv_heads * size.share + old.h, old.m * kSide + group * 64 + warp * 16 + lane / 4, a.queries, a.dim, kSums ? columns : nullptr);
  };
  // Sums of the head that ends.
  auto put_columns = [&]() {
    int b = old.head / a.kv_heads, h = old.head % a.kv_heads;
#pragma unroll
    for (int which = 0; which < 3; ++which) {
      *(float2*)(a.partials + (i64)(b * 8 + group * 4 + warp) * a.columns + a.first[which] + h * kDim + summed_feature()) = columns[32 * which];
      columns[32 * which] = make_float2(0.0f, 0.0f);
    }
  };
  bool fresh = true;  // dk and dv begin
  while (true) {
    int s = x.step % kStages, i0 = x.m * kSide, j = x.n * kSide + group * 64 + warp * 16 + lane / 4;
    const unsigned char *q_tile = q_tiles + s * kTileBytes, *d_tile = d_tiles + s * kTileBytes;
    unsigned kept[2] = {0xffffffffu, 0xffffffffu};
    if (kDropout) {  // before products take most registers
      Dropout dropout = {(u64)*a.seed, 0, (u32)*a.step, a.stream, a.limit, a.keys, true};
      set_first(dropout, (u64)*a.base + ((u64)(size.head_of(x) / a.kv_heads) * a.heads + size.head_of(x) % a.kv_heads * size.share + x.h) * a.queries * a.keys);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        kept[half] = 0;
#pragma unroll 4
        for (int n = 0; n < 8; ++n) kept[half] |= kept_in_columns(dropout, i0 + half * 64 + n * 8 + lane % 4 * 2, j) << (n * 4);
      }
    }
    u64 va = tile_descriptor(v_tiles + x.block % 2 * kTileBytes + group * 64 * 128, 16), da = tile_descriptor(d_tile, 16), qa = tile_descriptor(q_tile, 16);
    float st[64];
    arrived(x);
    scores(st, x);
    wgmma_wait<0>();
    keep_sums(st);
    keep_sums(dk);
    keep_sums(dv);
    if (x.step) {
      if (leader) barrier_arrive(q_empty + old.step % kStages);
      if (fresh) put_keys();
    }
    if (x.n * kSide + kSide > a.keys || (kCausal && x.n * kSide + group * 64 + 63 > i0 + size.shift)) {
      int edge = i0 + lane % 4 * 2 + size.shift - j;  // keys up to this many after j are seen by the first query
#pragma unroll
      for (int e = 0; e < 64; ++e) {
        int after = e / 2 % 2 * 8;
        if (j + after >= a.keys || (kCausal && after > edge + e / 4 * 8 + e % 2)) st[e] = -infinity();
      }
    }
    unsigned p[8][4];
    const float* l = rows + s * 2 * kSide + lane % 4 * 2;
#pragma unroll
    for (int e = 0; e < 64; e += 4) {
      float2 w = *(const float2*)(l + e * 2);
      st[e] = exp2_fast(fmaf(st[e], c, -w.x)), st[e + 1] = exp2_fast(fmaf(st[e + 1], c, -w.y));
      st[e + 2] = exp2_fast(fmaf(st[e + 2], c, -w.x)), st[e + 3] = exp2_fast(fmaf(st[e + 3], c, -w.y));
      p[e / 8][e / 4 % 2 * 2] = pack(st[e], st[e + 1]), p[e / 8][e / 4 % 2 * 2 + 1] = pack(st[e + 2], st[e + 3]);
    }
    if (x.step) barrier_wait(s_full + old.step % 2, (unsigned)(old.step / 2) & 1u);
    float dq[32], dp[64];
    auto multiply_dv = [&]() {
      wgmma_fence();
#pragma unroll
      for (int n = 0; n < 8; ++n) WGMMA<1>(dv, p[n], da + n * 128, n != 0 || !fresh);
      wgmma_commit();
    };
    wgmma_fence();
    multiply_dq(dq, old.step % 2);  // before the first item of whatever lies there, for nothing
    wgmma_commit();
#pragma unroll
    for (int d = 0; d < 4; ++d) WGMMA<0, 0>(dp, va + d * 2, da + d * 2, d != 0);
    wgmma_commit();
    if (!kDropout) {
      multiply_dv();
      wgmma_wait<2>();
    } else {
      wgmma_wait<1>();
    }
    keep_sums(dq);
    if (x.step) {
      if (leader) {
        barrier_arrive(s_empty + old.step % 2);
        if (fresh) barrier_arrive(kv_empty + old.block % 2);
      }
      put_dq(dq);
      if (kSums && x.head != old.head) put_columns();
    }
    if (kDropout)
      wgmma_wait<0>();
    else
      wgmma_wait<1>();
    keep_sums(dp);
    const float* g = l + kSide;
    unsigned ds[8][4];
#pragma unroll
    for (int e = 0; e < 64; e += 4) {
      float2 w = *(const float2*)(g + e * 2);
      if (kDropout) {
#pragma unroll
        for (int f = e; f < e + 4; ++f) dp[f] = kept[f / 32] >> (f % 32) & 1u ? dp[f] * a.kept : 0.0f;
      }
      unsigned u = p[e / 8][e / 4 % 2 * 2], v = p[e / 8][e / 4 % 2 * 2 + 1];
      ds[e / 8][e / 4 % 2 * 2] = pack(low_half(u) * (dp[e] - w.x), high_half(u) * (dp[e + 1] - w.y));
      ds[e / 8][e / 4 % 2 * 2 + 1] = pack(low_half(v) * (dp[e + 2] - w.x), high_half(v) * (dp[e + 3] - w.y));
    }
    if (kDropout) {  // what was dropped is needed up to here
#pragma unroll
      for (int e = 0; e < 64; e += 2) {
        unsigned bits = kept[e / 32] >> (e % 32);
        p[e / 8][e / 2 % 4] &= (bits & 1u ? 0xffffu : 0u) | (bits & 2u ? 0xffff0000u : 0u);
      }
      multiply_dv();
    }
    barrier_wait(s_empty + x.step % 2, (unsigned)(x.step / 2 + 1) & 1u);
    unsigned char* to = s_tiles + x.step % 2 * kScoreBytes + (group * 64 + warp * 16 + lane % 16) * 128;
#pragma unroll
    for (int n = 0; n < 8; ++n) store_matrices(to + n / 4 * kTileBytes + ((n % 4 * 2 + lane / 16) ^ (lane % 8)) * 16, ds[n]);
    fence_async_proxy();
    barrier_arrive(s_full + x.step % 2);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < 8; ++n) WGMMA<1>(dk, ds[n], qa + n * 128, n != 0 || !fresh);
    wgmma_commit();
    old = x;
    size.advance(x);
    fresh = x.block != old.block;
    if (x.head >= size.heads) break;
  }
  barrier_wait(s_full + old.step % 2, (unsigned)(old.step / 2) & 1u);
  float dq[32];
  wgmma_fence();
  multiply_dq(dq, old.step % 2);
  wgmma_commit();
  wgmma_wait<0>();
  keep_sums(dq);
  keep_sums(dk);
  keep_sums(dv);
  put_keys();
  put_dq(dq);
  if (kSums) put_columns();
#endif
}
)cuda";

constexpr const char* kGradEnd = R"cuda(
// dq where several blocks shared a head: their sums in order.
extern "C" __global__ void __launch_bounds__(256) attention_hopper_grad_end(const RIDGE_CONSTANT HopperGradArguments a) {
  Sizes size = sizes_of(a);
  int m = (int)blockIdx.x % size.ends, h = (int)blockIdx.x / size.ends % a.heads, b = (int)blockIdx.x / size.ends / a.heads;
  int group = (int)threadIdx.x / 128, warp = (int)threadIdx.x / 32 % 4;
  float dq[32] = {};
  for (int part = 0; part < size.parts; ++part) {
    if (size.first(part) > m) break;
    i64 head = ((i64)b * a.kv_heads + h / size.share) * size.parts + part;
    const float* sums = a.sums + (((head * size.share + h % size.share) * size.ends + m) * kSide * kDim + threadIdx.x % 128 * 4 + group * 64 * kDim);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      float4 f = *(const float4*)(sums + e * 512);
      dq[4 * e] += f.x, dq[4 * e + 1] += f.y, dq[4 * e + 2] += f.z, dq[4 * e + 3] += f.w;
    }
  }
  put_rows(dq, a.scale, a.dq, a.dq_strides, b, h, m * kSide + group * 64 + warp * 16 + (int)lane_id() / 4, a.queries, a.dim);
}
)cuda";

constexpr const char* kGradSums = R"cuda(
// The partial sums of 32 columns, in order.
extern "C" __global__ void __launch_bounds__(256) attention_hopper_grad_sums(const float* partials, float* out, int rows, int columns) {
  __shared__ float totals[8][32];
  int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, column = (int)blockIdx.x * 32 + lane;
  float total = 0.0f;
#pragma unroll 8
  for (int row = warp; row < rows; row += 8) total += partials[(i64)row * columns + column];
  totals[warp][lane] = total;
  __syncthreads();
  if (warp > 0) return;
  for (int w = 1; w < 8; ++w) total += totals[w][lane];
  out[column] = total;
}
)cuda";

std::string split_text(bool split, bool sums) { return std::string("constexpr int kSplit = ") + (split ? "1" : "0") + ", kSums = " + (sums ? "1;\n" : "0;\n"); }

}  // namespace

KernelText hopper_grad_text(const HopperShape& s) {
  KernelText text = hopper_text("attention_hopper_grad", s, split_text(s.split, s.sums), std::string(kGradCommon) + kGrad);
  const int64_t tile = kHopperSide * 128;
  text.shared = (4 + 4 + 2 * s.stages) * tile + s.stages * kHopperSide * 8 + 8 * (8 + 2 * s.stages) + (s.sums ? kHopperWarps * 3 * 64 * 4 : 0);
  return text;
}

KernelText hopper_grad_sums_text(const HopperShape& s) { return hopper_text("attention_hopper_grad_sums", s, "", kGradSums); }

KernelText hopper_grad_end_text(const HopperShape& s) {
  return hopper_text("attention_hopper_grad_end", s, split_text(true, false), std::string(kGradCommon) + kGradEnd);
}

}  // namespace ridge::cuda
