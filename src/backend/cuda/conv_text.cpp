#include "backend/cuda/conv_text.h"

#include <fmt/core.h>

#include <algorithm>

#include "backend/cuda/prelude.h"
#include "backend/gpu/node_parts.h"

namespace ridge::cuda {
namespace {

// A tile of positions x channels is read along the positions, several at a time, and written along the channels.
constexpr const char* kPack = R"(
struct Args {
  const From* from; To* to;
  i64 outer, inner, padded, groups;
  i64 outer_step, group_step, down_step, across_step, inner_step;  // of the source, in elements
  Divider pixels, across, pixel_tiles, inner_tiles, groups_by;
};
constexpr int kInner = kLines * kUnit, kPixels = 4096 / kInner < 256 ? 4096 / kInner : 256;
extern "C" __global__ void __launch_bounds__(256) conv_pack(const RIDGE_CONSTANT Args a) {
  __shared__ To tile[kInner][kPixels + 2];
  int block = (int)blockIdx.x, rest = quotient(a.pixel_tiles, block);
  const int first_pixel = (block - rest * (int)a.pixel_tiles.size) * kPixels;
  block = rest, rest = quotient(a.inner_tiles, block);
  const int first = (block - rest * (int)a.inner_tiles.size) * kInner;
  const int outer = quotient(a.groups_by, rest), group = rest - outer * (int)a.groups;
  const int pixels = (int)a.pixels.size, t = (int)threadIdx.x;
  constexpr int kAlong = kPixels / kVector;
  const int place = t % kAlong * kVector, pixel = first_pixel + place;
  const int y = quotient(a.across, pixel), x = pixel - y * (int)a.across.size;
  const From* from = a.from + outer * a.outer_step + group * a.group_step + y * a.down_step + x * a.across_step;
  struct alignas(kVector * sizeof(From)) Some { From e[kVector]; };
#pragma unroll 8
  for (int i = t / kAlong; i < kInner; i += 256 / kAlong) {
    Some some = {};
    if (pixel < pixels && first + i < (int)a.inner) some = *(const Some*)(from + (first + i) * a.inner_step);
#pragma unroll
    for (int j = 0; j < kVector; ++j) tile[i][place + j] = store_to(load_from(some.e[j]));
  }
  __syncthreads();
  for (int j = t; j < kPixels * kLines; j += 256) {
    const int line = j % kLines, p = j / kLines, c = first + line * kUnit;
    if (first_pixel + p >= pixels || c >= (int)a.padded) continue;
    alignas(16) To chunk[kUnit];
#pragma unroll
    for (int i = 0; i < kUnit; ++i) chunk[i] = tile[line * kUnit + i][p];
    *(uint4*)(a.to + ((i64)outer * pixels + first_pixel + p) * (a.groups * a.padded) + group * a.padded + c) = *(const uint4*)chunk;
  }
}
)";

// 256 threads compute the sums of a block's tile from factors in shared memory. Along the depth: a line of 64 bytes per row of the tile. Otherwise: a line per
// step of the depth, transposed when it is read. Lines are padded by 16 bytes, so that no two of eight neighbours use the same bank.
constexpr const char* kTileSums = R"(
constexpr bool kHalf = kUnitKind >= 2, kMatrix = kUnitKind >= 1;
constexpr int kUnit = kHalf ? 8 : 4, kChunks = kWarpgroups ? 8 : 4, kDeep = kChunks * kUnit, kBytes = 16 / kUnit;
constexpr int kPitchRows = (kAlongDepth ? kDeep : kTileRows) + kUnit, kPitchColumns = (kAlongDepth ? kDeep : kTileColumns) + kUnit;  // in elements
constexpr int kStageRows = kWarpgroups ? kTileRows * 128 : (kAlongDepth ? kTileRows : kDeep) * kPitchRows * kBytes;
constexpr int kStageColumns = kWarpgroups ? kTileColumns * 128 : (kAlongDepth ? kTileColumns : kDeep) * kPitchColumns * kBytes;
// Where a chunk of a line lies in its stage. Warpgroups read lines of 128 bytes with their chunks exchanged, in blocks of 64 across.
template <int kPitch>
__device__ __forceinline__ int place_of(int line, int chunk) {
  if (!kWarpgroups) return line * (kPitch * kBytes) + chunk * 16;
  return (kAlongDepth ? 0 : chunk / 8 * (kDeep * 128)) + line * 128 + (chunk % 8 ^ line % 8) * 16;
}
)";

constexpr const char* kWarpSums = R"(
// Matrix units: 8 warps; else every thread has rows and columns at equal distances.
constexpr int kWarpsAcross = kTileColumns >= 64 ? kTileColumns / (kTileRows >= 128 ? 32 : 16) : 1, kWarpsDown = 8 / kWarpsAcross;
constexpr int kWarpRows = kTileRows / kWarpsDown, kWarpColumns = kTileColumns / kWarpsAcross;
constexpr int kPerThread = kTileRows >= 128 ? 8 : 4, kThreadsDown = kTileRows / kPerThread, kThreadsAcross = 256 / kThreadsDown;
constexpr int kSumRows = kMatrix ? kWarpRows / 16 : kPerThread, kSumColumns = kMatrix ? kWarpColumns / 8 : kTileColumns / kThreadsAcross;
constexpr int kSumWidth = kMatrix ? 4 : 1;

struct Sums {
  float sum[kSumRows][kSumColumns][kSumWidth] = {};
  // fn(row, column, sum) for all of this thread's
  template <class Fn>
  __device__ __forceinline__ void each(const Fn& fn) const {
    const int t = (int)threadIdx.x, lane = t % 32, warp = t / 32;
#pragma unroll
    for (int i = 0; i < kSumRows; ++i)
#pragma unroll
      for (int e = 0; e < kSumWidth; e += 2)
#pragma unroll
        for (int j = 0; j < kSumColumns; ++j) {
          if (kMatrix) {
            const int row = warp % kWarpsDown * kWarpRows + 16 * i + lane / 4 + e / 2 * 8, column = warp / kWarpsDown * kWarpColumns + 8 * j + lane % 4 * 2;
            fn(i * 2 + e / 2, row, column, sum[i][j][e]), fn(i * 2 + e / 2, row, column + 1, sum[i][j][kMatrix ? e + 1 : 0]);
          } else {
            fn(i, t % kThreadsDown + kThreadsDown * i, t / kThreadsDown + kThreadsAcross * j, sum[i][j][0]);
          }
        }
  }
  static constexpr int kRows = kMatrix ? 2 * kSumRows : kSumRows;
  __device__ __forceinline__ static void arrived() {}
  __device__ __forceinline__ void start(const unsigned char*, const unsigned char*) {}
  __device__ __forceinline__ static int row(int i) {
    const int t = (int)threadIdx.x;
    return kMatrix ? t / 32 % kWarpsDown * kWarpRows + 8 * i + t % 32 / 4 : t % kThreadsDown + kThreadsDown * i;
  }
)";

constexpr const char* kFinishHalves = R"(
  __device__ __forceinline__ void finish(const unsigned char* rows, const unsigned char* columns) {
    const half_bits *x = (const half_bits*)rows, *y = (const half_bits*)columns;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, row = warp % kWarpsDown * kWarpRows, column = warp / kWarpsDown * kWarpColumns;
#pragma unroll
    for (int q = 0; q < kDeep; q += 16) {
      unsigned left[kWarpRows / 16][4], right[(kWarpColumns + 15) / 16][4];
#pragma unroll
      for (int i = 0; i < kWarpRows / 16; ++i)
        if (kAlongDepth)
          load_matrices(left[i], x + (row + 16 * i + lane % 16) * kPitchRows + q + lane / 16 * 8);
        else
          load_matrices_transposed(left[i], x + (q + lane % 8 + lane / 16 * 8) * kPitchRows + row + 16 * i + lane / 8 % 2 * 8);
#pragma unroll
      for (int j = 0; j < kWarpColumns / 16; ++j)
        if (kAlongDepth)
          load_matrices(right[j], y + (column + 16 * j + lane % 8 + lane / 16 * 8) * kPitchColumns + q + lane / 8 % 2 * 8);
        else
          load_matrices_transposed(right[j], y + (q + lane % 8 + lane / 8 % 2 * 8) * kPitchColumns + column + 16 * j + lane / 16 * 8);
#pragma unroll
      for (int i = 0; i < kSumRows; ++i)
#pragma unroll
        for (int j = 0; j < kSumColumns; ++j)
          if (kUnitKind == 2)
            mma_bf16(sum[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
          else
            mma_f16(sum[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
    }
  }
)";

constexpr const char* kFinishTf32 = R"(
  __device__ __forceinline__ void finish(const unsigned char* rows, const unsigned char* columns) {
    const float *x = (const float*)rows, *y = (const float*)columns;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, row = warp % kWarpsDown * kWarpRows, column = warp / kWarpsDown * kWarpColumns;
    auto factor = [](const float* from, int line, int pitch, int k) { return to_tf32(float_bits(kAlongDepth ? from[line * pitch + k] : from[k * pitch + line])); };
#pragma unroll
    for (int q = 0; q < kDeep; q += 8) {
      unsigned left[kSumRows][4], right[kSumColumns][2];
#pragma unroll
      for (int i = 0; i < kSumRows; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) left[i][e] = factor(x, row + 16 * i + lane / 4 + e % 2 * 8, kPitchRows, q + lane % 4 + e / 2 * 4);
#pragma unroll
      for (int j = 0; j < kSumColumns; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) right[j][e] = factor(y, column + 8 * j + lane / 4, kPitchColumns, q + lane % 4 + 4 * e);
#pragma unroll
      for (int i = 0; i < kSumRows; ++i)
#pragma unroll
        for (int j = 0; j < kSumColumns; ++j) mma_tf32(sum[i][j], left[i], right[j][0], right[j][1]);
    }
  }
)";

constexpr const char* kFinishFloats = R"(
  __device__ __forceinline__ void finish(const unsigned char* rows, const unsigned char* columns) {
    const float *x = (const float*)rows, *y = (const float*)columns;
    const int row = (int)threadIdx.x % kThreadsDown, column = (int)threadIdx.x / kThreadsDown;
    if (kAlongDepth) {
#pragma unroll
      for (int q = 0; q < kDeep; q += 4) {
        float4 left[kSumRows];
#pragma unroll
        for (int i = 0; i < kSumRows; ++i) left[i] = *(const float4*)(x + (row + kThreadsDown * i) * kPitchRows + q);
#pragma unroll
        for (int j = 0; j < kSumColumns; ++j) {
          const float4 right = *(const float4*)(y + (column + kThreadsAcross * j) * kPitchColumns + q);
#pragma unroll
          for (int i = 0; i < kSumRows; ++i) {
            float& s = sum[i][j][0];
            s = fmaf(left[i].x, right.x, s), s = fmaf(left[i].y, right.y, s), s = fmaf(left[i].z, right.z, s), s = fmaf(left[i].w, right.w, s);
          }
        }
      }
    } else {
#pragma unroll
      for (int q = 0; q < kDeep; ++q) {
        float left[kSumRows], right[kSumColumns];
#pragma unroll
        for (int i = 0; i < kSumRows; ++i) left[i] = x[q * kPitchRows + row + kThreadsDown * i];
#pragma unroll
        for (int j = 0; j < kSumColumns; ++j) right[j] = y[q * kPitchColumns + column + kThreadsAcross * j];
#pragma unroll
        for (int i = 0; i < kSumRows; ++i)
#pragma unroll
          for (int j = 0; j < kSumColumns; ++j) sum[i][j][0] = fmaf(left[i], right[j], sum[i][j][0]);
      }
    }
  }
)";

// Two warpgroups: one below the other, or side by side in a tile of 64 rows. They start computing a step before they issue the next copies.
constexpr const char* kWarpgroupSums = R"(
constexpr int kGroupsDown = kTileRows >= 128 ? 2 : 1, kGroupColumns = kTileColumns / (2 / kGroupsDown), kBlocksDown = kTileRows / 64 / kGroupsDown;

struct Sums {
  float sum[kBlocksDown][kGroupColumns / 2] = {};
  template <class Fn>
  __device__ __forceinline__ void each(const Fn& fn) const {
    const int lane = (int)threadIdx.x % 32, column = kGroupsDown == 2 ? 0 : (int)threadIdx.x / 128 * kGroupColumns;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kGroupColumns / 4; ++j)
        fn(i, row(i), column + j / 2 * 8 + lane % 4 * 2 + j % 2, sum[i / 2][j / 2 * 4 + i % 2 * 2 + j % 2]);
  }
  static constexpr int kRows = 2 * kBlocksDown;
  __device__ __forceinline__ static int row(int i) {
    const int t = (int)threadIdx.x, block = kGroupsDown == 2 ? t / 128 + i / 2 * 2 : 0;
    return block * 64 + t % 128 / 32 * 16 + t % 32 / 4 + i % 2 * 8;
  }
  __device__ __forceinline__ static void arrived() { fence_async_proxy(); }
  __device__ __forceinline__ void start(const unsigned char* rows, const unsigned char* columns) {
    const int group = (int)threadIdx.x / 128;
    const u64 y = tile_descriptor(columns + (kGroupsDown == 2 ? 0 : group * kGroupColumns * 128), kAlongDepth ? 16 : kDeep * 128);
    wgmma_fence();
#pragma unroll
    for (int b = 0; b < kBlocksDown; ++b) {
      const u64 x = tile_descriptor(rows + (kGroupsDown == 2 ? group + 2 * b : 0) * (64 * 128), 16);
#pragma unroll
      for (int k = 0; k < kDeep / 16; ++k) {
        constexpr int kTurned = kAlongDepth ? 0 : 1, kStep = kAlongDepth ? 2 : 128;
        WGMMA<kTurned, kTurned>(sum[b], x + k * kStep, y + k * kStep, 1);
      }
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void finish(const unsigned char*, const unsigned char*) {
    wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < kBlocksDown; ++b) keep_sums(sum[b]);
  }
};
)";

// Iterates over the depth, copying several stages ahead: load(rows, columns) fetches the next step.
constexpr const char* kSteps = R"(
template <class Load>
__device__ __forceinline__ void sum_steps(Sums& sums, int steps, const Load& load) {
  unsigned char *rows = shared_memory, *columns = shared_memory + kStages * kStageRows;
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) load(rows + s * kStageRows, columns + s * kStageColumns);
    copy_async_commit();
  }
  int at = 0, next = kStages - 1;
  for (int s = 0; s < steps; ++s) {
    copy_async_wait<kStages - 2>();
    Sums::arrived();
    __syncthreads();
    sums.start(rows + at * kStageRows, columns + at * kStageColumns);
    if (s + kStages - 1 < steps) load(rows + next * kStageRows, columns + next * kStageColumns);
    copy_async_commit();
    sums.finish(rows + at * kStageRows, columns + at * kStageColumns);
    at = at + 1 == kStages ? 0 : at + 1, next = next + 1 == kStages ? 0 : next + 1;
  }
  copy_async_wait<0>();
  __syncthreads();
}

// As copy_async_16, by way of the first cache: neighbouring taps read the same elements.
__device__ __forceinline__ void copy_near_16(void* to, const void* from, bool there) {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" :: "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
#else
  copy_async_16(to, from, there);
#endif
}

// A position of the window in the source: whether it is there at all. Where the source is spread, between its elements are zeros.
__device__ __forceinline__ bool place_in(int& y, int& x, int down, int across) {
  if (kSpreadDown > 1 || kSpreadAcross > 1) {
    if (y < 0 || x < 0 || y % kSpreadDown || x % kSpreadAcross) return false;
    y /= kSpreadDown, x /= kSpreadAcross;
  }
  return (unsigned)y < (unsigned)down && (unsigned)x < (unsigned)across;
}
)";

constexpr const char* kProduct = R"(
struct Args {
  const uint4 *x, *w; Stored* out; float* parts;
  i64 images, down, across, out_down, out_across, window_down, window_across;
  i64 stride_down, stride_across, low_down, low_across, dilation_down, dilation_across;
  i64 phases_down, phases_across, step_down, step_across;  // outputs of equal place between a spread source's elements, and the taps that reach them
  i64 groups, outputs, chunks, part;                       // per group; of the depth in chunks
  i64 x_image, x_down, x_across, x_group, w_output, w_down, w_across, w_group;             // steps in chunks
  i64 out_image, out_group, out_output, out_down_step, out_across_step, row_tiles, column_tiles;
};

__device__ __forceinline__ int first_tap(int at, int dilation, int spread, int step, int window) {
  int k = 0;
  while (k < step && (at + k * dilation) % spread != 0) ++k;
  return k < step ? k : window;
}

extern "C" __global__ void __launch_bounds__(256, 2) conv_product(const RIDGE_CONSTANT Args a) {
  int block = (int)blockIdx.x, t = (int)threadIdx.x;
  const int column0 = block % (int)a.column_tiles * kTileColumns;
  block /= (int)a.column_tiles;
  // Phases of one place run side by side: their results share lines of memory.
  const int phases_down = kPhases ? (int)a.phases_down : 1, phases_across = kPhases ? (int)a.phases_across : 1;
  const int phase = block % (phases_down * phases_across), phase_down = phase / phases_across, phase_across = phase - phase_down * phases_across;
  block /= phases_down * phases_across;
  const int row0 = block % (int)a.row_tiles * kTileRows;
  block /= (int)a.row_tiles;
  const int group = block % (int)a.groups, part = block / (int)a.groups;
  const int down = ((int)a.out_down - phase_down + phases_down - 1) / phases_down, across = ((int)a.out_across - phase_across + phases_across - 1) / phases_across;
  const int rows = (int)a.images * down * across;
  if (row0 >= rows) return;
  int tap_down = 0, tap_across = 0, taps_down = (int)a.window_down, taps_across = (int)a.window_across;
  const int step_down = kPhases ? (int)a.step_down : 1, step_across = kPhases ? (int)a.step_across : 1;
  if (kPhases) {
    tap_down = first_tap(phase_down - (int)a.low_down, (int)a.dilation_down, kSpreadDown, step_down, taps_down);
    tap_across = first_tap(phase_across - (int)a.low_across, (int)a.dilation_across, kSpreadAcross, step_across, taps_across);
    taps_down = tap_down < taps_down ? (taps_down - tap_down + step_down - 1) / step_down : 0;
    taps_across = tap_across < taps_across ? (taps_across - tap_across + step_across - 1) / step_across : 0;
  }
  const int chunks = (int)a.chunks, depth = taps_down * taps_across * chunks;
  const int begin = kParts ? part * (int)a.part : 0, end = kParts && begin + (int)a.part < depth ? begin + (int)a.part : depth;

  // Whole lines of channels go through all taps, one after the other; else all channels of a tap come first.
  // This thread's chunk of every step, and its rows of the tile: an image's place and the window's corner.
  int k = begin + t % kChunks, chunk = 0, y = 0, x = 0;
  if (depth > 0) {
    const int step = k / kChunks, tap = kTapsFirst ? step % (taps_down * taps_across) : k / chunks, tap_row = tap / taps_across;
    chunk = kTapsFirst ? step / (taps_down * taps_across) * kChunks + t % kChunks : k - tap * chunks;
    y = tap_down + tap_row * step_down, x = tap_across + (tap - tap_row * taps_across) * step_across;
  }
  const int line = t / kChunks, last_across = tap_across + taps_across * step_across, last_down = tap_down + taps_down * step_down;
  constexpr int kLines = 256 / kChunks, kRowsEach = (kTileRows + kLines - 1) / kLines, kColumnsEach = (kTileColumns + kLines - 1) / kLines;
  int from[kRowsEach], top[kRowsEach], left[kRowsEach];
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) {
    const int m = row0 + line + kLines * i, image = m / (down * across), p = m - image * (down * across), v = p / across, u = p - v * across;
    from[i] = image * (int)a.x_image + group * (int)a.x_group;
    top[i] = m < rows ? (v * phases_down + phase_down) * (int)a.stride_down - (int)a.low_down : -(1 << 30);
    left[i] = (u * phases_across + phase_across) * (int)a.stride_across - (int)a.low_across;
  }
  Sums sums;
  sum_steps(sums, end > begin ? (end - begin + kChunks - 1) / kChunks : 0, [&](unsigned char* to_rows, unsigned char* to_columns) {
    const int tap_y = y * (int)a.dilation_down, tap_x = x * (int)a.dilation_across;
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      int v = top[i] + tap_y, u = left[i] + tap_x;
      const bool there = place_in(v, u, (int)a.down, (int)a.across) && k < end;
      const uint4* at = there ? a.x + (from[i] + v * (int)a.x_down + u * (int)a.x_across + chunk) : a.x;
      if (kTileRows % kLines == 0 || line + kLines * i < kTileRows) copy_near_16(to_rows + place_of<kPitchRows>(line + kLines * i, t % kChunks), at, there);
    }
    const int weight = y * (int)a.w_down + x * (int)a.w_across + chunk + group * (int)a.w_group;
#pragma unroll
    for (int i = 0; i < kColumnsEach; ++i) {
      const int o = column0 + line + kLines * i;
      const bool there = o < (int)a.outputs && k < end;
      if (kTileColumns % kLines == 0 || line + kLines * i < kTileColumns)
        copy_async_16(to_columns + place_of<kPitchColumns>(line + kLines * i, t % kChunks), there ? a.w + (o * (int)a.w_output + weight) : a.w, there);
    }
    k += kChunks;
    if (kTapsFirst) {
      x += step_across;
      if (x >= last_across) x = tap_across, y += step_down;
      if (y >= last_down) y = tap_down, chunk += kChunks;
    } else {
      chunk += kChunks;
      while (chunk >= chunks) {
        chunk -= chunks, x += step_across;
        if (x >= last_across) x = tap_across, y += step_down;
      }
    }
  });

  auto place = [&](int m) {
    const int image = m / (down * across), p = m - image * (down * across), v = p / across, u = p - v * across;
    return image * a.out_image + group * a.out_group + (v * phases_down + phase_down) * a.out_down_step + (u * phases_across + phase_across) * a.out_across_step;
  };
  if constexpr (kParts) {
    float* to = a.parts + (((i64)part * a.groups + group) * a.outputs + column0) * rows + row0;
    sums.each([&](int, int row, int column, float sum) {
      if (row0 + row < rows && column0 + column < (int)a.outputs) to[(i64)column * rows + row] = sum;
    });
  } else if constexpr (kHalf && sizeof(Stored) == 2) {
    // Turned in shared memory, so that neighbours in a row of the result are stored together.
    constexpr int kPitch = kTileRows + 8;
    half_bits* turned = (half_bits*)shared_memory;
    sums.each([&](int, int row, int column, float sum) { turned[column * kPitch + row] = store_element(sum); });
    __syncthreads();
    constexpr int kAlong = kTileRows / kWide;
    const int row = t % kAlong * kWide;
    if (row0 + row >= rows) return;
    Stored* to = a.out + place(row0 + row) + column0 * a.out_output;
    struct alignas(2 * kWide) Pack { half_bits h[kWide]; };
    for (int column = t / kAlong; column < kTileColumns && column0 + column < (int)a.outputs; column += 256 / kAlong)
      *(Pack*)(to + column * a.out_output) = *(const Pack*)(turned + column * kPitch + row);
  } else {
    i64 at[Sums::kRows];
#pragma unroll
    for (int i = 0; i < Sums::kRows; ++i) at[i] = row0 + Sums::row(i) < rows ? place(row0 + Sums::row(i)) + column0 * a.out_output : -1;
    sums.each([&](int i, int, int column, float sum) {
      if (at[i] >= 0 && column0 + column < (int)a.outputs) a.out[at[i] + column * a.out_output] = store_element(sum);
    });
  }
}
)";

constexpr const char* kGradient = R"(
struct Args {
  const uint4 *x, *w; float* parts;
  i64 down, across, out_down, out_across, depth, part, add;  // add: to the parts of the piece before
  i64 stride_down, stride_across, low_down, low_across, dilation_down, dilation_across;
  i64 groups, outputs, row_chunks, column_chunks;
  i64 x_image, x_down, x_across, x_group, w_image, w_down, w_across, w_group;  // steps in chunks
  i64 row_tiles, column_tiles;
  Divider window, window_across;
};

extern "C" __global__ void __launch_bounds__(256, 2) conv_gradient(const RIDGE_CONSTANT Args a) {
  int block = (int)blockIdx.x, t = (int)threadIdx.x;
  const int column_tile = block % (int)a.column_tiles;
  block /= (int)a.column_tiles;
  const int row_tile = block % (int)a.row_tiles;
  block /= (int)a.row_tiles;
  const int group = block % (int)a.groups, part = block / (int)a.groups;
  const int begin = part * (int)a.part, end = begin + (int)a.part < (int)a.depth ? begin + (int)a.part : (int)a.depth;
  constexpr int kRowChunks = kTileRows / kUnit, kColumnChunks = kTileColumns / kUnit;
  constexpr int kRowsEach = (kRowChunks * kDeep + 255) / 256, kColumnsEach = (kColumnChunks * kDeep + 255) / 256;
  // A chunk of the rows belongs to one position of the result.
  const int mine = row_tile * kRowChunks + t % kRowChunks, position = mine / (int)a.row_chunks, v0 = position / (int)a.out_across;
  const bool inside = v0 < (int)a.out_down;
  const int top = v0 * (int)a.stride_down - (int)a.low_down, left = (position - v0 * (int)a.out_across) * (int)a.stride_across - (int)a.low_across;
  const int from = mine - position * (int)a.row_chunks + group * (int)a.x_group;
  const int column = column_tile * kColumnChunks + t % kColumnChunks, weight = column + group * (int)a.w_group;
  int k0 = begin;
  Sums sums;
  sum_steps(sums, end > begin ? (end - begin + kDeep - 1) / kDeep : 0, [&](unsigned char* to_rows, unsigned char* to_columns) {
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const int deep = t / kRowChunks + 256 / kRowChunks * i, k = k0 + deep;
      if (deep >= kDeep) break;
      const int image = quotient(a.window, k), tap = k - image * (int)a.window.size, y = quotient(a.window_across, tap), x = tap - y * (int)a.window_across.size;
      int v = top + y * (int)a.dilation_down, u = left + x * (int)a.dilation_across;
      const bool there = place_in(v, u, (int)a.down, (int)a.across) && inside && k < end;
      copy_near_16(to_rows + place_of<kPitchRows>(deep, t % kRowChunks),
                    there ? a.x + (from + image * (int)a.x_image + v * (int)a.x_down + u * (int)a.x_across) : a.x, there);
    }
#pragma unroll
    for (int i = 0; i < kColumnsEach; ++i) {
      const int deep = t / kColumnChunks + 256 / kColumnChunks * i, k = k0 + deep;
      if (deep >= kDeep) break;
      const int image = quotient(a.window, k), tap = k - image * (int)a.window.size, y = quotient(a.window_across, tap), x = tap - y * (int)a.window_across.size;
      const bool there = column < (int)a.column_chunks && k < end;
      copy_async_16(to_columns + place_of<kPitchColumns>(deep, t % kColumnChunks),
                    there ? a.w + (weight + image * (int)a.w_image + y * (int)a.w_down + x * (int)a.w_across) : a.w, there);
    }
    k0 += kDeep;
  });
  const int rows = (int)(a.out_down * a.out_across * a.row_chunks) * kUnit, row0 = row_tile * kTileRows, column0 = column_tile * kTileColumns;
  float* to = a.parts + (((i64)part * a.groups + group) * a.outputs + column0) * rows + row0;
  sums.each([&](int, int row, int column, float sum) {
    if (row0 + row < rows && column0 + column < (int)a.outputs) to[(i64)column * rows + row] = a.add ? to[(i64)column * rows + row] + sum : sum;
  });
}
)";

// Adds the parts of the depth in order: [part, group, output, row]. Rows are [image, position] or [position, image, padding].
constexpr const char* kFinish = R"(
struct Args {
  const Part* parts; Stored* out;
  i64 count, total, images;
  i64 out_image, out_group, out_output, out_down, out_across;
  Divider rows, inner, outputs, across;
};
extern "C" __global__ void __launch_bounds__(256) conv_finish(const RIDGE_CONSTANT Args a) {
  const i64 e = (i64)blockIdx.x * 256 + threadIdx.x;
  if (e >= a.total) return;
  const Index line = quotient(a.rows, (Index)e), row = (Index)e - line * (Index)a.rows.size, group = quotient(a.outputs, line), o = line - group * (Index)a.outputs.size;
  const Index outer = quotient(a.inner, row), inner = row - outer * (Index)a.inner.size;
  const Index image = kPositionsFirst ? inner : outer, p = kPositionsFirst ? outer : inner, y = quotient(a.across, p), x = p - y * (Index)a.across.size;
  if (image >= (Index)a.images) return;
  float sum = load_part(a.parts[e]);
  int i = 1;
  for (; i + 8 <= (int)a.count; i += 8) {
    float next[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) next[j] = load_part(a.parts[(i + j) * a.total + e]);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += next[j];
  }
  for (; i < (int)a.count; ++i) sum += load_part(a.parts[i * a.total + e]);
  a.out[image * a.out_image + group * a.out_group + o * a.out_output + y * a.out_down + x * a.out_across] = store_element(sum);
}
)";

constexpr const char* kShared = "extern __shared__ __align__(1024) unsigned char shared_memory[];\n";

std::string element_of(DType type, const char* stored, const char* load, const char* store) {
  if (type == DType::u8)  // only read
    return fmt::format("typedef unsigned char {0};\nRIDGE_INLINE float {1}({0} x) {{ return (float)x; }}\n", stored, load);
  const char* bits = type == DType::f32 ? "float" : "unsigned short";
  const char *in = type == DType::f32    ? "x"
                   : type == DType::bf16 ? "bf16_to_f32(x)"
                                         : "f16_to_f32(x)",
             *out = type == DType::f32    ? "x"
                    : type == DType::bf16 ? "f32_to_bf16(x)"
                                          : "f32_to_f16(x)";
  return fmt::format("typedef {0} {1};\nRIDGE_INLINE float {2}({1} x) {{ return {3}; }}\nRIDGE_INLINE {1} {4}(float x) {{ return {5}; }}\n", bits, stored, load,
                     in, store, out);
}

std::string tile_text(ConvUnit unit, const ConvTile& tile, bool along_depth, ConvSpread spread) {
  std::string text = kShared + std::string(matrix_prelude());
  text += fmt::format("constexpr int kUnitKind = {}, kTileRows = {}, kTileColumns = {}, kStages = {};\n", int(unit), tile.rows, tile.columns, tile.stages);
  text += fmt::format("constexpr bool kWarpgroups = {}, kAlongDepth = {};\n", tile.warpgroups, along_depth);
  text += fmt::format("constexpr int kSpreadDown = {}, kSpreadAcross = {};\n", spread[0], spread[1]);
  text += kTileSums;
  if (tile.warpgroups) {
    text += fmt::format("#define WGMMA {}\n", unit == ConvUnit::bf16 ? "wgmma_bf16" : "wgmma_f16") + kWarpgroupSums;
  } else {
    if (unit == ConvUnit::tf32) text += tf32_prelude();
    text += kWarpSums + std::string(unit == ConvUnit::fma ? kFinishFloats : unit == ConvUnit::tf32 ? kFinishTf32 : kFinishHalves) + "};\n";
  }
  return text + kSteps;
}

}  // namespace

int64_t tile_bytes(ConvUnit unit, const ConvTile& tile, bool along_depth) {
  if (tile.warpgroups) return int64_t(tile.stages) * (tile.rows + tile.columns) * 128;
  const int64_t u = unit_elements(unit), deep = 4 * u, bytes = 16 / u;
  auto side = [&](int64_t n) { return along_depth ? n * (deep + u) * bytes : deep * (n + u) * bytes; };
  return tile.stages * (side(tile.rows) + side(tile.columns));
}

KernelText conv_pack_text(DType from, DType to, int lines, int together) {
  return {"conv_pack",
          dialect().write(index_text(0)) + element_of(from, "From", "load_from", "store_from") + element_of(to, "To", "load_to", "store_to") +
              fmt::format("constexpr int kLines = {}, kUnit = {}, kVector = {};\n", lines, 16 / size_of(to), together) + kPack,
          0};
}

KernelText conv_product_text(ConvUnit unit, DType result, const ConvTile& tile, int wide, bool parts, ConvSpread spread, bool phases, bool taps_first) {
  std::string text = tile_text(unit, tile, true, spread) + element_of(result, "Stored", "load_element", "store_element");
  text += fmt::format("constexpr int kWide = {};\nconstexpr bool kParts = {}, kPhases = {}, kTapsFirst = {};\n", wide, parts, phases, taps_first);
  const bool halves = unit_elements(unit) == 8 && size_of(result) == 2;
  const int64_t turned = halves && !parts ? int64_t(tile.columns) * (tile.rows + 8) * 2 : 0;
  return {"conv_product", text + kProduct, std::max(tile_bytes(unit, tile, true), turned)};
}

KernelText conv_gradient_text(ConvUnit unit, const ConvTile& tile, ConvSpread spread) {
  return {"conv_gradient", dialect().write(index_text(0)) + tile_text(unit, tile, false, spread) + kGradient, tile_bytes(unit, tile, false)};
}

KernelText conv_finish_text(DType result, int64_t total, bool positions_first, bool rounded) {
  const char* part = rounded ? "typedef Stored Part;\nRIDGE_INLINE float load_part(Part x) { return load_element(x); }\n"
                             : "typedef float Part;\nRIDGE_INLINE float load_part(Part x) { return x; }\n";
  return {"conv_finish",
          dialect().write(index_text(total + kBlock)) + element_text(result) + part + fmt::format("constexpr bool kPositionsFirst = {};\n", positions_first) +
              kFinish,
          0};
}

}  // namespace ridge::cuda
