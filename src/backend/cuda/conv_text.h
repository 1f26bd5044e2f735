// Texts of the convolution kernels. The sizes of a shape are arguments; whatever changes the code is a constant of the text.
#pragma once
#include <array>

#include "backend/cuda/conv.h"
#include "backend/gpu/node_parts.h"
#include "ridge/dtype.h"

namespace ridge::cuda {

// How products are computed: f32 with FMA, f32 on the matrix units with 10 bits of each factor's fraction, 16-bit types on the matrix units.
enum class ConvUnit : uint8_t { fma, tf32, bf16, f16 };
inline int64_t unit_elements(ConvUnit u) { return u == ConvUnit::bf16 || u == ConvUnit::f16 ? 8 : 4; }  // per 16 bytes
inline DType unit_type(ConvUnit u) { return u == ConvUnit::bf16 ? DType::bf16 : u == ConvUnit::f16 ? DType::f16 : DType::f32; }

ConvUnit conv_unit(const ConvDesc& desc, const Chip& chip);

using ConvSpread = std::array<int64_t, 2>;  // [down, across]

struct ConvTile {
  int rows = 128, columns = 128, stages = 2;
  bool warpgroups = false;                               // use Hopper's instructions for products of 16-bit types
  int64_t chunks() const { return warpgroups ? 8 : 4; }  // along the depth in one stage, 16 bytes each
};
int64_t tile_bytes(ConvUnit unit, const ConvTile& tile, bool along_depth);  // in shared memory

// Makes channels contiguous, padded with zeros to whole 16-byte chunks. `lines`: chunks per tile; `together`: positions read in one access.
KernelText conv_pack_text(DType from, DType to, int lines, int together);
// Rows are output positions, the depth is (taps, channels). `wide`: results per store. `parts`: sums are written to memory as f32.
KernelText conv_product_text(ConvUnit unit, DType result, const ConvTile& tile, int wide, bool parts, ConvSpread spread, bool phases, bool taps_first);
// The gradient with respect to the weights: rows are (output positions, first axis), the depth is (channels, taps). Sums are written to memory as f32.
KernelText conv_gradient_text(ConvUnit unit, const ConvTile& tile, ConvSpread spread);
// Writes sums to the result. They are f32 or, if `rounded`, already of the result's type.
KernelText conv_finish_text(DType result, int64_t total, bool positions_first, bool rounded = false);
// Its arguments. Rows of the sums are [image, position], or [position, image] with `padded` images.
Words conv_finish_words(const ConvDesc& desc, Place out, Place parts, int64_t count, int64_t images, int64_t padded);

// For few channels per group: each thread sums `down` neighbours along the first spatial axis.
struct ConvNarrow {
  int64_t window[2], stride[2], dilation[2], spread[2];
  int down = 1;
  bool side_by_side = false;  // the source is contiguous across
};
KernelText conv_narrow_text(DType type, const ConvNarrow& shape, int64_t total);
KernelText conv_narrow_gradient_text(DType type, const ConvNarrow& shape, int64_t positions_down, int64_t positions_across);

// For few channels in 16-bit products: a block keeps the source of `rows` rows of positions in shared memory. Sizes are those of the forward convolution.
struct ConvBand {
  using Axes = std::array<int64_t, 2>;
  Axes source, out, window, stride, low;
  int64_t channels = 1, outputs = 1, columns = 8;  // columns: outputs, padded
  int64_t rows = 1, run = 1, resident = 2;         // run: elements of the source per read; resident: blocks that share a multiprocessor
  bool bf16 = true, bytes = true;

  int64_t cells() const { return blocks_of(window[1], stride[1]); }          // of a window, across
  int64_t units() const { return blocks_of(channels * stride[1], 8); }       // 16 bytes each, per cell
  int64_t steps() const { return (window[0] * cells() * units() + 1) / 2; }  // of the depth
  int64_t bands() const { return blocks_of(out[0], rows); }
  int64_t band_bytes() const { return units() * ((rows - 1) * stride[0] + window[0]) * (out[1] + cells() - 1) * 16; }
  int64_t weight_bytes() const { return columns * (steps() * 16 + 8) * 2; }
  int64_t factor_bytes() const { return blocks_of(rows * out[1], 16) * 16 * (columns + 8) * 2; }
};
KernelText conv_band_text(const ConvBand& band, DType result, int row_tiles, int weight_run, bool together);
KernelText conv_band_gradient_text(const ConvBand& band, bool together);
KernelText conv_band_finish_text(const ConvBand& band, DType result);

}  // namespace ridge::cuda
