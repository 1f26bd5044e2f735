// Texts of the convolution kernels. Numbers of a shape are arguments; what changes the code is a constant of the text.
#pragma once
#include <array>

#include "backend/cuda/conv.h"
#include "backend/gpu/node_parts.h"
#include "ridge/dtype.h"

namespace ridge::cuda {

// How products are done: f32 by FMA, f32 by the matrix units with 10 bits of each factor, 16-bit types by the matrix units.
enum class ConvUnit : uint8_t { fma, tf32, bf16, f16 };
inline int64_t unit_elements(ConvUnit u) { return u == ConvUnit::bf16 || u == ConvUnit::f16 ? 8 : 4; }  // in 16 bytes
inline DType unit_type(ConvUnit u) { return u == ConvUnit::bf16 ? DType::bf16 : u == ConvUnit::f16 ? DType::f16 : DType::f32; }

using ConvSpread = std::array<int64_t, 2>;  // [down, across]

struct ConvTile {
  int rows = 128, columns = 128, stages = 2;
  bool warpgroups = false;                               // Hopper's products of 16-bit types
  int64_t chunks() const { return warpgroups ? 8 : 4; }  // of the depth in one stage, 16 bytes each
};
int64_t tile_bytes(ConvUnit unit, const ConvTile& tile, bool along_depth);  // of shared memory

// Channels side by side, padded with zeros to whole chunks of 16 bytes. `lines`: chunks of a tile; `together`: positions that are read at once.
KernelText conv_pack_text(DType from, DType to, int lines, int together);
// Rows are output positions, the depth is (taps, channels). `wide`: results that are stored at once. `parts`: sums go to memory as f32.
KernelText conv_product_text(ConvUnit unit, DType result, const ConvTile& tile, int wide, bool parts, ConvSpread spread, bool phases, bool taps_first);
// Rows are (output positions, first axis), the depth is (channels, taps): what a gradient by the weights is. Sums go to memory as f32.
KernelText conv_gradient_text(ConvUnit unit, const ConvTile& tile, ConvSpread spread);
// Puts sums in place: of f32, or, `rounded`, already of the result's type.
KernelText conv_finish_text(DType result, int64_t total, bool positions_first, bool rounded = false);
// What it takes. Rows of the sums are [image, position], or [position, image] with `padded` images.
Words conv_finish_words(const ConvDesc& desc, Place out, Place parts, int64_t count, int64_t images, int64_t padded);

// Few channels in a group: each thread sums `down` neighbours of the first spatial axis.
struct ConvNarrow {
  int64_t window[2], stride[2], dilation[2], spread[2];
  int down = 1;
  bool side_by_side = false;  // the source's elements across
};
KernelText conv_narrow_text(DType type, const ConvNarrow& shape, int64_t total);
KernelText conv_narrow_gradient_text(DType type, const ConvNarrow& shape, int64_t positions_down, int64_t positions_across);

}  // namespace ridge::cuda
