#include "backend/cuda/matmul_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "backend/cuda/prelude.h"
#include "base/error.h"

namespace ridge::cuda {
namespace {

// The numbers of types in the texts: 0 f32, 1 bf16, 2 f16, -1 absent.
int number_of(DType t) { return t == DType::f32 ? 0 : t == DType::bf16 ? 1 : 2; }

// Parameters, addresses, and what happens to a finished sum.
constexpr const char* kCommon = R"(
typedef long long i64;

struct MatmulAxis {
  i64 size[kAxisLoops], x[kAxisLoops], y[kAxisLoops], z[kAxisLoops];
};
struct MatmulArguments {
  const void *a, *b;
  void* result;
  const void *bias, *addend;
  void* aux;
  float* parts;
  i64 batches, rows, columns, depth, part;
  MatmulAxis batch, m, n, k;
  i64 addend_batch, addend_row, aux_batch, aux_row;
  float alpha, pad;
};

// The element of an index that runs over `Loops` loops, slowest first.
template <int Loops>
__device__ __forceinline__ i64 matmul_element(const i64* size, const i64* stride, i64 index) {
  if (Loops == 0) return 0;
  if (Loops == 1) return index * stride[0];
  i64 at = 0;
#pragma unroll
  for (int l = Loops - 1; l > 0; --l) {
    i64 next = index / size[l];
    at += (index - next * size[l]) * stride[l];
    index = next;
  }
  return at + index * stride[0];
}

// Where the rows of a tile begin.
template <int Loops, int Side>
__device__ __forceinline__ void matmul_places(i64* to, const i64* size, const i64* stride, i64 first, i64 count, i64 base) {
  for (int i = (int)threadIdx.x; i < Side; i += (int)blockDim.x) to[i] = base + (first + i < count ? matmul_element<Loops>(size, stride, first + i) : 0);
}
// Where the next elements of the depth lie in both factors.
template <int Deep>
__device__ __forceinline__ void matmul_depth(i64* a, i64* b, const MatmulArguments& g, int stage, i64 first, i64 end) {
  int i = (int)threadIdx.x;
  if (i >= Deep || first + i >= end) return;
  a[stage * Deep + i] = matmul_element<kKLoops>(g.k.size, g.k.x, first + i);
  b[stage * Deep + i] = matmul_element<kKLoops>(g.k.size, g.k.y, first + i);
}

template <int Type>
__device__ __forceinline__ float matmul_read(const void* p, i64 i) {
  if (Type == 0) return ((const float*)p)[i];
  if (Type == 1) return unpack_bf16(((const half_bits*)p)[i]);
  return unpack_f16(((const half_bits*)p)[i]);
}
template <int Type>
__device__ __forceinline__ void matmul_write(void* p, i64 i, float x) {
  if (Type == 0)
    ((float*)p)[i] = x;
  else
    ((half_bits*)p)[i] = (half_bits)(Type == 1 ? pack_bf16(x, 0.f) : pack_f16(x, 0.f));
}

__device__ __forceinline__ void matmul_finish(const MatmulArguments& g, i64 batch, i64 row, i64 column, float sum) {
  float v = g.alpha * sum;
  if (kBias >= 0) v += matmul_read<kBias>(g.bias, column);
  if (kAddend >= 0) v += matmul_read<kAddend>(g.addend, batch * g.addend_batch + row * g.addend_row + column);
  if (kFunction == 1) v = v > 0.f || v != v ? v : 0.f;
  if (kFunction == 2) {
    if (kAux >= 0) matmul_write<kAux>(g.aux, batch * g.aux_batch + row * g.aux_row + column, v);
    v = gelu_tanh(v);
  }
  if (kFunction == 3) v *= gelu_tanh_grad(matmul_read<kAux>(g.aux, batch * g.aux_batch + row * g.aux_row + column));
  i64 at = matmul_element<kBatchLoops>(g.batch.size, g.batch.z, batch) + matmul_element<kMLoops>(g.m.size, g.m.y, row) + matmul_element<kNLoops>(g.n.size, g.n.y, column);
  matmul_write<kResult>(g.result, at, v);
}

__device__ __forceinline__ void matmul_store(const MatmulArguments& g, i64 part, i64 batch, i64 row, i64 column, float sum) {
  if (row >= g.rows || column >= g.columns) return;
  if (kParts)
    g.parts[((part * g.batches + batch) * g.rows + row) * g.columns + column] = sum;
  else
    matmul_finish(g, batch, row, column, sum);
}
)";

// A thread computes 4 x 4 sums of a 64 x 64 tile; factors are staged in shared memory as f32.
constexpr const char* kScalarProduct = R"(
constexpr int kTile = 64, kDeep = 16, kThreads = 256;

// Elements of a tile that this thread fetches: along the depth where that is the fast axis, else along the rows.
template <int Type, int RowLoops, bool FastK>
struct MatmulFetch {
  const void* from;
  const i64 *rows, *depth;  // where they lie
  i64 first, count;
  int r, k;
  float value[4];
  __device__ __forceinline__ MatmulFetch(const void* p, const i64* rows, const i64* depth, i64 first, i64 count)
      : from(p), rows(rows), depth(depth), first(first), count(count) {
    int t = (int)threadIdx.x;
    r = FastK ? t / kDeep : t % kTile, k = FastK ? t % kDeep : t / kTile;
  }
  __device__ __forceinline__ void load(int stage, i64 begin, i64 end) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int row = r + (FastK ? 16 * i : 0), at = k + (FastK ? 0 : 4 * i);
      value[i] = begin + at < end && first + row < count ? matmul_read<Type>(from, rows[row] + depth[stage * kDeep + at]) : 0.f;
    }
  }
  __device__ __forceinline__ void put(float (*to)[kTile + 4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[k + (FastK ? 0 : 4 * i)][r + (FastK ? 16 * i : 0)] = value[i];
  }
};

__device__ __forceinline__ void matmul_tile(const MatmulArguments& g, i64 tile, i64 part, i64 first_batch, i64 batch_step) {
  __shared__ float x[kDeep][kTile + 4], y[kDeep][kTile + 4];
  __shared__ i64 rows_at[kTile], columns_at[kTile], depth_a[2 * kDeep], depth_b[2 * kDeep];
  i64 down = (g.rows + kTile - 1) / kTile;
  i64 row = tile % down * kTile, column = tile / down * kTile;
  i64 begin = part * g.part, end = begin + g.part < g.depth ? begin + g.part : g.depth;
  int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
  for (i64 batch = first_batch; batch < g.batches; batch += batch_step) {
    matmul_places<kMLoops, kTile>(rows_at, g.m.size, g.m.x, row, g.rows, matmul_element<kBatchLoops>(g.batch.size, g.batch.x, batch));
    matmul_places<kNLoops, kTile>(columns_at, g.n.size, g.n.x, column, g.columns, matmul_element<kBatchLoops>(g.batch.size, g.batch.y, batch));
    for (int s = 0; s < 2; ++s) matmul_depth<kDeep>(depth_a, depth_b, g, s, begin + s * kDeep, end);
    __syncthreads();
    MatmulFetch<kA, kMLoops, kAFastK> a(g.a, rows_at, depth_a, row, g.rows);
    MatmulFetch<kB, kNLoops, kBFastK> b(g.b, columns_at, depth_b, column, g.columns);
    float sum[4][4] = {};
    a.load(0, begin, end), b.load(0, begin, end);
    int stage = 0;
    for (i64 k = begin; k < end; k += kDeep, stage ^= 1) {
      a.put(x), b.put(y);
      __syncthreads();
      if (k + kDeep < end) a.load(stage ^ 1, k + kDeep, end), b.load(stage ^ 1, k + kDeep, end);
      if (k + 2 * kDeep < end) matmul_depth<kDeep>(depth_a, depth_b, g, stage, k + 2 * kDeep, end);
#pragma unroll
      for (int q = 0; q < kDeep; ++q) {
        float u[4], v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) u[i] = x[q][ty * 4 + i], v[i] = y[q][tx * 4 + i];
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(u[i], v[j], sum[i][j]);
      }
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) matmul_store(g, part, batch, row + ty * 4 + i, column + tx * 4 + j, sum[i][j]);
    __syncthreads();
  }
}
)";

constexpr const char* kScalarEntry = R"(
extern "C" __global__ void __launch_bounds__(256) ridge_matmul(const RIDGE_CONSTANT MatmulArguments g) {
  matmul_tile(g, blockIdx.x, blockIdx.z, blockIdx.y, gridDim.y);
}
)";

// Each warp computes 32 x 32 sums with the matrix units. Factors are stored in shared memory in the order in which they are loaded: rows of 32 along the depth,
// or 32 rows along the tile's side, which are transposed when they are read.
constexpr const char* kMatrixProduct = R"(
constexpr int kDeep = 32, kThreads = 32 * kWarpsDown * kWarpsAcross;
constexpr int kWarpRows = kTileRows / kWarpsDown, kWarpColumns = kTileColumns / kWarpsAcross;

// A side of the tile: Side x 32 elements, fetched in chunks of 8 along the fast axis.
template <int Side, bool FastK, bool Wide>
struct MatmulFetch {
  static constexpr int kPitch = FastK ? kDeep + 8 : Side + 8, kLines = FastK ? Side : kDeep;
  static constexpr int kAlong = (FastK ? kDeep : Side) / 8, kChunks = Side * kDeep / 8 / kThreads;
  const half_bits* from;
  const i64 *rows, *depth;  // where they lie
  i64 first, count;
  uint4 value[kChunks];
  __device__ __forceinline__ MatmulFetch(const void* p, const i64* rows, const i64* depth, i64 first, i64 count)
      : from((const half_bits*)p), rows(rows), depth(depth), first(first), count(count) {}
  __device__ __forceinline__ int line(int i) const { return ((int)threadIdx.x + i * kThreads) / kAlong; }
  __device__ __forceinline__ int along() const { return (int)threadIdx.x % kAlong * 8; }
  __device__ __forceinline__ unsigned one(int r, int k, int height, int deep, const i64* at) const {
    return r < height && k < deep ? from[rows[r] + at[k]] : 0;
  }
  __device__ __forceinline__ void load(int stage, i64 begin, i64 end) {
    const i64* at = depth + stage * kDeep;
    int height = count - first < Side ? (int)(count - first) : Side, deep = end - begin < kDeep ? (int)(end - begin) : kDeep;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      int r = FastK ? line(i) : along(), k = FastK ? along() : line(i);
      bool whole = FastK ? r < height && k + 8 <= deep : r + 8 <= height && k < deep;
      if (Wide && whole) {
        value[i] = *(const uint4*)(from + rows[r] + at[k]);
        continue;
      }
      unsigned pair[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        pair[j] = one(r + (FastK ? 0 : 2 * j), k + (FastK ? 2 * j : 0), height, deep, at) |
                  one(r + (FastK ? 0 : 2 * j + 1), k + (FastK ? 2 * j + 1 : 0), height, deep, at) << 16;
      value[i] = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }
  }
  __device__ __forceinline__ void put(half_bits* to) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) *(uint4*)(to + line(i) * kPitch + along()) = value[i];
  }
};

typedef MatmulFetch<kTileRows, kAFastK, kAWide> FetchA;
typedef MatmulFetch<kTileColumns, kBFastK, kBWide> FetchB;

extern "C" __global__ void __launch_bounds__(kThreads, 2) ridge_matmul(const RIDGE_CONSTANT MatmulArguments g) {
  __shared__ __align__(16) half_bits x[2][FetchA::kLines * FetchA::kPitch];
  __shared__ __align__(16) half_bits y[2][FetchB::kLines * FetchB::kPitch];
  __shared__ i64 rows_at[kTileRows], columns_at[kTileColumns], depth_a[2 * kDeep], depth_b[2 * kDeep];
  i64 down = (g.rows + kTileRows - 1) / kTileRows;
  i64 row = (i64)blockIdx.x % down * kTileRows, column = (i64)blockIdx.x / down * kTileColumns;
  i64 begin = (i64)blockIdx.z * g.part, end = begin + g.part < g.depth ? begin + g.part : g.depth;
  int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
  int warp_row = warp % kWarpsDown * kWarpRows, warp_column = warp / kWarpsDown * kWarpColumns;
  for (i64 batch = blockIdx.y; batch < g.batches; batch += gridDim.y) {
    matmul_places<kMLoops, kTileRows>(rows_at, g.m.size, g.m.x, row, g.rows, matmul_element<kBatchLoops>(g.batch.size, g.batch.x, batch));
    matmul_places<kNLoops, kTileColumns>(columns_at, g.n.size, g.n.x, column, g.columns, matmul_element<kBatchLoops>(g.batch.size, g.batch.y, batch));
    for (int s = 0; s < 2; ++s) matmul_depth<kDeep>(depth_a, depth_b, g, s, begin + s * kDeep, end);
    __syncthreads();
    FetchA a(g.a, rows_at, depth_a, row, g.rows);
    FetchB b(g.b, columns_at, depth_b, column, g.columns);
    float sum[kWarpRows / 16][kWarpColumns / 8][4] = {};
    a.load(0, begin, end), b.load(0, begin, end);
    a.put(x[0]), b.put(y[0]);
    __syncthreads();
    int stage = 0;
    for (i64 k = begin; k < end; k += kDeep, stage ^= 1) {
      bool more = k + kDeep < end;
      if (more) a.load(stage ^ 1, k + kDeep, end), b.load(stage ^ 1, k + kDeep, end);
      if (k + 2 * kDeep < end) matmul_depth<kDeep>(depth_a, depth_b, g, stage, k + 2 * kDeep, end);
#pragma unroll
      for (int q = 0; q < kDeep; q += 16) {
        unsigned left[kWarpRows / 16][4], right[kWarpColumns / 16][4];
#pragma unroll
        for (int i = 0; i < kWarpRows / 16; ++i) {
          if (kAFastK)
            load_matrices(left[i], x[stage] + (warp_row + 16 * i + lane % 16) * FetchA::kPitch + q + lane / 16 * 8);
          else
            load_matrices_transposed(left[i], x[stage] + (q + lane % 8 + lane / 16 * 8) * FetchA::kPitch + warp_row + 16 * i + lane / 8 % 2 * 8);
        }
#pragma unroll
        for (int j = 0; j < kWarpColumns / 16; ++j) {
          if (kBFastK)
            load_matrices(right[j], y[stage] + (warp_column + 16 * j + lane % 8 + lane / 16 * 8) * FetchB::kPitch + q + lane / 8 % 2 * 8);
          else
            load_matrices_transposed(right[j], y[stage] + (q + lane % 8 + lane / 8 % 2 * 8) * FetchB::kPitch + warp_column + 16 * j + lane / 16 * 8);
        }
#pragma unroll
        for (int i = 0; i < kWarpRows / 16; ++i)
#pragma unroll
          for (int j = 0; j < kWarpColumns / 8; ++j) {
            if (kA == 1)
              mma_bf16(sum[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
            else
              mma_f16(sum[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
          }
      }
      if (more) a.put(x[stage ^ 1]), b.put(y[stage ^ 1]);
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i)
#pragma unroll
      for (int j = 0; j < kWarpColumns / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          matmul_store(g, blockIdx.z, batch, row + warp_row + 16 * i + lane / 4 + e / 2 * 8, column + warp_column + 8 * j + lane % 4 * 2 + e % 2, sum[i][j][e]);
    __syncthreads();
  }
}
)";

// Adds the parts of the depth: eight groups of threads take every eighth part, and then their sums are added in order.
constexpr const char* kFinish = R"(
constexpr int kGroups = 8, kElements = 32;
__device__ __forceinline__ void matmul_add_parts(const MatmulArguments& g, i64 block, i64 blocks) {
  __shared__ float sums[kGroups][kElements];
  i64 all = g.batches * g.rows * g.columns, parts = (g.depth + g.part - 1) / g.part;
  int group = (int)threadIdx.x / kElements, element = (int)threadIdx.x % kElements;
  for (i64 first = block * kElements; first < all; first += blocks * kElements) {
    i64 i = first + element;
    float sum = 0.f;
    if (i < all) {
#pragma unroll 4
      for (i64 p = group; p < parts; p += kGroups) sum += g.parts[p * all + i];
    }
    sums[group][element] = sum;
    __syncthreads();
    if (group == 0 && i < all) {
#pragma unroll
      for (int q = 1; q < kGroups; ++q) sum += sums[q][element];
      i64 line = i / g.columns;
      matmul_finish(g, line / g.rows, line % g.rows, i % g.columns, sum);
    }
    __syncthreads();
  }
}
)";
constexpr const char* kFinishEntry = R"(
extern "C" __global__ void __launch_bounds__(kGroups * kElements) ridge_matmul_finish(const RIDGE_CONSTANT MatmulArguments g) {
  matmul_add_parts(g, blockIdx.x, gridDim.x);
}
)";
constexpr int64_t kFinishElements = 32;  // of a block

// Several products in one launch. An entry's blocks begin at `first`.
constexpr const char* kList = R"(
struct MatmulList {
  int count, first[kEntries + 1];
  MatmulArguments each[kEntries];
};
__device__ __forceinline__ int matmul_entry(const MatmulList& list) {
  int which = 0;
  while (which + 1 < list.count && list.first[which + 1] <= (int)blockIdx.x) ++which;
  return which;
}
)";
constexpr const char* kScalarListEntry = R"(
extern "C" __global__ void __launch_bounds__(256) ridge_matmul_list(const RIDGE_CONSTANT MatmulList list) {
  int which = matmul_entry(list);
  const MatmulArguments& g = list.each[which];
  i64 tiles = (g.rows + kTile - 1) / kTile * ((g.columns + kTile - 1) / kTile), block = (int)blockIdx.x - list.first[which];
  matmul_tile(g, block % tiles, block / tiles, 0, 1);
}
)";
constexpr const char* kFinishListEntry = R"(
extern "C" __global__ void __launch_bounds__(kGroups * kElements) ridge_matmul_finish_list(const RIDGE_CONSTANT MatmulList list) {
  int which = matmul_entry(list);
  matmul_add_parts(list.each[which], (int)blockIdx.x - list.first[which], list.first[which + 1] - list.first[which]);
}
)";
constexpr int64_t kListBytes = 4096;  // of the arguments of a launch: the limit that every driver supports

constexpr int64_t kPartDepth = 512, kScalarPartDepth = 64;  // a part is at least this deep, with and without matrix units
constexpr int64_t kBlocks = 256;                            // the number of blocks a product should have, if its depth allows

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void fill_axis(MatmulArguments::Axis& axis, const std::vector<MatmulLoop>& loops, int64_t MatmulLoop::*x, int64_t MatmulLoop::*y, int64_t MatmulLoop::*z) {
  if (loops.size() > size_t(kMatmulLoops))
    fail(ErrorCode::unsupported, "[matmul] an axis of {} loops; the kernel takes {}: copy the operand first", loops.size(), kMatmulLoops);
  for (size_t l = 0; l < loops.size(); ++l) {
    axis.size[l] = loops[l].size, axis.x[l] = loops[l].*x, axis.y[l] = loops[l].*y;
    if (z) axis.z[l] = loops[l].*z;
  }
}

// Which of the two axes has the operand's smaller stride.
bool depth_is_fast(const std::vector<MatmulLoop>& side, const std::vector<MatmulLoop>& depth, int64_t MatmulLoop::*stride) {
  auto step = [&](const std::vector<MatmulLoop>& loops) { return loops.empty() ? INT64_MAX : std::abs(loops.back().*stride); };
  return step(depth) <= step(side);
}

// Whether chunks of 8 along the fast axis are 16 bytes each and aligned.
bool wide(const std::vector<MatmulLoop>& fast, const std::vector<MatmulLoop>& slow, const std::vector<MatmulLoop>& batch, int64_t MatmulLoop::*stride,
          int64_t alignment) {
  if (fast.empty() || fast.back().*stride != 1 || alignment % 16) return false;
  if (fast.size() > 1 && fast.back().size % 8) return false;
  for (const auto* loops : {&fast, &slow, &batch})
    for (const MatmulLoop& l : *loops)
      if (!(loops == &fast && &l == &fast.back()) && l.*stride % 8) return false;
  return true;
}

}  // namespace

OwnMatmul::OwnMatmul(const MatmulProblem& p, const MatmulEpilogue& e, const Chip& chip, int64_t alignment_a, int64_t alignment_b) {
  using Function = MatmulEpilogue::Function;
  empty_ = p.empty();
  MatmulArguments& g = arguments_;
  g.batches = p.batches, g.rows = p.rows, g.columns = p.columns, g.depth = p.depth;
  fill_axis(g.batch, p.batch, &MatmulLoop::a, &MatmulLoop::b, &MatmulLoop::c);
  fill_axis(g.m, p.m, &MatmulLoop::a, &MatmulLoop::c, nullptr);
  fill_axis(g.n, p.n, &MatmulLoop::b, &MatmulLoop::c, nullptr);
  fill_axis(g.k, p.k, &MatmulLoop::a, &MatmulLoop::b, nullptr);
  g.addend_batch = e.addend.batch, g.addend_row = e.addend.row, g.aux_batch = e.aux.batch, g.aux_row = e.aux.row;
  g.alpha = float(e.alpha);
  matrix_units_ = p.a == p.b && (p.a == DType::f16 || (p.a == DType::bf16 && chip.bf16()));
  const bool large = matrix_units_ && ceil_div(p.rows, 128) * ceil_div(p.columns, 64) * p.batches >= 64;
  tile_rows_ = large ? 128 : 64, tile_columns_ = 64;
  threads_ = matrix_units_ && !large ? 128 : 256;
  // With few tiles and a deep sum, the depth is split. Where it is split depends only on the shape.
  const int64_t tiles = ceil_div(p.rows, tile_rows_) * ceil_div(p.columns, tile_columns_) * p.batches;
  parts_ =
      empty_ ? 1 : std::clamp<int64_t>(std::min(kBlocks / std::max<int64_t>(tiles, 1), p.depth / (matrix_units_ ? kPartDepth : kScalarPartDepth)), 1, kBlocks);
  g.part = std::max<int64_t>(ceil_div(ceil_div(p.depth, parts_), 32) * 32, 32);
  parts_ = std::max<int64_t>(ceil_div(p.depth, g.part), 1);
  a_fast_ = depth_is_fast(p.m, p.k, &MatmulLoop::a), b_fast_ = depth_is_fast(p.n, p.k, &MatmulLoop::b);
  auto type = [](const MatmulArray& x) { return x ? number_of(x.type) : -1; };
  constants_ = fmt::format("constexpr int kA = {}, kB = {}, kResult = {}, kBias = {}, kAddend = {}, kAux = {}, kFunction = {};\nconstexpr bool kParts = {};\n",
                           number_of(p.a), number_of(p.b), number_of(e.result.type), type(e.bias), type(e.addend), type(e.aux),
                           e.function == Function::relu        ? 1
                           : e.function == Function::gelu      ? 2
                           : e.function == Function::gelu_grad ? 3
                                                               : 0,
                           parts_ > 1);
  loops_ = {int(p.batch.size()), int(p.m.size()), int(p.n.size()), int(p.k.size())};
  if (matrix_units_)
    tiles_ = fmt::format("constexpr int kTileRows = {}, kTileColumns = {}, kWarpsDown = {}, kWarpsAcross = 2;\nconstexpr bool kAWide = {}, kBWide = {};\n",
                         tile_rows_, tile_columns_, tile_rows_ / 32, wide(a_fast_ ? p.k : p.m, a_fast_ ? p.m : p.k, p.batch, &MatmulLoop::a, alignment_a),
                         wide(b_fast_ ? p.k : p.n, b_fast_ ? p.n : p.k, p.batch, &MatmulLoop::b, alignment_b));
}

std::string OwnMatmul::head(const std::array<int, 4>& loops, int axis_loops) const {
  return std::string(matrix_prelude()) + constants_ +
         fmt::format("constexpr int kBatchLoops = {}, kMLoops = {}, kNLoops = {}, kKLoops = {}, kAxisLoops = {};\n", loops[0], loops[1], loops[2], loops[3],
                     axis_loops) +
         fmt::format("constexpr bool kAFastK = {}, kBFastK = {};\n", a_fast_, b_fast_) + tiles_ + kCommon;
}

std::vector<KernelText> OwnMatmul::texts() const {
  if (empty_) return {};
  const std::string all = head(loops_, kMatmulLoops);
  std::vector<KernelText> out = {{"ridge_matmul", all + (matrix_units_ ? kMatrixProduct : std::string(kScalarProduct) + kScalarEntry), 0}};
  if (parts_ > 1) out.push_back({"ridge_matmul_finish", all + kFinish + kFinishEntry, 0});
  return out;
}

// On an H200 the library takes 82 us for [64, 32768] x [32768, 64] and 22 us for [64, 1024] x [1024, 64] in f32: few of its blocks have work.
bool OwnMatmul::suits(const MatmulProblem& p) {
  constexpr int64_t kMostTiles = 4, kLeastDepth = 512, kDeeper = 4;
  return p.a == DType::f32 && p.b == DType::f32 && p.batches == 1 && ceil_div(p.rows, 64) * ceil_div(p.columns, 64) <= kMostTiles && p.depth >= kLeastDepth &&
         p.depth >= kDeeper * std::max(p.rows, p.columns);
}

int64_t OwnMatmul::workspace_bytes() const { return empty_ || parts_ == 1 ? 0 : parts_ * arguments_.batches * arguments_.rows * arguments_.columns * 4; }

void OwnMatmul::load(Loader& loader) {
  driver_ = &loader.driver();
  const std::vector<KernelText> all = texts();
  if (!all.empty()) product_ = loader.function(all[0]);
  if (all.size() > 1) finish_ = loader.function(all[1]);
}

MatmulArguments OwnMatmul::arguments(const Addresses& at) const {
  MatmulArguments g = arguments_;
  g.a = at.a, g.b = at.b, g.result = at.result, g.bias = at.bias, g.addend = at.addend, g.aux = at.aux, g.parts = at.workspace;
  return g;
}

void OwnMatmul::enqueue(const Addresses& at, StreamHandle stream) const {
  if (empty_) return;
  MatmulArguments g = arguments(at);
  void* parameters[] = {&g};
  if (tiles() > INT32_MAX) fail(ErrorCode::unsupported, "[matmul] a result of {} x {} has too many tiles for one launch: split the batch", g.rows, g.columns);
  const unsigned batches = unsigned(std::min<int64_t>(g.batches, 65535));
  driver_->launch(product_, unsigned(tiles()), batches, unsigned(parts_), unsigned(threads_), 1, 1, 0, stream, parameters, nullptr);
  if (parts_ == 1) return;
  driver_->launch(finish_, unsigned(finish_blocks()), 1, 1, 256, 1, 1, 0, stream, parameters, nullptr);
}

int64_t OwnMatmul::tiles() const { return ceil_div(arguments_.rows, tile_rows_) * ceil_div(arguments_.columns, tile_columns_); }
int64_t OwnMatmul::finish_blocks() const {
  return std::min<int64_t>(ceil_div(arguments_.batches * arguments_.rows * arguments_.columns, kFinishElements), 4096);
}

// A product without rows or columns of its own is one with a single one, so that it may share a text.
std::array<int, 4> OwnMatmul::list_loops() const { return {loops_[0], std::max(loops_[1], 1), std::max(loops_[2], 1), loops_[3]}; }

std::string OwnMatmul::list_key() const {
  if (empty_ || matrix_units_ || parts_ == 1 || arguments_.batches != 1) return {};
  return constants_ + fmt::format("{}", fmt::join(list_loops(), " "));
}

OwnMatmulList::OwnMatmulList(std::vector<const OwnMatmul*> products) : products_(std::move(products)) {
  const OwnMatmul& first = *products_[0];
  const std::array<int, 4> loops = first.list_loops();
  axis_loops_ = std::max(*std::ranges::max_element(loops), 1);
  entries_ = int((kListBytes - 8) / (argument_bytes() + int64_t(sizeof(int))) / 2 * 2);
  // The largest one decides which axis is fetched along.
  auto work = [](const OwnMatmul* p) { return p->arguments_.rows * p->arguments_.columns * p->arguments_.depth; };
  const OwnMatmul& largest = **std::ranges::max_element(products_, {}, work);
  const std::string head = fmt::format("constexpr int kEntries = {};\n", entries_) + largest.head(loops, axis_loops_);
  texts_ = {{"ridge_matmul_list", head + kScalarProduct + kList + kScalarListEntry, 0},
            {"ridge_matmul_finish_list", head + kFinish + kList + kFinishListEntry, 0}};
}

int64_t OwnMatmulList::argument_bytes() const { return int64_t(sizeof(MatmulArguments)) - 4 * 4 * 8 * (kMatmulLoops - axis_loops_); }

int OwnMatmulList::launches() const { return 2 * int(ceil_div(int64_t(products_.size()), entries_)); }

void OwnMatmulList::load(Loader& loader) { product_ = loader.function(texts_[0]), finish_ = loader.function(texts_[1]); }

// The layout of MatmulList in the text.
void OwnMatmulList::enqueue(std::span<const OwnMatmul::Addresses> at, LaunchSink& sink) const {
  for (const bool finishing : {false, true})
    for (size_t from = 0; from < products_.size(); from += size_t(entries_)) {
      const size_t count = std::min(size_t(entries_), products_.size() - from);
      alignas(16) std::byte bytes[kListBytes] = {};
      std::byte *begins = bytes + sizeof(int), *to = bytes + sizeof(int) * size_t(entries_ + 2);
      auto put = [](std::byte*& where, const void* what, size_t size) { std::memcpy(where, what, size), where += size; };
      const int entries = int(count);
      std::memcpy(bytes, &entries, sizeof entries);
      int blocks = 0;
      put(begins, &blocks, sizeof blocks);
      for (size_t i = from; i < from + count; ++i) {
        const OwnMatmul& p = *products_[i];
        const MatmulArguments g = p.arguments(at[i]);
        put(to, &g, offsetof(MatmulArguments, batch));
        for (const MatmulArguments::Axis* axis : {&g.batch, &g.m, &g.n, &g.k})
          for (const int64_t* list : {axis->size, axis->x, axis->y, axis->z}) put(to, list, size_t(axis_loops_) * 8);
        put(to, &g.addend_batch, sizeof g - offsetof(MatmulArguments, addend_batch));
        blocks += int(finishing ? p.finish_blocks() : p.tiles() * p.parts_);
        put(begins, &blocks, sizeof blocks);
      }
      sink.launch(finishing ? finish_ : product_, blocks, 256, 0, std::span(bytes, size_t(to - bytes)));
    }
}

}  // namespace ridge::cuda
