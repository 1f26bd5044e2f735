// Convolutions with few channels: each thread computes its own sums directly from the operands.
#include <fmt/core.h>

#include "backend/cuda/conv_text.h"
#include "backend/gpu/node_parts.h"

namespace ridge::cuda {
namespace {

// A row of the source, and its elements `ahead` of the leftmost one: zero outside the source and between the elements of a spread source.
constexpr const char* kSource = R"(
struct SourceRow { const Stored *from, *line; int at; bool in; };
RIDGE_INLINE SourceRow source_row(const Stored* from, int y, int left, int down, int x_down, int x_across) {
  const int row = y / kSpreadDown;
  return {from, from + (row * x_down + left * x_across), row * x_down, y >= 0 && y % kSpreadDown == 0 && row < down};
}
RIDGE_INLINE float source_element(const SourceRow& r, int left, int ahead, int across, int x_across) {
  const int x = left + ahead, place = x / kSpreadAcross;
  if (!r.in || x < 0 || x % kSpreadAcross != 0 || place >= across) return 0.f;
  return load_element(kSpreadAcross == 1 ? r.line[ahead * x_across] : r.from[r.at + place * x_across]);
}
)";

// Source rows that neighbours share are read once; weights stay in registers.
constexpr const char* kNarrow = R"(
struct Args {
  const Stored *x, *w; Stored* out;
  i64 total, channels, groups, down, across, out_down, low_down, low_across;
  i64 x_image, x_group, x_channel, x_down, x_across, w_group, w_output, w_channel, w_down, w_across, out_image, out_group, out_output, out_down_step, out_across_step;
  Divider out_across, lines, outputs, groups_by;
};
constexpr int kSourceRows = (kDown - 1) * kStrideDown + (kWindowDown - 1) * kDilationDown + 1;
extern "C" __global__ void __launch_bounds__(256) conv_narrow(const RIDGE_CONSTANT Args a) {
  const i64 e = (i64)blockIdx.x * 256 + threadIdx.x;
  if (e >= a.total) return;
  Index rest = quotient(a.out_across, (Index)e);
  const int u = (int)((Index)e - rest * (Index)a.out_across.size);
  Index next = quotient(a.lines, rest);
  const int v = (int)(rest - next * (Index)a.lines.size) * kDown;
  rest = next, next = quotient(a.outputs, rest);
  const Index o = rest - next * (Index)a.outputs.size, image = quotient(a.groups_by, next), group = next - image * (Index)a.groups;
  const Stored* from = a.x + image * a.x_image + group * a.x_group;
  const Stored* weights = a.w + group * a.w_group + o * a.w_output;
  const int x_down = (int)a.x_down, x_across = kSideBySide ? 1 : (int)a.x_across, w_down = (int)a.w_down, w_across = (int)a.w_across;
  const int top = v * kStrideDown - (int)a.low_down, left = u * kStrideAcross - (int)a.low_across;
  float sum[kDown] = {};
  for (int c = 0; c < (int)a.channels; ++c, from += a.x_channel, weights += a.w_channel) {
    float w[kWindowDown][kWindowAcross];
#pragma unroll
    for (int y = 0; y < kWindowDown; ++y)
#pragma unroll
      for (int x = 0; x < kWindowAcross; ++x) w[y][x] = load_element(weights[y * w_down + x * w_across]);
#pragma unroll
    for (int s = 0; s < kSourceRows; ++s) {
      const SourceRow row = source_row(from, top + s, left, (int)a.down, x_down, x_across);
#pragma unroll
      for (int k = 0; k < kWindowAcross; ++k) {
        const float value = source_element(row, left, k * kDilationAcross, (int)a.across, x_across);
#pragma unroll
        for (int i = 0; i < kDown; ++i) {
          const int tap = s - i * kStrideDown;
          if (tap >= 0 && tap % kDilationDown == 0 && tap / kDilationDown < kWindowDown) sum[i] = fmaf(value, w[tap / kDilationDown][k], sum[i]);
        }
      }
    }
  }
  Stored* to = a.out + image * a.out_image + group * a.out_group + o * a.out_output + v * a.out_down_step + u * a.out_across_step;
#pragma unroll
  for (int i = 0; i < kDown; ++i)
    if (v + i < (int)a.out_down) to[i * a.out_down_step] = store_element(sum[i]);
}
)";

// A block sums one part of the depth for all positions of one channel and output.
constexpr const char* kNarrowGradient = R"(
struct Args {
  const Stored *x, *w; float* parts;
  i64 firsts, groups, outputs, down, across, window_down, depth, part, low_down, low_across;  // depth: of lines of kDown taps
  i64 x_first, x_group, x_image, x_down, x_across, w_group, w_output, w_image, w_down, w_across;
  Divider window, window_across;
};
constexpr int kPositions = kOutDown * kOutAcross, kSourceRows = (kDown - 1) * kDilationDown + (kOutDown - 1) * kStrideDown + 1;
extern "C" __global__ void __launch_bounds__(256) conv_narrow_gradient(const RIDGE_CONSTANT Args a) {
  __shared__ float warps[8][kPositions];
  int block = (int)blockIdx.x, t = (int)threadIdx.x;
  const int o = block % (int)a.outputs;
  block /= (int)a.outputs;
  const int first = block % (int)a.firsts;
  block /= (int)a.firsts;
  const int group = block % (int)a.groups, part = block / (int)a.groups;
  const Stored* from = a.x + first * a.x_first + group * a.x_group;
  const Stored* factor = a.w + group * a.w_group + o * a.w_output;
  const int begin = part * (int)a.part, end = begin + (int)a.part < (int)a.depth ? begin + (int)a.part : (int)a.depth;
  const int x_image = (int)a.x_image, x_down = (int)a.x_down, x_across = kSideBySide ? 1 : (int)a.x_across;
  const int w_image = (int)a.w_image, w_down = (int)a.w_down, w_across = (int)a.w_across;
  float sum[kPositions] = {};
  for (int k = begin + t; k < end; k += 256) {
    const int image = quotient(a.window, k), tap = k - image * (int)a.window.size, first_line = quotient(a.window_across, tap), x = tap - first_line * (int)a.window_across.size;
    const int y = first_line * kDown;
    float g[kDown];
#pragma unroll
    for (int i = 0; i < kDown; ++i) g[i] = kDown == 1 || y + i < (int)a.window_down ? load_element(factor[image * w_image + (y + i) * w_down + x * w_across]) : 0.f;
    const Stored* source = from + image * x_image;
    const int top = y * kDilationDown - (int)a.low_down, left = x * kDilationAcross - (int)a.low_across;
#pragma unroll
    for (int s = 0; s < kSourceRows; ++s) {
      const SourceRow row = source_row(source, top + s, left, (int)a.down, x_down, x_across);
#pragma unroll
      for (int u = 0; u < kOutAcross; ++u) {
        const float value = source_element(row, left, u * kStrideAcross, (int)a.across, x_across);
#pragma unroll
        for (int i = 0; i < kDown; ++i) {
          const int v = s - i * kDilationDown;
          if (v >= 0 && v % kStrideDown == 0 && v / kStrideDown < kOutDown) sum[v / kStrideDown * kOutAcross + u] = fmaf(g[i], value, sum[v / kStrideDown * kOutAcross + u]);
        }
      }
    }
  }
#pragma unroll
  for (int p = 0; p < kPositions; ++p) {
    float s = sum[p];
    for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(0xffffffffu, s, d);
    if (t % 32 == 0) warps[t / 32][p] = s;
  }
  __syncthreads();
  if (t >= kPositions) return;
  float s = warps[0][t];
  for (int i = 1; i < 8; ++i) s += warps[i][t];
  a.parts[((((i64)part * a.groups + group) * a.outputs + o) * kPositions + t) * a.firsts + first] = s;
}
)";

std::string narrow_text(DType type, const ConvNarrow& s) {
  std::string text = element_text(type) + fmt::format("constexpr int kDown = {};\nconstexpr bool kSideBySide = {};\n", s.down, s.side_by_side);
  const char* axes[] = {"Down", "Across"};
  for (int i = 0; i < 2; ++i)
    text += fmt::format("constexpr int kWindow{0} = {1}, kStride{0} = {2}, kDilation{0} = {3}, kSpread{0} = {4};\n", axes[i], s.window[i], s.stride[i],
                        s.dilation[i], s.spread[i]);
  return text + kSource;
}

}  // namespace

KernelText conv_narrow_text(DType type, const ConvNarrow& s, int64_t total) {
  return {"conv_narrow", dialect().write(index_text(total + kBlock)) + narrow_text(type, s) + kNarrow, 0};
}

KernelText conv_narrow_gradient_text(DType type, const ConvNarrow& s, int64_t positions_down, int64_t positions_across) {
  return {"conv_narrow_gradient",
          dialect().write(index_text(0)) + narrow_text(type, s) +
              fmt::format("constexpr int kOutDown = {}, kOutAcross = {};\n", positions_down, positions_across) + kNarrowGradient,
          0};
}

}  // namespace ridge::cuda
