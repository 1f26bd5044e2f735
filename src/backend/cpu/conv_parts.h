// Shared by the two forms of convolution: images in cache, columns of the weights, and how finished sums are stored.
#pragma once
#include <algorithm>
#include <vector>

#include "backend/conv_desc.h"
#include "backend/cpu/matmul_kernels.h"

namespace ridge::cpu::conv {

inline int64_t parts_of(int64_t n, int64_t size) { return (n + size - 1) / size; }
inline int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
// Where range i starts if [0, size) is split into `parts` ranges whose lengths differ by at most one.
inline int64_t range_begin(int64_t size, int64_t parts, int64_t i) { return i * (size / parts) + std::min(i, size % parts); }

// How many lines of an image to read at a time if they are converted again: few enough to stay in L1.
inline int64_t lines_at_a_time(int64_t floats) { return std::max<int64_t>(1, 4096 / floats); }

// The tables of kernels that a convolution uses. Pairs of bf16 are multiplied natively if both operands have only such values (bytes do) and the tier can.
struct Units {
  const MatmulKernels* plain = nullptr;  // packs to f32
  const MatmulKernels* tiles = nullptr;  // multiplies f32, or pairs
  bool pairs() const { return tiles != plain; }
  double flops_per_ns() const { return MatmulModel().ghz * plain->flops_per_cycle; }
};
Units units_of(const ConvDesc& desc, IsaTier tier);

// The columns of a product in tiles of equal width, in floats.
struct Columns {
  int64_t count = 0, width = 0, tiles = 0, padded = 0;
  int64_t tile_rows = 0;  // of tiles of this width
  Columns() = default;
  Columns(int64_t columns, const MatmulKernels& kernels);
  int64_t live(int64_t tile) const { return std::min(width, count - tile * width); }
  int64_t stored(int64_t tile) const { return std::min(width, padded - tile * width); }  // a multiple of a vector
};

// Reads parts of a strided source [down, across, lanes] as f32, with the lanes innermost. Coordinates count the gaps that `spread` puts between neighbours.
// Whatever is not in the source is zero.
struct ImageReader {
  const MatmulKernels* kernels = nullptr;
  DType type = DType::f32;
  int64_t lanes = 1, padded = 1;  // padded: lanes in the result; those that are not in the source are zero
  int64_t lane_step = 0;
  ConvDesc::Axes size{1, 1}, steps{0, 0}, spread{1, 1};

  struct Part {
    int64_t top, rows, left, columns;
  };
  bool is_whole(const Part& part) const;  // the part has neither zeros nor gaps, so that it is read directly
  int64_t spare_floats(const Part& part) const { return is_whole(part) ? 0 : rows_read(part) * columns_read(part) * padded; }
  void read(const std::byte* source, const Part& part, float* to, float* spare) const;

 private:
  struct Range {
    int64_t begin, end;
  };
  Range inside(int axis, int64_t first, int64_t count) const;
  int64_t rows_read(const Part& part) const { return std::max<int64_t>(0, inside(0, part.top, part.rows).end - inside(0, part.top, part.rows).begin); }
  int64_t columns_read(const Part& part) const {
    return std::max<int64_t>(0, inside(1, part.left, part.columns).end - inside(1, part.left, part.columns).begin);
  }
};

// Where the sums of an image go.
struct Result {
  const MatmulKernels* kernels = nullptr;
  ConvDesc::Steps steps;
  DType type = DType::f32;
  int64_t outputs = 1, positions = 1, across = 1;  // of a group, of an image, of a row of the image
  bool epilogue = false;

  int64_t spare_floats(int64_t count) const { return turns(count) ? outputs * count : 0; }
  // Stores sums [count positions from `first`][outputs], `ld` floats apart. `spare`: memory for spare_floats(count); worker.scratch: the epilogue's.
  void store(const MatmulEpilogue& run, Worker& worker, Ref to, int64_t image, int64_t group, int64_t first, int64_t count, const float* sums, int64_t ld,
             float* spare) const;

 private:
  bool positions_side_by_side() const { return steps.axes[1] == 1 && (positions == across || steps.axes[0] == across); }
  bool is_direct(int64_t count) const { return type == DType::f32 && count == positions && positions_side_by_side() && steps.second == positions; }
  bool turns(int64_t count) const { return epilogue || (positions_side_by_side() && !is_direct(count)); }
};

std::unique_ptr<MatmulKernel> make_windows(const ConvDesc& desc, int64_t epilogue_scratch, const Units& units);
std::unique_ptr<MatmulKernel> make_sums(const ConvDesc& desc, int64_t epilogue_scratch, const Units& units);

}  // namespace ridge::cpu::conv
