// The text of attention for Hopper: warpgroup products on tiles that the tensor memory accelerator loads. When texts are compiled for other chips, the entries
// are empty and never used.
#include <algorithm>

#include "backend/cuda/attention_text.h"

namespace ridge::cuda {
namespace {

constexpr const char* kCommon = R"cuda(
constexpr float kLog2e = 1.44269504088896340736f;
__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ unsigned pack(float low, float high) { return kType == 1 ? pack_bf16(low, high) : pack_f16(low, high); }
__device__ __forceinline__ float low_half(unsigned x) { return kType == 1 ? __uint_as_float(x << 16) : unpack_f16((half_bits)(x & 0xffffu)); }
__device__ __forceinline__ float high_half(unsigned x) { return kType == 1 ? __uint_as_float(x & 0xffff0000u) : unpack_f16((half_bits)(x >> 16)); }
// The descriptor of a tile so many units of 16 bytes further; addresses do not reach the upper half.
__device__ __forceinline__ u64 further(u64 tile, unsigned units) { return (tile & 0xffffffff00000000ull) | ((unsigned)tile + units); }
// Four threads side by side hold four words each: thread t gets the words t of all.
__device__ __forceinline__ void transpose_four(unsigned (&w)[4]) {
  bool odd = lane_id() & 1u, high = lane_id() & 2u;
  unsigned a = __shfl_xor_sync(0xffffffffu, odd ? w[0] : w[1], 1), b = __shfl_xor_sync(0xffffffffu, odd ? w[2] : w[3], 1);
  if (odd) w[0] = a, w[2] = b; else w[1] = a, w[3] = b;
  a = __shfl_xor_sync(0xffffffffu, high ? w[0] : w[2], 2), b = __shfl_xor_sync(0xffffffffu, high ? w[1] : w[3], 2);
  if (high) w[0] = a, w[1] = b; else w[2] = a, w[3] = b;
}
)cuda";

// Expects the constants kType (1 bf16, 2 f16), kDim (64 or 128: features, padded with zeros), kCausal, kDropout, kGroups (of 64 queries), kColumns (keys at a
// time), kStages (key tiles in flight), kBlocks (per multiprocessor), kProducer (a group of threads only loads),
// kFewRegisters (its own, then), kManyRegisters (of the others).
constexpr const char* kForward = R"cuda(
struct HopperArguments {
  TensorMap q, k, v;
  void* out;
  float* lse;
  i64 out_strides[4];
  const i64 *seed, *step, *base;
  int batch, heads, kv_heads, queries, keys, dim;
  int paired;  // a block of the grid does two blocks of queries: one that sees many keys and one that sees few
  float scale;  // > 0
  float kept;
  unsigned limit, stream;
};

constexpr int kRows = kGroups * 64, kThreads = (kGroups + (kProducer ? 1 : 0)) * 128;
constexpr float kSlack = 8.0f;
constexpr int kParts = kDim / 64;  // tiles are 64 features wide
constexpr int kQueryBytes = kRows * kDim * 2, kKeyBytes = kColumns * kDim * 2;


extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) attention_hopper_forward(const RIDGE_CONSTANT HopperArguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  unsigned char* q_tiles = shared_memory;  // one for each of two
  unsigned char* k_tiles = q_tiles + 2 * kQueryBytes;
  unsigned char* v_tiles = k_tiles + kStages * kKeyBytes;
  u64* barriers = (u64*)(v_tiles + kStages * kKeyBytes);
  u64 *q_full = barriers, *k_full = barriers + 2, *k_empty = k_full + kStages, *v_full = k_empty + kStages, *v_empty = v_full + kStages;
  // Of a pair the second's tiles come while the first ends, and all pairs have the same work.
  int blocks = (a.queries + kRows - 1) / kRows, pairs = a.paired ? (blocks + 1) / 2 : blocks;
  int head = (int)blockIdx.x / pairs, pair = (int)blockIdx.x % pairs, count = !a.paired || 2 * pair + 1 == blocks ? 1 : 2;
  int b = head / a.heads, h = head % a.heads, kv = h / (a.heads / a.kv_heads), shift = a.keys - a.queries;
  int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
  auto first_query = [&](int turn) { return (turn ? pair : blocks - 1 - pair) * kRows; };
  auto count_steps = [&](int i0) {
    int last = i0 + kRows < a.queries ? i0 + kRows : a.queries, end = kCausal ? last + shift : a.keys;
    return end <= 0 ? 0 : (end + kColumns - 1) / kColumns;
  };
  int long_steps = count_steps(first_query(0)), all_steps = long_steps + (count == 2 ? count_steps(first_query(1)) : 0);
  if (threadIdx.x == 0) {
    barrier_init(q_full, 1), barrier_init(q_full + 1, 1);
    for (int s = 0; s < kStages; ++s) barrier_init(k_full + s, 1), barrier_init(v_full + s, 1), barrier_init(k_empty + s, kGroups), barrier_init(v_empty + s, kGroups);
    barrier_init_done();
  }
  // One thread asks for tiles; it waits until all have read what was there.
  int fed = 0;
  auto feed = [&](int until, int must) {  // waits only for the first `must`
    until = until < all_steps ? until : all_steps;
    for (; fed < until; ++fed) {
      unsigned parity = (unsigned)(fed / kStages + 1) & 1u;
      if (fed >= must && !(barrier_test(k_empty + fed % kStages, parity) && barrier_test(v_empty + fed % kStages, parity))) return;
      int turn = fed >= long_steps, j0 = ((turn ? all_steps : long_steps) - 1 - fed) * kColumns, s = fed % kStages;
      if (fed == 0 || fed == long_steps) {
        barrier_expect(q_full + turn, kQueryBytes);
        for (int part = 0; part < kParts; ++part) tensor_load_4d(q_tiles + turn * kQueryBytes + part * kRows * 128, &a.q, q_full + turn, part * 64, first_query(turn), h, b);
      }
      barrier_wait(k_empty + s, parity);
      barrier_expect(k_full + s, kKeyBytes);
      for (int part = 0; part < kParts; ++part) tensor_load_4d(k_tiles + s * kKeyBytes + part * kColumns * 128, &a.k, k_full + s, part * 64, j0, kv, b);
      barrier_wait(v_empty + s, parity);
      barrier_expect(v_full + s, kKeyBytes);
      for (int part = 0; part < kParts; ++part) tensor_load_4d(v_tiles + s * kKeyBytes + part * kColumns * 128, &a.v, v_full + s, part * 64, j0, kv, b);
    }
  };
  if (!kProducer && threadIdx.x == 0) feed(kStages, kStages);
  __syncthreads();
  if constexpr (kProducer != 0) {
    if (group == kGroups) {
      registers_down<kFewRegisters>();
      if (threadIdx.x % 128 == 0) feed(all_steps, all_steps);
      return;
    }
    registers_up<kManyRegisters>();
  }
  int lane = (int)lane_id(), warp = (int)threadIdx.x / 32 % 4, before = 0;
  float c = a.scale * kLog2e;
#pragma unroll 1
  for (int turn = 0; turn < count; ++turn) {
    int place = turn ? kGroups - 1 - group : group;  // in the tile of queries: groups that see fewer keys in one see more in the other
    int row0 = first_query(turn) + place * 64, i = row0 + warp * 16 + lane / 4, steps = turn ? all_steps - long_steps : long_steps;
    unsigned char* q_tile = q_tiles + turn * kQueryBytes;
    float sums[kDim / 2], top[2] = {-infinity(), -infinity()}, total[2] = {0.0f, 0.0f}, s[kColumns / 2];
#pragma unroll
    for (int e = 0; e < kDim / 2; ++e) sums[e] = 0.0f;
    unsigned p[kColumns / 16][4];
    // Blocks after the last that this group's rows see: nothing to do but to say so.
    int skip = 0;
    if (kCausal) {
      int mine = row0 + 64 + shift;
      mine = mine <= 0 ? 0 : (mine + kColumns - 1) / kColumns;
      skip = steps - mine > 0 ? steps - mine : 0;
    }
    for (int step = before; step < before + skip; ++step)
      if (threadIdx.x % 128 == 0) {
        barrier_wait(k_full + step % kStages, (unsigned)(step / kStages) & 1u);
        barrier_arrive(k_empty + step % kStages);
        barrier_wait(v_full + step % kStages, (unsigned)(step / kStages) & 1u);  // else it might arrive twice where others have yet to arrive once
        barrier_arrive(v_empty + step % kStages);
        if (!kProducer && threadIdx.x == 0) feed(step + 1 + kStages, step + 2);
      }

    // Places in shared memory as products take them: in units of 16 bytes, so that they are moved by adding.
    u64 q_at = tile_descriptor(q_tile + place * 64 * 128, 16), k_at = tile_descriptor(k_tiles, 16), v_at = tile_descriptor(v_tiles, kColumns * 128);
    auto scores = [&](int step) {
      unsigned stage = (unsigned)(before + step) % kStages;
      barrier_wait(k_full + stage, (unsigned)(before + step) / kStages & 1u);
      wgmma_fence();
#pragma unroll
      for (int d = 0; d < kDim / 16; ++d)
        WGMMA<0, 0>(s, further(q_at, d / 4 * kRows * 8 + d % 4 * 2), further(k_at, stage * (kKeyBytes / 16) + (d / 4 * kColumns * 8 + d % 4 * 2)), d != 0);
      wgmma_commit();
    };
    auto values = [&](int step) {
      unsigned stage = (unsigned)(before + step) % kStages;
      barrier_wait(v_full + stage, (unsigned)(before + step) / kStages & 1u);
      wgmma_fence();
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) WGMMA<1>(sums, p[n], further(v_at, stage * (kKeyBytes / 16) + n * 128), 1);
      wgmma_commit();
    };
    float shrink[2];
    bool moved = false;  // this warp's rows have a new reference: what was summed before must shrink
    auto softmax = [&](int step) {
      int j0 = (steps - 1 - step) * kColumns;
      if (j0 + kColumns > a.keys || (kCausal && j0 + kColumns - 1 > row0 + shift)) {
#pragma unroll
        for (int e = 0; e < kColumns / 2; ++e) {
          int j = j0 + e / 4 * 8 + lane % 4 * 2 + e % 2;
          if (j >= a.keys || (kCausal && j > i + e / 2 % 2 * 8 + shift)) s[e] = -infinity();
        }
      }
      // Several short chains: a long one would wait for itself.
      float high[2][4];
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          high[r][x] = s[4 * x + 2 * r];
#pragma unroll
          for (int e = 4 * x; e < kColumns / 2; e += 16) high[r][x] = fmaxf(high[r][x], fmaxf(s[e + 2 * r], s[e + 2 * r + 1]));
        }
      bool above = false;
      float most[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        most[r] = fmaxf(fmaxf(high[r][0], high[r][1]), fmaxf(high[r][2], high[r][3]));
        most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 1));
        most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 2));
        above = above || (most[r] - top[r]) * c > kSlack;
      }
      // The reference follows the largest score only when that is far above it: weights up to 2^kSlack do no harm.
      moved = __any_sync(0xffffffffu, above);
      if (moved) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float next = fmaxf(top[r], most[r]);
          shrink[r] = next == -infinity() ? 1.0f : exp2_fast((top[r] - next) * c);
          top[r] = next;
          total[r] *= shrink[r];
        }
      }
      float sum[2][4] = {};
#pragma unroll
      for (int e = 0; e < kColumns / 2; e += 4)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float from = top[r] == -infinity() ? 0.0f : -top[r] * c;
          s[e + 2 * r] = exp2_fast(fmaf(s[e + 2 * r], c, from)), s[e + 2 * r + 1] = exp2_fast(fmaf(s[e + 2 * r + 1], c, from));
          sum[r][e / 4 % 2 * 2] += s[e + 2 * r], sum[r][e / 4 % 2 * 2 + 1] += s[e + 2 * r + 1];
        }
#pragma unroll
      for (int r = 0; r < 2; ++r) total[r] += (sum[r][0] + sum[r][1]) + (sum[r][2] + sum[r][3]);
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
      barrier_wait(q_full + turn, 0);
      scores(skip);
      wgmma_wait<0>();
      keep_sums(s);
      if (threadIdx.x % 128 == 0) barrier_arrive(k_empty + (unsigned)(before + skip) % kStages);
      softmax(skip);
      weights(skip);
      if (!kProducer && threadIdx.x == 0) feed(before + skip + kStages, before + skip + 2);  // the loop begins with the next tile
      for (int step = skip + 1; step < steps; ++step) {
        scores(step);
        values(step - 1);
        wgmma_wait<1>();
        keep_sums(s);
        if (threadIdx.x % 128 == 0) barrier_arrive(k_empty + (unsigned)(before + step) % kStages);
        softmax(step);
        wgmma_wait<0>();
        keep_sums(sums);
        if (threadIdx.x % 128 == 0) barrier_arrive(v_empty + (unsigned)(before + step - 1) % kStages);
        if (!kProducer && threadIdx.x == 0) feed(before + step + kStages, before + step + 2);
        if (moved) {
#pragma unroll
          for (int e = 0; e < kDim / 2; ++e) sums[e] *= shrink[e / 2 % 2];
        }
        weights(step);
      }
      values(steps - 1);
      wgmma_wait<0>();
      keep_sums(sums);
      if (threadIdx.x % 128 == 0) barrier_arrive(v_empty + (unsigned)(before + steps - 1) % kStages);
    }
    before += steps;
    if (!kProducer && threadIdx.x == 0) feed(before + kStages, before + 1);
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
    unsigned char* mine = q_tile + (place * 64 + warp * 16) * 128;
#pragma unroll
    for (int e = 0; e < kDim / 2; e += 2) {
      int row = lane / 4 + e / 2 % 2 * 8, column = e / 4 * 8;
      *(unsigned*)(mine + column / 64 * kRows * 128 + row * 128 + ((column % 64 / 8) ^ (row % 8)) * 16 + lane % 4 * 4) = pack(sums[e] * factor[e / 2 % 2], sums[e + 1] * factor[e / 2 % 2]);
    }
    __syncwarp();
#pragma unroll
    for (int x = lane; x < 16 * kDim / 8; x += 32) {
      int row = x / (kDim / 8), chunk = x % (kDim / 8), at = row0 + warp * 16 + row;
      if (at < a.queries && chunk * 8 < a.dim)
        *(uint4*)((half_bits*)a.out + b * a.out_strides[0] + h * a.out_strides[1] + at * a.out_strides[2] + chunk * 8) =
            *(const uint4*)(mine + chunk / 8 * kRows * 128 + row * 128 + ((chunk % 8) ^ (row % 8)) * 16);
    }
  }
#endif
}
)cuda";

std::string number(const char* name, int64_t value) { return std::string("constexpr int ") + name + " = " + std::to_string(value) + ";\n"; }

}  // namespace

KernelText hopper_text(const char* entry, const HopperShape& s, const std::string& constants, const std::string& body) {
  return {entry,
          std::string(matrix_prelude()) + "extern __shared__ __align__(1024) unsigned char shared_memory[];\n#define WGMMA " +
              (s.type == 1 ? "wgmma_bf16" : "wgmma_f16") + "\n" + number("kType", s.type) + number("kDim", s.dim) + number("kCausal", s.causal) +
              number("kDropout", s.dropout) + number("kStages", s.stages) + constants + dropout_text() + kCommon + body,
          0};
}

// A block starts with equal shares of a multiprocessor's registers, which the group that loads gives to the others.
std::string registers_text(const HopperShape& s) {
  constexpr int kStep = 8, kFew = 24, kOfFourWarps = 512;
  const int groups = s.groups + 1, each = kOfFourWarps / (groups * s.blocks) / kStep * kStep, many = (each * groups - kFew) / s.groups / kStep * kStep;
  return number("kFewRegisters", kFew) + number("kManyRegisters", std::min(many, 240));
}

KernelText hopper_forward_text(const HopperShape& s) {
  KernelText text = hopper_text(
      "attention_hopper_forward", s,
      number("kGroups", s.groups) + number("kColumns", s.columns) + number("kBlocks", s.blocks) + number("kProducer", s.producer) + registers_text(s),
      kForward);
  text.shared = (2 * s.rows() + 2 * s.stages * s.columns) * s.dim * 2 + 8 * (2 + 4 * s.stages);
  return text;
}

}  // namespace ridge::cuda
