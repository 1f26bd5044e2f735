// Convolutions of images with few channels: a block copies a band of rows into shared memory once, in the matrix units' format, and multiplies from there.
#include <fmt/core.h>

#include "backend/cuda/conv_text.h"
#include "backend/cuda/prelude.h"
#include "backend/gpu/node_parts.h"

namespace ridge::cuda {
namespace {

// A cell is what one step of the stride brings across: kStrideAcross columns of all channels, padded to kUnits lines of eight elements. A window is kCells
// cells of each of its rows, so every step of the depth reads whole lines, and neighbouring windows read neighbouring lines: [unit, row, cell] in shared
// memory.
constexpr const char* kBandSource = R"(
extern __shared__ __align__(1024) unsigned char shared_memory[];
constexpr int kLines = kWindowDown * kCells * kUnits, kSteps = (kLines + 1) / 2;
constexpr int kLinesDown = (kBandRows - 1) * kStrideDown + kWindowDown, kLinesAcross = kOutAcross + kCells - 1, kPlane = kLinesDown * kLinesAcross;
constexpr int kPositions = kBandRows * kOutAcross;

// The place of a line of a window, relative to its first. A line behind the last one has weights of zero.
RIDGE_INLINE constexpr int line_at(int line) {
  return line >= kLines ? 0 : line % kUnits * kPlane + line / (kUnits * kCells) * kLinesAcross + line / kUnits % kCells;
}
RIDGE_INLINE constexpr bool same_distances() {
  for (int s = 0; s < kSteps; ++s)
    if (line_at(2 * s + 1) - line_at(2 * s) != line_at(1) - line_at(0)) return false;
  return true;
}
// For one half of a warp the first line of a step, for the other half the second.
RIDGE_INLINE int step_at(int step, int half) {
  return line_at(2 * step) + half * (same_distances() ? line_at(1) - line_at(0) : line_at(2 * step + 1) - line_at(2 * step));
}
// Of element `e` of a unit: its channel and column within the cell.
RIDGE_INLINE constexpr int channel_of(int unit, int e) { return (unit * 8 + e) / kStrideAcross; }
RIDGE_INLINE constexpr int column_of(int unit, int e) { return (unit * 8 + e) % kStrideAcross; }

// A byte is exact in both formats: as the last bits of 2^23, then the difference.
RIDGE_INLINE half_bits half_of(int byte) {
  const float number = bits_float(0x4b000000u | (unsigned)byte) - 8388608.f;
  return kBF16 ? (half_bits)(float_bits(number) >> 16) : f32_to_f16(number);
}
RIDGE_INLINE half_bits half_of(half_bits bits) { return bits; }
RIDGE_INLINE half_bits element(const u32* w, int k, const half_bits*) { return (half_bits)(w[k / 2] >> (k & 1) * 16); }

struct Source {
  const From* x;
  i64 image, channel, down, across;
};
// All lines of a band whose first row in the source is `top`. Several reads are under way at a time.
RIDGE_INLINE void fill_band(const Source& from, i64 image, int top) {
  const From* source = from.x + image * from.image;
  const int channel = (int)from.channel, down = (int)from.down, across = (int)from.across;
  constexpr int kTotal = kUnits * kPlane, kAtOnce = kRun >= 4 ? kMostAtOnce : 2 * kRun, kRuns = 8 / kRun;
#pragma unroll 1
  for (int first = (int)threadIdx.x; first < kTotal; first += 256 * kAtOnce) {
    Words<kRun * (int)sizeof(From)> words[kAtOnce][kRuns];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int i = first + 256 * n, cell = i % kLinesAcross, rest = i / kLinesAcross, row = rest % kLinesDown, unit = rest / kLinesDown, y = top + row;
#pragma unroll
      for (int r = 0; r < kRuns; ++r) {
        const int c = channel_of(unit, r * kRun), x = cell * kStrideAcross + column_of(unit, r * kRun) - kLowAcross;
        words[n][r] = {};
        if (i < kTotal && c < kChannels && (unsigned)y < (unsigned)kDown && (unsigned)x < (unsigned)kAcross)
          read_words<true>(words[n][r], source + (c * channel + y * down + (kRun > 1 ? x : x * across)));
      }
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      alignas(16) half_bits line[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) line[e] = half_of(element(words[n][e / kRun].w, e % kRun, (const From*)0));
      if (first + 256 * n < kTotal) *(uint4*)(shared_memory + (first + 256 * n) * 16) = *(const uint4*)line;
    }
  }
}
// The first line of a position's window.
RIDGE_INLINE int window_at(int position) {
  const int v = position / kOutAcross;
  return v * (kStrideDown * kLinesAcross) + position - v * kOutAcross;
}
)";

constexpr const char* kBandProduct = R"(
struct Args {
  Source x;
  const half_bits* w;
  i64 w_output, w_channel, w_down, w_across;
  Stored* out;
  i64 out_image, out_output, out_down, out_across, jobs;
};
constexpr int kPitch = kSteps * 16 + 8, kTiles = kColumns / 8, kEach = 2 * kTiles;  // results of a position that a thread has

// Column n of the product is this output: those of a thread lie side by side.
RIDGE_INLINE int output_of(int n) { return n % 8 / 2 * kEach + n / 8 * 2 + n % 2; }

extern "C" __global__ void __launch_bounds__(256, kResident) conv_band(const RIDGE_CONSTANT Args a) {
  const int t = (int)threadIdx.x, lane = t % 32, group = lane / 4, pair = lane % 4;
  half_bits* weights = (half_bits*)(shared_memory + kUnits * kPlane * 16);
#pragma unroll 4
  for (int i = t; i < kColumns * kSteps * 16 / kWeightRun; i += 256) {
    const int n = i / (kSteps * 16 / kWeightRun), k = i % (kSteps * 16 / kWeightRun) * kWeightRun, line = k / 8;
    const int unit = line % kUnits, o = output_of(n), c = channel_of(unit, k % 8), x = line / kUnits % kCells * kStrideAcross + column_of(unit, k % 8);
    Words<2 * kWeightRun> some = {};
    if (line < kLines && o < kOutputs && c < kChannels && x < kWindowAcross)
      read_words<true>(some, a.w + (o * a.w_output + c * a.w_channel + line / (kUnits * kCells) * a.w_down + x * a.w_across));
    write_words(weights + n * kPitch + k, some, false);
  }
  for (int job = (int)blockIdx.x; job < (int)a.jobs; job += (int)gridDim.x) {
    const int image = job / kBands, row0 = job % kBands * kBandRows, positions = (kOutDown - row0 < kBandRows ? kOutDown - row0 : kBandRows) * kOutAcross;
    fill_band(a.x, image, row0 * kStrideDown - kLowDown);
    __syncthreads();
    for (int first = t / 32 * (kRowTiles * 16); first < positions; first += 8 * kRowTiles * 16) {
      int window[kRowTiles];
      float sum[kRowTiles][kTiles][4] = {};
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        const int p = first + 16 * i + lane % 16;
        window[i] = window_at(p < positions ? p : 0);
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        unsigned left[kRowTiles][4], right[(kTiles + 1) / 2][4];
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) load_matrices(left[i], shared_memory + (window[i] + step_at(s, lane / 16)) * 16);
#pragma unroll
        for (int j = 0; j < (kTiles + 1) / 2; ++j)
          load_matrices(right[j], weights + (16 * j + lane % 8 + (kTiles > 1 ? lane / 16 * 8 : 0)) * kPitch + s * 16 + lane / 8 % 2 * 8);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
          for (int j = 0; j < kTiles; ++j) MMA(sum[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
      }
      Stored* out = a.out + image * a.out_image;
#pragma unroll
      for (int i = 0; i < 2 * kRowTiles; ++i) {
        const int p = first + 8 * i + group, v = p / kOutAcross;
        if (p >= positions) continue;
        Stored* to = out + (row0 + v) * a.out_down + (p - v * kOutAcross) * a.out_across;
        if constexpr (kStoreTogether) {
          alignas(16) unsigned words[kTiles];
#pragma unroll
          for (int j = 0; j < kTiles; ++j) words[j] = PACK(sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
          struct alignas(kTiles < 4 ? 4 * kTiles : 16) Words16 { unsigned w[kTiles < 4 ? kTiles : 4]; };
#pragma unroll
          for (int j = 0; j < kTiles; j += 4) *(Words16*)(to + pair * kEach + 2 * j) = *(const Words16*)(words + j);
        } else {
#pragma unroll
          for (int e = 0; e < kEach; ++e)
            if (const int o = pair * kEach + e; o < kOutputs) to[o * a.out_output] = store_element(sum[i / 2][e / 2][i % 2 * 2 + e % 2]);
        }
      }
    }
    __syncthreads();
  }
}
)";

// The depth is the positions of a block's bands; rows are the elements of a window. Every warp sums its own lines over all positions.
constexpr const char* kBandGradient = R"(
struct Args {
  Source x;
  const half_bits* w;
  i64 w_output, w_image, w_down, w_across;
  float* parts;
  i64 jobs;
};
constexpr int kPitch = kColumns + 8, kTiles = kColumns / 8, kRowTiles = (kSteps + 7) / 8, kDeep = (kPositions + 15) / 16 * 16;

extern "C" __global__ void __launch_bounds__(256, kResident) conv_band_gradient(const RIDGE_CONSTANT Args a) {
  const int t = (int)threadIdx.x, lane = t % 32, group = lane / 4, pair = lane % 4, step0 = t / 32 * kRowTiles;
  half_bits* factor = (half_bits*)(shared_memory + kUnits * kPlane * 16);
  float sum[kRowTiles][kTiles][4] = {};
  for (int job = (int)blockIdx.x; job < (int)a.jobs; job += (int)gridDim.x) {
    const int image = job / kBands, row0 = job % kBands * kBandRows, positions = (kOutDown - row0 < kBandRows ? kOutDown - row0 : kBandRows) * kOutAcross;
    const half_bits* from = a.w + image * a.w_image;
    __syncthreads();
    if constexpr (kFactorTogether) {
#pragma unroll 1
      for (int i = t; i < kDeep * kTiles; i += 256) {
        const int p = i / kTiles, o = i % kTiles * 8, v = p / kOutAcross;
        const bool there = p < positions && o < kOutputs;
        copy_async_16(factor + p * kPitch + o, there ? from + ((row0 + v) * a.w_down + (p - v * kOutAcross) * a.w_across + o) : from, there);
      }
      copy_async_commit();
    } else {
      for (int i = t; i < kDeep * kColumns; i += 256) {
        const int o = i / kDeep, p = i % kDeep, v = p / kOutAcross;
        half_bits value = 0;
        if (p < positions && o < kOutputs) value = from[(row0 + v) * a.w_down + (p - v * kOutAcross) * a.w_across + o * a.w_output];
        factor[p * kPitch + o] = value;
      }
    }
    fill_band(a.x, image, row0 * kStrideDown - kLowDown);
    copy_async_wait<0>();
    __syncthreads();
    if (step0 >= kSteps) continue;
    int at[kRowTiles];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      const int line = 2 * (step0 + i) + lane / 8 % 2;
      at[i] = line_at(line);
    }
#pragma unroll 1
    for (int q = 0; q < positions; q += 16) {
      const int p = q + lane % 8 + lane / 16 * 8, window = window_at(p < positions ? p : 0);
      unsigned left[kRowTiles][4], right[(kTiles + 1) / 2][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) load_matrices_transposed(left[i], shared_memory + (window + at[i]) * 16);
#pragma unroll
      for (int j = 0; j < (kTiles + 1) / 2; ++j)
        load_matrices_transposed(right[j], factor + (q + lane % 8 + lane / 8 % 2 * 8) * kPitch + 16 * j + (kTiles > 1 ? lane / 16 * 8 : 0));
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int j = 0; j < kTiles; ++j) MMA(sum[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
    }
  }
  float* to = a.parts + (i64)blockIdx.x * (kSteps * 16 * kColumns);
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i)
    if (step0 + i / 2 < kSteps)
#pragma unroll
      for (int j = 0; j < kTiles; ++j)
        *(float2*)(to + ((step0 + i / 2) * 16 + i % 2 * 8 + group) * kColumns + 8 * j + 2 * pair) = make_float2(sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
}
)";

// Adds the parts in order: eight runs of them, then their sums.
constexpr const char* kBandFinish = R"(
struct Args {
  const float* parts;
  Stored* out;
  i64 count, out_channel, out_output, out_down, out_across;
};
extern "C" __global__ void __launch_bounds__(256) conv_band_finish(const RIDGE_CONSTANT Args a) {
  __shared__ float runs[8][32];
  constexpr int kTotal = kSteps * 16 * kColumns;
  const int t = (int)threadIdx.x, e = (int)blockIdx.x * 32 + t % 32, each = ((int)a.count + 7) / 8, begin = t / 32 * each;
  const int end = begin + each < (int)a.count ? begin + each : (int)a.count;
  float sum = 0.f;
  int i = begin;
  for (; i + 8 <= end; i += 8) {
    float next[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) next[j] = a.parts[(i64)(i + j) * kTotal + e];
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += next[j];
  }
  for (; i < end; ++i) sum += a.parts[(i64)i * kTotal + e];
  runs[t / 32][t % 32] = sum;
  __syncthreads();
  if (t >= 32) return;
#pragma unroll
  for (int j = 1; j < 8; ++j) sum += runs[j][t];
  const int o = e % kColumns, k = e / kColumns, line = k / 8, unit = line % kUnits;
  const int c = channel_of(unit, k % 8), x = line / kUnits % kCells * kStrideAcross + column_of(unit, k % 8);
  if (line >= kLines || o >= kOutputs || c >= kChannels || x >= kWindowAcross) return;
  a.out[c * a.out_channel + o * a.out_output + line / (kUnits * kCells) * a.out_down + x * a.out_across] = store_element(sum);
}
)";

// `at_once`: the most reads of a thread that are under way.
std::string band_text(const ConvBand& b, int at_once) {
  std::string text = std::string(matrix_prelude()) + fmt::format("#define MMA mma_{0}\n#define PACK pack_{0}\nconstexpr bool kBF16 = {1};\ntypedef {2} From;\n",
                                                                 b.bf16 ? "bf16" : "f16", b.bf16, b.bytes ? "unsigned char" : "unsigned short");
  auto put = [&](const char* name, int64_t value) { text += fmt::format("constexpr int {} = {};\n", name, value); };
  put("kChannels", b.channels), put("kOutputs", b.outputs), put("kColumns", b.columns);
  const char* axes[] = {"Down", "Across"};
  for (size_t i : {0, 1}) {
    auto put_axis = [&](const char* name, const ConvBand::Axes& sizes) { put(fmt::format("{}{}", name, axes[i]).c_str(), sizes[i]); };
    put(fmt::format("k{}", axes[i]).c_str(), b.source[i]);
    put_axis("kOut", b.out), put_axis("kWindow", b.window), put_axis("kStride", b.stride), put_axis("kLow", b.low);
  }
  put("kCells", b.cells()), put("kUnits", b.units()), put("kBandRows", b.rows), put("kBands", b.bands()), put("kRun", b.run), put("kResident", b.resident),
      put("kMostAtOnce", at_once);
  return text + kBandSource;
}

}  // namespace

KernelText conv_band_text(const ConvBand& b, DType result, int row_tiles, int weight_run, bool together) {
  std::string text = band_text(b, 8) + element_text(result) +
                     fmt::format("constexpr int kRowTiles = {}, kWeightRun = {};\nconstexpr bool kStoreTogether = {};\n", row_tiles, weight_run, together);
  return {"conv_band", text + kBandProduct, b.band_bytes() + b.weight_bytes()};
}

KernelText conv_band_gradient_text(const ConvBand& b, bool together) {
  return {"conv_band_gradient", band_text(b, 4) + fmt::format("constexpr bool kFactorTogether = {};\n", together) + kBandGradient,
          b.band_bytes() + b.factor_bytes()};
}

KernelText conv_band_finish_text(const ConvBand& b, DType result) { return {"conv_band_finish", band_text(b, 1) + element_text(result) + kBandFinish, 0}; }

}  // namespace ridge::cuda
