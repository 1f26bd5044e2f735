#include "backend/cpu/conv.h"

#include <cstring>

#include "backend/cpu/conv_parts.h"

namespace ridge::cpu {
namespace conv {

Units units_of(const ConvDesc& d, IsaTier tier) {
  const MatmulKernels* plain = &matmul_kernels(tier);
  auto narrow = [](DType t) { return t == DType::bf16 || t == DType::u8; };
  const MatmulKernels* pairs = narrow(d.x) && narrow(d.w) ? pair_kernels(tier) : nullptr;
  return {plain, pairs ? pairs : plain};
}

Columns::Columns(int64_t columns, const MatmulKernels& kernels) : count(columns), padded(parts_of(columns, kernels.lanes) * kernels.lanes) {
  const int64_t vectors = padded / kernels.lanes;
  width = parts_of(vectors, parts_of(vectors, kernels.tile_vectors)) * kernels.lanes;
  tiles = parts_of(count, width);
  tile_rows = width <= 2 * kernels.lanes ? kernels.narrow_rows : kernels.tile_rows;
}

// The indices of the source that `count` coordinates from `first` meet.
ImageReader::Range ImageReader::inside(int axis, int64_t first, int64_t count) const {
  const int64_t gap = spread[size_t(axis)];
  return {parts_of(std::max<int64_t>(first, 0), gap), std::min(size[size_t(axis)], parts_of(std::max<int64_t>(first + count, 0), gap))};
}

bool ImageReader::is_whole(const Part& p) const {
  return spread == ConvDesc::Axes{1, 1} && p.top >= 0 && p.top + p.rows <= size[0] && p.left >= 0 && p.left + p.columns <= size[1];
}

void ImageReader::read(const std::byte* source, const Part& part, float* to, float* spare) const {
  const Range down = inside(0, part.top, part.rows), across = inside(1, part.left, part.columns);
  const int64_t rows = std::max<int64_t>(0, down.end - down.begin), columns = std::max<int64_t>(0, across.end - across.begin);
  const bool whole = is_whole(part);
  const int64_t line = part.columns * padded;
  float* const packed = whole ? to : spare;
  if (rows && columns) {
    PackArgs p;
    p.column = {nullptr, lane_step}, p.k = {nullptr, steps[1]};
    p.live = lanes, p.width = padded;
    const PackFn pack = type == DType::u8 ? kernels->pack_bytes : kernels->pack[storage_index(type)];
    auto put = [&](int64_t first, int64_t lines) {
      p.src = source + ((down.begin + first) * steps[0] + across.begin * steps[1]) * size_of(type);
      p.depth = p.k_size = lines * columns, p.dst = packed + first * columns * padded;
      pack(p);
    };
    if (rows == 1 || steps[0] == columns * steps[1])  // lines that follow each other are packed as one
      put(0, rows);
    else
      for (int64_t r = 0; r < rows; ++r) put(r, 1);
  }
  if (whole) return;
  for (int64_t r = 0; r < part.rows; ++r) {
    float* const row = to + r * line;
    const int64_t y = part.top + r;
    if (y < 0 || y % spread[0] || y / spread[0] >= size[0] || columns == 0) {
      std::memset(row, 0, size_t(line) * 4);
      continue;
    }
    const float* const from = spare + (y / spread[0] - down.begin) * columns * padded;
    if (spread[1] == 1) {
      const int64_t before = across.begin - part.left;
      std::memset(row, 0, size_t(before * padded) * 4);
      std::memcpy(row + before * padded, from, size_t(columns * padded) * 4);
      std::memset(row + (before + columns) * padded, 0, size_t((part.columns - before - columns) * padded) * 4);
    } else {
      std::memset(row, 0, size_t(line) * 4);
      for (int64_t c = 0; c < columns; ++c) std::memcpy(row + ((across.begin + c) * spread[1] - part.left) * padded, from + c * padded, size_t(padded) * 4);
    }
  }
}

void Result::store(const MatmulEpilogue& run, Worker& worker, Ref to, int64_t image, int64_t group, int64_t first, int64_t count, const float* sums, int64_t ld,
                   float* spare) const {
  auto turn = [&](float* dst) {  // [positions][outputs] to [outputs][positions]
    PackArgs p;
    p.src = sums, p.column = {nullptr, ld}, p.k = {nullptr, 1};
    p.live = p.width = count, p.depth = p.k_size = outputs, p.dst = dst;
    kernels->pack[storage_index(DType::f32)](p);
  };
  if (epilogue) {
    turn(spare);
    return run.run(run.context, worker, image, group * outputs, outputs, first, count, spare, count);
  }
  std::byte* const base = worker.at<std::byte>(to);
  const int64_t bytes = size_of(type), at = image * steps.first + group * steps.group;
  const auto put = kernels->store[std::max(storage_index(type), 0)];
  if (is_direct(count)) return turn(reinterpret_cast<float*>(base) + at);
  if (positions_side_by_side()) {
    turn(spare);
    for (int64_t o = 0; o < outputs; ++o) put(spare + o * count, base + (at + o * steps.second + first) * bytes, count);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = at + (first + i) / across * steps.axes[0] + (first + i) % across * steps.axes[1];
    if (steps.second == 1)
      put(sums + i * ld, base + position * bytes, outputs);
    else
      for (int64_t o = 0; o < outputs; ++o) put(sums + i * ld + o, base + (position + o * steps.second) * bytes, 1);
  }
}

}  // namespace conv

bool sums_over_taps(const ConvDesc& d) { return d.taps() > d.positions(); }

std::unique_ptr<MatmulKernel> make_conv_for(const ConvDesc& desc, int64_t epilogue_scratch, IsaTier tier) {
  const conv::Units units = conv::units_of(desc, tier);
  return sums_over_taps(desc) ? conv::make_sums(desc, epilogue_scratch, units) : conv::make_windows(desc, epilogue_scratch, units);
}

std::unique_ptr<MatmulKernel> make_conv(const ConvDesc& desc, int64_t epilogue_scratch) { return make_conv_for(desc, epilogue_scratch, isa_tier()); }

bool has_conv_kernel(const Graph& g, NodeId id) {
  constexpr int64_t kFewOutputs = 4;
  const Node& n = g[id];
  if (g.shape(n.in[0]).rank() > 4) return false;
  for (const Type* t : {&g.type(n.in[0]), &g.type(n.in[1]), &n.type()})
    if (t->shape.numel() == 0 || (storage_index(t->dtype) < 0 && !(t->dtype == DType::u8 && t == &g.type(n.in[0])))) return false;
  return g.shape(n.in[1])[0] / n.attrs.ints[0] >= kFewOutputs;
}

}  // namespace ridge::cpu
