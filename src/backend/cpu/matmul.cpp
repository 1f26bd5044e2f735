#include "backend/cpu/matmul.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "backend/cpu/matmul_kernels.h"
#include "base/error.h"

namespace ridge::cpu {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t align64(int64_t bytes) { return (bytes + 63) & ~int64_t(63); }

// Where range i starts if [0, size) is split into `parts` consecutive ranges whose lengths differ by at most one.
int64_t part_begin(int64_t size, int64_t parts, int64_t i) { return i * (size / parts) + std::min(i, size % parts); }

int64_t checked_size(const std::vector<MatmulLoop>& loops, const char* what) {
  int64_t size = 1;
  for (const MatmulLoop& loop : loops) {
    if (loop.size < 0) fail(ErrorCode::shape, "[matmul] a {} loop has size {}; sizes are 0 or more", what, loop.size);
    if (__builtin_mul_overflow(size, loop.size, &size)) fail(ErrorCode::shape, "[matmul] the {} loops overflow 64 bits; split the product", what);
  }
  return size;
}

// Loops with one operand's strides, collapsed to a single stride if possible.
struct IndexMap {
  OffsetMap map;
  std::vector<int64_t> table;

  IndexMap() = default;
  IndexMap(const std::vector<MatmulLoop>& loops, int64_t MatmulLoop::*stride) {
    bool first = true, regular = true;
    int64_t size = 1, step = 0;
    for (auto loop = loops.rbegin(); loop != loops.rend(); ++loop) {
      if (loop->size == 1) continue;
      if (first)
        step = (*loop).*stride;
      else if ((*loop).*stride != step * size)
        regular = false;
      first = false;
      size *= loop->size;
    }
    if (regular || size == 0) {
      map.stride = step;
      return;
    }
    table.assign(1, 0);
    table.reserve(size_t(size));
    for (const MatmulLoop& loop : loops) {
      std::vector<int64_t> next;
      next.reserve(table.size() * size_t(loop.size));
      for (int64_t base : table)
        for (int64_t i = 0; i < loop.size; ++i) next.push_back(base + i * (loop.*stride));
      table = std::move(next);
    }
    map.table = table.data();
  }
  IndexMap(IndexMap&&) = default;
  IndexMap& operator=(IndexMap&&) = default;
};

enum class Feed { direct, unit, shared };  // an operand is read in place, packed by each unit, or packed once for all units
enum class Shape { tiles, by_row, by_dot };

// Everything that is independent of addresses.
struct Plan {
  const MatmulKernels* kernels = nullptr;
  MatmulModel model;
  KernelVariant variant;
  Shape shape = Shape::tiles;
  DType a_type, b_type, c_type;
  bool accumulate = false, epilogue = false, swapped = false;
  bool all_rows = false;  // a unit takes all rows
  std::vector<MatmulLoop> batch_loops;
  int64_t batch = 1, m = 1, n = 1, k = 1;
  int64_t per_k = 1, k_size = 1;  // elements of K per step of k (two if kernels take pairs), and their total
  IndexMap a_m, a_k, b_n, b_k, c_m, c_n;
  int64_t width = 0;                       // columns of a full tile
  int64_t row_tiles = 0, col_tiles = 0;    // tiles of C
  std::vector<int64_t> row_at, tile_at;    // given blocks: the first row by tile, the first tile by block
  int64_t row_blocks = 1, col_blocks = 1;  // units per batch
  int64_t band = 1;                        // row blocks whose units are consecutive, column by column
  int64_t depth = 0, depth_blocks = 1;     // K blocks
  Feed a_feed = Feed::unit, b_feed = Feed::shared;
  bool a_by_row = false;  // A's panels are rows with contiguous k, else [k][rows]
  int64_t a_ld = 0;       // length of a row of A in a panel of one K block, in elements
  bool strip = false;     // sums pass through scratch: conversion, scatter or epilogue
  bool narrows = false;   // tiles write bf16 to C; with several K blocks, sums pass through scratch before the last
  int64_t epilogue_scratch = 0;
  // Byte offsets in scratch and workspace.
  int64_t scratch_a = 0, scratch_b = 0, scratch_strip = 0, scratch_end = 0;
  int64_t workspace_b = 0, workspace_end = 0;
  // How much is packed at a time.
  int64_t chunk_batches = 1, chunk_row_blocks = 1, chunk_col_blocks = 1;

  double flops_per_ns() const { return model.ghz * kernels->flops_per_cycle; }
  int64_t row_begin(int64_t tile) const { return row_at.empty() ? part_begin(m, row_tiles, tile) : row_at[size_t(tile)]; }
  int64_t row_block(int64_t i) const { return tile_at.empty() ? part_begin(row_tiles, row_blocks, i) : tile_at[size_t(i)]; }  // first tile
  int64_t tile_rows() const { return row_at.empty() ? ceil_div(m, row_tiles) : kernels->tile_rows; }                          // at most
  int64_t col_block(int64_t i) const { return part_begin(col_tiles, col_blocks, i); }
  int64_t tile_cols(int64_t tile) const { return std::min(width, n - tile * width); }
  int64_t tile_width(int64_t tile) const { return ceil_div(tile_cols(tile), kernels->lanes) * kernels->lanes; }
  int64_t depth_begin(int64_t i) const { return std::min(k, part_begin(ceil_div(k, kernels->k_grain), depth_blocks, i) * kernels->k_grain); }
  int64_t k_elements(int64_t begin, int64_t size) const { return std::min(size * per_k, k_size - begin * per_k); }
};

struct BatchOffsets {
  int64_t a = 0, b = 0, c = 0;
};

BatchOffsets batch_offsets(const Plan& p, int64_t index) {
  BatchOffsets at;
  for (auto loop = p.batch_loops.rbegin(); loop != p.batch_loops.rend() && index; ++loop) {
    const int64_t i = index % loop->size;
    index /= loop->size;
    at.a += i * loop->a, at.b += i * loop->b, at.c += i * loop->c;
  }
  return at;
}

// ---- planning

// Rows that a tile reads together and that are `stride` elements apart must not crowd one set of L1 (64 sets of 8 lines).
bool rows_spread(int64_t stride, int64_t rows) {
  const int64_t bytes = std::abs(stride) * 4;
  if (bytes % 64) return true;
  return ceil_div(rows * std::gcd(bytes / 64, int64_t(64)), 64) <= 7;
}

// Ways of L2 (2048 sets) that `count` ranges of `lines` cache lines occupy if they are `stride` elements apart.
int64_t ways_of_l2(int64_t stride, int64_t count, int64_t lines) {
  const int64_t bytes = std::abs(stride) * 4, step = std::gcd(bytes % 64 ? 1 : bytes / 64, int64_t(2048));
  return ceil_div(count * lines, std::min<int64_t>(2048, 2048 / step * std::min(lines, step)));
}

constexpr int64_t kFewRows = 768;  // up to this many rows, B may be read in place, or units may take all rows

// Chooses the tiles per unit: the shape with the least total time over several thread counts. The actual thread count is never used.
void choose_units(Plan& p, bool packs_b) {
  const auto kThreads = {1., 2., 2., 4., 8., 16.};
  const double tile_flops = 2.0 * double(ceil_div(p.m, p.row_tiles)) * double(p.width) * double(p.k);
  const double tile_ns = tile_flops / p.flops_per_ns();
  const int64_t depth = std::max<int64_t>(1, p.depth);
  const int64_t max_cols = std::clamp<int64_t>(p.model.l2 / 2 / (depth * p.width * 4), 1, 64);
  // Units that take all rows pack their own part of B, which stays in their L2; a large B that several units share is read once more from a farther cache.
  const double b_bytes = double(p.n) * double(p.k) * 4;
  const double shared_ns = packs_b && b_bytes > double(p.model.l2) ? double(p.batch) * b_bytes * p.model.read_ns : 0;
  constexpr int64_t kMaxRows = 16;  // or all, if there are few
  const int64_t last_rows = p.m <= kFewRows ? p.row_tiles : std::min(kMaxRows, p.row_tiles), first_rows = p.all_rows ? last_rows : 1;
  double best = std::numeric_limits<double>::infinity();
  for (int64_t rows = first_rows, last_rb = 0; rows <= last_rows; rows = rows < kMaxRows ? rows + 1 : std::max(rows + 1, last_rows)) {
    const int64_t rb = ceil_div(p.row_tiles, rows);
    if (rb == last_rb) continue;  // the same split
    last_rb = rb;
    for (int64_t cols = 1, last_cb = 0; cols <= std::min(max_cols, p.col_tiles); ++cols) {
      const int64_t cb = ceil_div(p.col_tiles, cols);
      if (cb == last_cb) continue;
      last_cb = cb;
      // Use the sizes after the even split.
      const double r = double(ceil_div(p.row_tiles, rb)), c = double(ceil_div(p.col_tiles, cb));
      const double reads = (r * double(ceil_div(p.m, p.row_tiles)) + c * double(p.width)) * double(p.k) * 4;
      const double unit = r * c * tile_ns + reads * p.model.read_ns + p.model.unit_ns;
      double cost = rb > 1 ? shared_ns * double(kThreads.size()) : 0;
      for (double threads : kThreads) cost += std::max(1., std::ceil(double(rb * cb * p.batch) / threads)) * unit * threads;
      if (cost < best) best = cost, p.row_blocks = rb, p.col_blocks = cb;
    }
  }
}

// Units are ordered by bands of rows. Threads take consecutive units, so each thread keeps the rows that it wrote and will read again in the next kernel, and
// they need not be fetched from another core. A band reads all of B; if B does not fit in L2, bands get more rows.
int64_t choose_band(const Plan& p) {
  if (p.variant.band != KernelVariant::Band::model) return p.variant.band == KernelVariant::Band::one ? 1 : p.row_blocks;
  constexpr int64_t kRows = 512;
  if (p.k * p.n * 4 <= p.model.l2 / 2) return 1;
  return std::min(p.row_blocks, ceil_div(kRows * p.row_blocks, p.m));
}

// A unit's tiles as a variant wants them: half as many, or twice.
void change_units(Plan& p) {
  const auto blocks = [](int64_t now, int change, int64_t tiles) { return change < 0 ? std::min(tiles, now << -change) : ceil_div(now, int64_t(1) << change); };
  p.row_blocks = blocks(p.row_blocks, p.variant.unit_rows, p.row_tiles);
  p.col_blocks = blocks(p.col_blocks, p.variant.unit_columns, p.col_tiles);
}

// An operand that is packed is packed once if several units read it.
void change_feeds(Plan& p, bool a_can_be_direct, bool b_can_be_direct) {
  const auto feed = [](KernelVariant::Feed wanted, Feed now, bool can_be_direct, bool shared) {
    if (wanted == KernelVariant::Feed::direct) return can_be_direct ? Feed::direct : now;
    return wanted == KernelVariant::Feed::packed ? (shared ? Feed::shared : Feed::unit) : now;
  };
  p.a_feed = feed(p.variant.a, p.a_feed, a_can_be_direct, p.col_blocks > 1);
  p.b_feed = feed(p.variant.b, p.b_feed, b_can_be_direct, p.row_blocks > 1);
}

bool contiguous(const IndexMap& map, int64_t size) { return map.map.regular() && (map.map.stride == 1 || size == 1); }

// Units of small products start at cache line boundaries of C.
constexpr int64_t kSmallColumns = 16;
int64_t small_begin(const Plan& p, int64_t block) { return std::min(p.n, part_begin(ceil_div(p.n, kSmallColumns), p.col_blocks, block) * kSmallColumns); }

void plan_small(Plan& p) {
  const bool a_direct = p.a_type == DType::f32 && contiguous(p.a_k, p.k) && p.a_m.map.regular();
  // Columns per unit: enough bytes of B to be worth a thread, and ranges of B's rows long enough for the prefetchers.
  const int64_t want = std::max<int64_t>(1, (int64_t(1) << 14) / std::max<int64_t>(1, p.k));
  const int64_t grain = p.shape == Shape::by_row ? 512 : a_direct || (p.m == 1 && contiguous(p.a_k, p.k)) ? kSmallColumns : 256;
  const int64_t step = ceil_div(want, grain) * grain;
  p.col_blocks = ceil_div(p.n, step);
  p.strip = p.epilogue || p.c_type != DType::f32 || !contiguous(p.c_n, p.n) || !p.c_m.map.regular();
  p.a_feed = a_direct ? Feed::direct : Feed::unit;
  p.b_feed = Feed::direct;
  p.scratch_strip = a_direct ? 0 : align64(p.m * p.k * 4);
  p.scratch_end = p.scratch_strip + (p.strip ? align64(p.m * ceil_div(ceil_div(p.n, kSmallColumns), p.col_blocks) * kSmallColumns * 4) : 0);
}

void plan_tiles(Plan& p) {
  const MatmulKernels& kernels = *p.kernels;
  p.width = int64_t(kernels.lanes) * kernels.tile_vectors;
  p.row_tiles = p.row_at.empty() ? ceil_div(p.m, kernels.tile_rows) : int64_t(p.row_at.size()) - 1;
  p.col_tiles = ceil_div(p.n, p.width);
  const int64_t grain = kernels.k_grain, grains = ceil_div(p.k, grain);
  const int64_t longest = kernels.depth ? std::min(kernels.depth, p.model.depth) : p.model.depth;
  p.depth_blocks = std::max<int64_t>(1, ceil_div(grains, std::max<int64_t>(1, longest / grain)));
  p.depth = std::min(p.k, ceil_div(grains, p.depth_blocks) * grain);
  const bool c_plain = !p.epilogue && contiguous(p.c_n, p.n) && p.c_m.map.regular();
  p.narrows = c_plain && p.c_type == DType::bf16 && kernels.writes_bf16;
  p.strip = !c_plain || (p.c_type != DType::f32 && !(p.narrows && p.depth_blocks == 1));

  // Rows of A with contiguous K are rows of pairs if each row starts with a whole pair.
  const bool a_of_pairs = p.per_k == 2 && contiguous(p.a_k, p.k_size) && p.k_size % 2 == 0 && p.a_m.map.stride % 2 == 0;
  const bool a_plain = (p.a_type == DType::f32 || a_of_pairs) && p.a_m.map.regular() && p.a_k.map.regular();
  const bool a_rows_direct = a_plain && contiguous(p.a_k, p.k_size) && rows_spread(p.a_m.map.stride / p.per_k, kernels.tile_rows);
  const bool a_cols_direct = a_plain && p.per_k == 1 && contiguous(p.a_m, p.m) && ways_of_l2(p.a_k.map.stride, p.depth, 1) <= 4;
  const bool b_direct = p.b_type == DType::f32 && contiguous(p.b_n, p.n) && p.b_k.map.regular() && p.n % kernels.lanes == 0;
  const double flops = 2.0 * double(p.m) * double(p.n) * double(p.k);
  if (!p.tile_at.empty()) {
    p.a_feed = a_plain && (a_rows_direct || a_cols_direct) ? Feed::direct : Feed::unit;
    p.b_feed = Feed::shared;
  } else if (flops <= p.model.tiny_flops && p.n * std::min(p.depth, p.k) * 4 <= p.model.l2 && p.row_tiles <= 64) {
    p.row_blocks = p.col_blocks = 1;
    change_units(p);
    p.a_feed = a_plain ? Feed::direct : Feed::unit;
    p.b_feed = b_direct ? Feed::direct : Feed::unit;
  } else {
    choose_units(p, !b_direct || p.m > kFewRows);
    change_units(p);
    // Packing is worth a pass over the operand only if many units or rows read it.
    const bool a_direct = a_rows_direct || (a_cols_direct && (p.all_rows || p.col_blocks <= 4 || p.m * p.k * 4 <= p.model.l2 / 2));
    const int64_t lines = ceil_div(ceil_div(p.col_tiles, p.col_blocks) * p.width, 16);
    const bool b_spread = p.m <= kFewRows && ways_of_l2(p.b_k.map.stride, p.depth, lines) <= 6;
    p.a_feed = a_direct ? Feed::direct : p.col_blocks > 1 ? Feed::shared : Feed::unit;
    p.b_feed = b_direct && b_spread ? Feed::direct : p.row_blocks > 1 ? Feed::shared : Feed::unit;
  }

  if (p.tile_at.empty()) change_feeds(p, a_plain, b_direct);
  p.band = choose_band(p);

  // An odd number of cache lines between rows spreads them over the sets of L1.
  p.a_by_row = contiguous(p.a_k, p.k_size) || kernels.pack_rows;
  p.a_ld = p.a_by_row ? (ceil_div(p.depth, 16) | 1) * 16 : p.depth;

  // Chunks limit the size of the packed operands. B is packed when the column range changes, A for every chunk.
  p.chunk_batches = p.batch, p.chunk_row_blocks = p.row_blocks, p.chunk_col_blocks = p.col_blocks;
  const double a_bytes = p.a_feed == Feed::shared ? double(p.m) * double(p.a_ld * p.depth_blocks) * 4 : 0;
  const double b_bytes = p.b_feed == Feed::shared ? double(p.col_tiles * p.width) * double(p.k) * 4 : 0;
  const double limit = double(p.model.shared_bytes);
  if (std::max(a_bytes, b_bytes) > 0) {
    p.chunk_batches = std::clamp<int64_t>(int64_t(limit / std::max(a_bytes, b_bytes)), 1, p.batch);
    if (a_bytes > limit) p.chunk_row_blocks = ceil_div(p.row_blocks, int64_t(std::ceil(a_bytes / limit)));
    if (b_bytes > limit) p.chunk_col_blocks = ceil_div(p.col_blocks, int64_t(std::ceil(b_bytes / limit)));
  }
  int64_t block_rows = ceil_div(p.row_tiles, p.row_blocks) * p.tile_rows();
  for (size_t i = 1; i < p.tile_at.size(); ++i) block_rows = std::max(block_rows, p.row_begin(p.tile_at[i]) - p.row_begin(p.tile_at[i - 1]));
  const int64_t block_cols = ceil_div(p.col_tiles, p.col_blocks) * p.width;
  if (p.a_feed == Feed::shared) p.workspace_b = align64(p.chunk_batches * std::min(p.m, p.chunk_row_blocks * block_rows) * p.a_ld * p.depth_blocks * 4);
  p.workspace_end = p.workspace_b;
  if (p.b_feed == Feed::shared) p.workspace_end += align64(p.chunk_batches * std::min(p.col_tiles * p.width, p.chunk_col_blocks * block_cols) * p.k * 4);

  p.scratch_b = p.a_feed == Feed::unit ? align64(p.tile_rows() * p.a_ld * 4) : 0;
  p.scratch_strip = p.scratch_b + (p.b_feed == Feed::unit ? align64(block_cols * p.depth * 4) : 0);
  const int64_t strip_rows = p.depth_blocks > 1 ? block_rows : p.tile_rows();
  p.scratch_end = p.scratch_strip + (p.strip ? align64(strip_rows * block_cols * 4) : 0);
}

// ---- running

struct Chunk;

// A plan with addresses and the epilogue.
struct Bound {
  Plan plan;
  Ref a, b, c, workspace;
  MatmulEpilogue epilogue;
};

struct Chunk {
  const Bound* bound = nullptr;
  int64_t batch = 0, batches = 0;
  int64_t row_block = 0, row_blocks = 0;
  int64_t col_block = 0, col_blocks = 0;
  bool pack_a = false, pack_b = false;
  // Computed once from the above.
  int64_t row_tile = 0, row_tiles = 0, col_tile = 0, col_tiles = 0;
};

const std::byte* element(const std::byte* base, DType type, int64_t offset) { return base + offset * size_of(type); }

// Stores finished sums [rows, cols], or passes them to the epilogue.
void finish(const Bound& bound, Worker& worker, int64_t batch, int64_t c_offset, int64_t row, int64_t rows, int64_t col, int64_t cols, const float* acc,
            int64_t ld) {
  const Plan& p = bound.plan;
  if (p.epilogue) {
    std::byte* const scratch = worker.scratch;
    worker.scratch = scratch + p.scratch_end;
    // With an epilogue, only a single column is swapped: an epilogue takes its sums as one row.
    if (float column[kMaxTileRows]; !p.swapped && p.n == 1 && rows > 1) {
      for (int64_t r = 0; r < rows; ++r) column[r] = acc[r * ld];
      bound.epilogue.run(bound.epilogue.context, worker, batch, row, rows, col, cols, column, 1);
    } else if (p.swapped)
      bound.epilogue.run(bound.epilogue.context, worker, batch, col, cols, row, rows, acc, 1);
    else
      bound.epilogue.run(bound.epilogue.context, worker, batch, row, rows, col, cols, acc, ld);
    worker.scratch = scratch;
    return;
  }
  std::byte* const base = worker.at<std::byte>(bound.c);
  const int type = storage_index(p.c_type);
  for (int64_t r = 0; r < rows; ++r, acc += ld) {
    const int64_t at = c_offset + p.c_m.map(row + r);
    if (contiguous(p.c_n, p.n)) {
      std::byte* dst = base + (at + col) * size_of(p.c_type);
      if (p.accumulate)
        p.kernels->add(acc, reinterpret_cast<float*>(dst), cols);
      else
        p.kernels->store[type](acc, dst, cols);
      continue;
    }
    for (int64_t j = 0; j < cols; ++j) {
      const int64_t to = at + p.c_n.map(col + j);
      if (p.c_type != DType::f32)
        p.kernels->store[type](acc + j, base + to * size_of(p.c_type), 1);
      else
        reinterpret_cast<float*>(base)[to] = p.accumulate ? reinterpret_cast<float*>(base)[to] + acc[j] : acc[j];
    }
  }
}

// Part of the K dimension.
struct Depth {
  int64_t begin, size;
};

Depth depth_block(const Plan& p, int64_t kb) { return {p.depth_begin(kb), p.depth_begin(kb + 1) - p.depth_begin(kb)}; }

// Packs a tile's rows, for all or part of one K block.
void pack_rows_of_a(const Plan& p, const std::byte* a, int64_t row, int64_t rows, Depth d, float* dst) {
  const int64_t first = d.begin * p.per_k, size = p.k_elements(d.begin, d.size);
  const int type = storage_index(p.a_type);
  if (p.a_by_row && !contiguous(p.a_k, p.k_size)) {
    p.kernels->pack_rows({a, p.a_m.map, p.a_k.map, row, first, rows, p.a_ld, d.size, dst, size});
  } else if (p.a_by_row) {
    for (int64_t r = 0; r < rows; ++r) p.kernels->widen[type](element(a, p.a_type, p.a_m.map(row + r) + first), dst + r * p.a_ld, size);
  } else {
    p.kernels->pack[type]({a, p.a_m.map, p.a_k.map, row, first, rows, rows, d.size, dst, size});
  }
}

void pack_cols_of_b(const Plan& p, const std::byte* b, int64_t tile, Depth d, float* dst) {
  const int64_t first = d.begin * p.per_k, size = p.k_elements(d.begin, d.size);
  p.kernels->pack[storage_index(p.b_type)]({b, p.b_n.map, p.b_k.map, tile * p.width, first, p.tile_cols(tile), p.tile_width(tile), d.size, dst, size});
}

// Shared panels are ordered by batch, then K block, then tile, so that a unit reads contiguous memory.
float* shared_a(const Chunk& c, Worker& w, int64_t batch, int64_t kb, int64_t tile) {
  const Plan& p = c.bound->plan;
  const int64_t first = p.row_begin(c.row_tile), rows = p.row_begin(c.row_tile + c.row_tiles) - first;
  return w.at<float>(c.bound->workspace) + (((batch - c.batch) * p.depth_blocks + kb) * rows + p.row_begin(tile) - first) * p.a_ld;
}

float* shared_b(const Chunk& c, Worker& w, int64_t batch, int64_t kb, int64_t tile) {
  const Plan& p = c.bound->plan;
  float* base = w.at<float>({c.bound->workspace.base, c.bound->workspace.offset + p.workspace_b});
  const int64_t k = p.depth_begin(kb), depth = p.depth_begin(kb + 1) - k;
  return base + ((batch - c.batch) * p.k + k) * c.col_tiles * p.width + (tile - c.col_tile) * p.width * depth;
}

// An operand whose rows along K are contiguous is packed a few rows at a time, through all tiles: they are read in memory order, probably by the thread that
// wrote them. Other operands are packed tile by tile.
constexpr int64_t kSliceRows = 16;
bool a_in_slices(const Plan& p) { return !contiguous(p.a_k, p.k_size) && contiguous(p.a_m, p.m); }
bool b_in_slices(const Plan& p) { return contiguous(p.b_n, p.n) && !contiguous(p.b_k, p.k_size); }
int64_t slices(const Plan& p) { return p.depth_blocks * ceil_div(p.depth, kSliceRows); }
int64_t a_pack_units(const Chunk& c) { return !c.pack_a ? 0 : a_in_slices(c.bound->plan) ? slices(c.bound->plan) : c.row_tiles; }
int64_t b_pack_units(const Chunk& c) { return !c.pack_b ? 0 : b_in_slices(c.bound->plan) ? slices(c.bound->plan) : c.col_tiles; }

// The part of one K block that a unit packs.
struct Slice {
  int64_t kb = 0, skip = 0;  // the K block, and what is before the part
  Depth part{0, 0};
};

Slice slice_of(const Plan& p, int64_t unit) {
  const int64_t per_block = ceil_div(p.depth, kSliceRows), kb = unit / per_block, skip = unit % per_block * kSliceRows;
  const Depth whole = depth_block(p, kb);
  return {kb, skip, {whole.begin + skip, std::max<int64_t>(0, std::min(kSliceRows, whole.size - skip))}};
}

void pack_a(const Chunk& c, Worker& worker, const std::byte* a, int64_t batch, int64_t unit) {
  const Plan& p = c.bound->plan;
  if (!a_in_slices(p)) {
    const int64_t tile = c.row_tile + unit, row = p.row_begin(tile), rows = p.row_begin(tile + 1) - row;
    for (int64_t kb = 0; kb < p.depth_blocks; ++kb) pack_rows_of_a(p, a, row, rows, depth_block(p, kb), shared_a(c, worker, batch, kb, tile));
    return;
  }
  const Slice s = slice_of(p, unit);
  if (s.part.size == 0) return;
  float* panel = shared_a(c, worker, batch, s.kb, c.row_tile);
  for (int64_t tile = c.row_tile, row = p.row_begin(tile); tile < c.row_tile + c.row_tiles; ++tile) {
    const int64_t rows = p.row_begin(tile + 1) - row;
    pack_rows_of_a(p, a, row, rows, s.part, panel + s.skip * (p.a_by_row ? 1 : rows));
    row += rows, panel += rows * p.a_ld;
  }
}

void pack_b(const Chunk& c, Worker& worker, const std::byte* b, int64_t batch, int64_t unit) {
  const Plan& p = c.bound->plan;
  if (!b_in_slices(p)) {
    for (int64_t kb = 0, tile = c.col_tile + unit; kb < p.depth_blocks; ++kb)
      pack_cols_of_b(p, b, tile, depth_block(p, kb), shared_b(c, worker, batch, kb, tile));
    return;
  }
  const Slice s = slice_of(p, unit);
  if (s.part.size == 0) return;
  const int64_t panel = p.width * depth_block(p, s.kb).size;
  float* to = shared_b(c, worker, batch, s.kb, c.col_tile);
  for (int64_t tile = c.col_tile; tile < c.col_tile + c.col_tiles; ++tile, to += panel) pack_cols_of_b(p, b, tile, s.part, to + s.skip * p.tile_width(tile));
}

void run_pack(const void* args, int64_t begin, int64_t end, Worker& worker) {
  const Chunk& c = *static_cast<const Chunk*>(args);
  const Plan& p = c.bound->plan;
  const int64_t a_units = a_pack_units(c), b_units = b_pack_units(c);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t batch = c.batch + unit / (a_units + b_units), i = unit % (a_units + b_units);
    const BatchOffsets at = batch_offsets(p, batch);
    if (i < b_units)
      pack_b(c, worker, element(worker.at<std::byte>(c.bound->b), p.b_type, at.b), batch, i);
    else
      pack_a(c, worker, element(worker.at<std::byte>(c.bound->a), p.a_type, at.a), batch, i - b_units);
  }
}

void run_tile_unit(const Chunk& c, int64_t unit, Worker& worker) {
  const Bound& bound = *c.bound;
  const Plan& p = bound.plan;
  const MatmulKernels& kernels = *p.kernels;
  const int64_t batch = c.batch + unit / (c.row_blocks * c.col_blocks), of_batch = unit % (c.row_blocks * c.col_blocks);
  const int64_t first = of_batch / (p.band * c.col_blocks) * p.band, of_band = of_batch - first * c.col_blocks;
  const int64_t band = std::min(p.band, c.row_blocks - first), rb = c.row_block + first + of_band % band, cb = c.col_block + of_band / band;
  const BatchOffsets at = batch_offsets(p, batch);
  const std::byte* a = element(worker.at<std::byte>(bound.a), p.a_type, at.a);
  const std::byte* b = element(worker.at<std::byte>(bound.b), p.b_type, at.b);
  const int64_t t0 = p.row_block(rb), t1 = p.row_block(rb + 1), j0 = p.col_block(cb), j1 = p.col_block(cb + 1);
  const int64_t row0 = p.row_begin(t0), col0 = j0 * p.width, cols = std::min(p.n, j1 * p.width) - col0;
  float* const a_scratch = reinterpret_cast<float*>(worker.scratch);
  float* const b_scratch = reinterpret_cast<float*>(worker.scratch + p.scratch_b);
  float* const strip = reinterpret_cast<float*>(worker.scratch + p.scratch_strip);
  const int64_t strip_ld = (j1 - j0) * p.width;
  constexpr int64_t kFetchDepth = 64;  // shorter sums finish before memory responds
  const auto fetch = p.swapped || p.depth < kFetchDepth ? nullptr : bound.epilogue.fetch;
  float* const c_base = p.strip || p.narrows ? nullptr : worker.at<float>(bound.c) + at.c + col0;

  const int64_t full = p.width, last_width = p.tile_width(j1 - 1), last_cols = p.tile_cols(j1 - 1), last_vectors = last_width / kernels.lanes;
  for (int64_t kb = 0; kb < p.depth_blocks; ++kb) {
    const int64_t k0 = p.depth_begin(kb), depth = p.depth_begin(kb + 1) - k0;
    const bool last = kb + 1 == p.depth_blocks;
    if (p.b_feed == Feed::unit)
      for (int64_t j = j0; j < j1; ++j) pack_cols_of_b(p, b, j, {k0, depth}, b_scratch + (j - j0) * full * depth);
    TileArgs tile;
    tile.k = depth;
    tile.add = kb > 0 || (p.accumulate && !p.strip);
    tile.c_row = p.strip ? strip_ld : p.c_m.map.stride;
    const float* const shared = p.a_feed == Feed::shared ? shared_a(c, worker, batch, kb, t0) : nullptr;
    const float* b_panel = b_scratch;
    if (p.b_feed == Feed::direct) b_panel = reinterpret_cast<const float*>(b) + col0 + k0 * p.b_k.map.stride;
    if (p.b_feed == Feed::shared) b_panel = shared_b(c, worker, batch, kb, j0);
    const int64_t b_step = p.b_feed == Feed::direct ? full : full * depth;
    for (int64_t t = t0, row = row0, next; t < t1; ++t, row = next) {
      next = p.row_begin(t + 1);
      const int64_t rows = next - row;
      tile.rows = rows;
      if (p.a_feed == Feed::direct) {
        tile.a_row = p.a_m.map.stride / p.per_k, tile.a_k = p.per_k == 2 ? 1 : p.a_k.map.stride;
        tile.a = reinterpret_cast<const float*>(a) + row * tile.a_row + k0 * tile.a_k;
      } else {
        tile.a_row = p.a_by_row ? p.a_ld : 1, tile.a_k = p.a_by_row ? 1 : rows;
        tile.a = p.a_feed == Feed::unit ? a_scratch : shared + (row - row0) * p.a_ld;
        if (p.a_feed == Feed::unit) pack_rows_of_a(p, a, row, rows, {k0, depth}, a_scratch);
      }
      const TileFn* fn = tile.a_row == 1 ? kernels.packed[rows] : kernels.strided[rows];
      float* const out = p.strip ? strip + (p.depth_blocks > 1 ? row - row0 : 0) * strip_ld : p.narrows ? nullptr : c_base + p.c_m.map(row);
      const bool narrow = last && p.narrows;
      uint16_t* const c_row = narrow ? worker.at<uint16_t>(bound.c) + at.c + p.c_m.map(row) + col0 : nullptr;
      tile.out_row = p.c_m.map.stride;
      for (int64_t j = 0; j < j1 - j0; ++j) {
        const bool ends = j0 + j + 1 == j1;
        const int64_t width = ends ? last_width : full;
        tile.b = b_panel + j * b_step;
        tile.b_k = p.b_feed == Feed::direct ? p.b_k.map.stride : width;
        tile.c = out ? out + j * full : nullptr;
        tile.out = narrow ? c_row + j * full : nullptr;
        tile.cols = p.strip && !narrow ? width : ends ? last_cols : full;
        if (last && fetch) fetch(bound.epilogue.context, worker, batch, row, rows, col0 + j * full, ends ? last_cols : full);
        fn[ends ? last_vectors : kernels.tile_vectors](tile);
      }
      if (last && p.strip && !narrow) finish(bound, worker, batch, at.c, row, rows, col0, cols, out, strip_ld);
    }
  }
}

void run_tiles(const void* args, int64_t begin, int64_t end, Worker& worker) {
  const Chunk& chunk = *static_cast<const Chunk*>(args);
  for (int64_t unit = begin; unit < end; ++unit) run_tile_unit(chunk, unit, worker);
  if (const auto release = chunk.bound->plan.kernels->release) release();
}

void run_small(const void* args, int64_t begin, int64_t end, Worker& worker) {
  const Bound& bound = *static_cast<const Chunk*>(args)->bound;
  const Plan& p = bound.plan;
  float* const a_scratch = reinterpret_cast<float*>(worker.scratch);
  float* const strip = reinterpret_cast<float*>(worker.scratch + p.scratch_strip);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t batch = unit / p.col_blocks, block = unit % p.col_blocks;
    const BatchOffsets at = batch_offsets(p, batch);
    const int64_t col = small_begin(p, block), cols = small_begin(p, block + 1) - col;
    SmallArgs s;
    s.k = p.k, s.rows = p.m, s.cols = cols;
    if (p.a_feed == Feed::direct) {
      s.a = worker.at<float>(bound.a) + at.a;
      s.a_row = p.a_m.map.stride;
    } else {
      const std::byte* a = element(worker.at<std::byte>(bound.a), p.a_type, at.a);
      if (p.m == 1 && contiguous(p.a_k, p.k))
        p.kernels->widen[storage_index(p.a_type)](a, a_scratch, p.k);
      else
        p.kernels->pack[storage_index(p.a_type)]({a, p.a_k.map, p.a_m.map, 0, 0, p.k, p.k, p.m, a_scratch, p.m});  // as [m][k]
      s.a = a_scratch, s.a_row = p.k;
    }
    const bool by_row = p.shape == Shape::by_row;
    s.b_stride = by_row ? p.b_k.map.stride : p.b_n.map.stride;
    s.b = element(worker.at<std::byte>(bound.b), p.b_type, at.b + col * (by_row ? 1 : s.b_stride));
    s.c = p.strip ? strip : worker.at<float>(bound.c) + at.c + col;
    s.c_row = p.strip ? cols : p.c_m.map.stride;
    s.add = p.accumulate && !p.strip;
    (by_row ? p.kernels->by_row : p.kernels->by_dot[storage_index(p.b_type)])(s);
    if (p.strip) finish(bound, worker, batch, at.c, 0, p.m, col, cols, strip, cols);
  }
}

class PackedMatmul final : public MatmulKernel {
 public:
  explicit PackedMatmul(Plan plan) {
    bound_.plan = std::move(plan);
    const Plan& p = bound_.plan;
    if (p.batch == 0 || p.m == 0 || p.n == 0 || (p.k == 0 && p.accumulate)) return;
    if (p.shape != Shape::tiles) {
      chunks_.push_back({.bound = &bound_, .batches = p.batch});
      return;
    }
    for (int64_t batch = 0; batch < p.batch; batch += p.chunk_batches)
      for (int64_t col = 0; col < p.col_blocks; col += p.chunk_col_blocks)
        for (int64_t row = 0; row < p.row_blocks; row += p.chunk_row_blocks) add_chunk(batch, row, col);
  }

  int64_t workspace_bytes() const override { return bound_.plan.workspace_end; }
  int64_t scratch_bytes() const override { return bound_.plan.scratch_end + bound_.plan.epilogue_scratch; }
  void set_epilogue(MatmulEpilogue epilogue) override { bound_.epilogue = epilogue; }

  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    const Plan& p = bound_.plan;
    const size_t wanted = p.epilogue ? 2 : 3;
    if (operands.size() < wanted) fail(ErrorCode::binding, "[matmul] {} operands bound, {} needed: A, B{}", operands.size(), wanted, p.epilogue ? "" : ", C");
    if (p.epilogue && !bound_.epilogue.run) fail(ErrorCode::binding, "[matmul] planned with an epilogue but none is set; call set_epilogue before bind");
    bound_.a = operands[0], bound_.b = operands[1], bound_.workspace = workspace;
    if (p.swapped) std::swap(bound_.a, bound_.b);
    if (!p.epilogue) bound_.c = operands[2];
    for (const Chunk& c : chunks_) {
      if (p.shape != Shape::tiles) {
        const double elements = double(p.n) * double(p.k) / double(p.col_blocks);
        const double ns = std::max(elements * double(size_of(p.b_type)) * p.model.read_ns / 2, elements * double(p.m) * 2 / p.flops_per_ns());
        tasks.push_back({run_small, &c, p.batch * p.col_blocks, 20 + ns});
        continue;
      }
      if (const int64_t units = a_pack_units(c) + b_pack_units(c)) {
        const double elements =
            double(p.k) * ((c.pack_a ? double(p.m) * double(c.row_tiles) / double(p.row_tiles) : 0) + (c.pack_b ? double(c.col_tiles * p.width) : 0));
        tasks.push_back({run_pack, &c, units * c.batches, elements * p.model.pack_ns / double(units)});
      }
      const double flops = 2.0 * double(p.m) * double(p.n) * double(p.k) / double(p.row_blocks) / double(p.col_blocks);
      tasks.push_back({run_tiles, &c, c.batches * c.row_blocks * c.col_blocks, 30 + flops / p.flops_per_ns()});
    }
  }

 private:
  void add_chunk(int64_t batch, int64_t row, int64_t col) {
    const Plan& p = bound_.plan;
    Chunk c{.bound = &bound_, .batch = batch, .row_block = row, .col_block = col};
    c.batches = std::min(p.chunk_batches, p.batch - batch);
    c.row_blocks = std::min(p.chunk_row_blocks, p.row_blocks - row);
    c.col_blocks = std::min(p.chunk_col_blocks, p.col_blocks - col);
    c.row_tile = p.row_block(row), c.row_tiles = p.row_block(row + c.row_blocks) - c.row_tile;
    c.col_tile = p.col_block(col), c.col_tiles = p.col_block(col + c.col_blocks) - c.col_tile;
    c.pack_a = p.a_feed == Feed::shared;
    c.pack_b = p.b_feed == Feed::shared && row == 0;
    chunks_.push_back(c);
  }

  Bound bound_;
  std::vector<Chunk> chunks_;
};

void check_loops(const MatmulDesc& d) {
  for (const MatmulLoop& loop : d.m)
    if (loop.b) fail(ErrorCode::shape, "[matmul] an m loop has stride {} in B; make it a batch loop", loop.b);
  for (const MatmulLoop& loop : d.n)
    if (loop.a) fail(ErrorCode::shape, "[matmul] an n loop has stride {} in A; make it a batch loop", loop.a);
  for (const MatmulLoop& loop : d.k)
    if (loop.c) fail(ErrorCode::shape, "[matmul] a k loop has stride {} in C; make it an m, n or batch loop", loop.c);
  for (DType t : {d.a_type, d.b_type, d.c_type})
    if (storage_index(t) < 0) fail(ErrorCode::dtype, "[matmul] operands are f32, bf16 or f16, not {}; cast first", name(t));
  if (d.accumulate && d.c_type != DType::f32) fail(ErrorCode::dtype, "[matmul] accumulates into f32 only, not {}; cast after the sum", name(d.c_type));
  if (d.accumulate && d.epilogue_scratch >= 0) fail(ErrorCode::unsupported, "[matmul] accumulate with an epilogue; let the epilogue add");
}

}  // namespace

std::unique_ptr<MatmulKernel> make_matmul(const MatmulDesc& desc, const KernelVariant& variant) { return make_matmul_for(desc, isa_tier(), {}, variant); }

std::unique_ptr<MatmulKernel> make_matmul_for(const MatmulDesc& desc, IsaTier tier, const MatmulModel& model, const KernelVariant& variant) {
  check_loops(desc);
  MatmulDesc d = desc;
  Plan p;
  p.model = model, p.variant = variant;
  if (variant.depth > 0) p.model.depth = variant.depth;
  p.kernels = &matmul_kernels(tier);
  p.epilogue = d.epilogue_scratch >= 0;
  p.epilogue_scratch = p.epilogue ? align64(d.epilogue_scratch) : 0;
  p.accumulate = d.accumulate;
  p.batch = checked_size(d.batch, "batch");
  p.m = checked_size(d.m, "m"), p.n = checked_size(d.n, "n"), p.k = checked_size(d.k, "k");

  // Batches that share B are additional rows of the same product.
  if (!p.epilogue && d.row_blocks.empty() && p.batch > 1 && p.k > 0 &&
      std::all_of(d.batch.begin(), d.batch.end(), [](const MatmulLoop& l) { return l.b == 0 || l.size == 1; })) {
    for (MatmulLoop& loop : d.batch) loop.b = 0;
    d.m.insert(d.m.begin(), d.batch.begin(), d.batch.end());
    d.batch.clear();
    p.m *= p.batch, p.batch = 1;
  }
  // Uses the transposed product if that makes C's rows contiguous or leaves few rows, unless the packed operand would then be B whose columns are scattered.
  // Long sums of which A is wider than B (dW) also use it: the wider operand is then packed in wide panels, by the only unit that reads them.
  const IndexMap a_rows(d.m, &MatmulLoop::a), a_depth(d.k, &MatmulLoop::a), b_cols(d.n, &MatmulLoop::b);
  const IndexMap c_rows(d.m, &MatmulLoop::c), c_cols(d.n, &MatmulLoop::c);
  const bool columns_contiguous = !contiguous(c_cols, p.n) && contiguous(c_rows, p.m);
  const auto few = [&](int64_t rows, int64_t cols) { return rows < cols && (rows <= 4 || (rows <= model.few_rows && cols * p.k > 16384)); };
  const bool scattered = !a_rows.map.regular() && contiguous(a_depth, p.k) && contiguous(c_cols, p.n);
  const bool by_depth = contiguous(a_rows, p.m) && contiguous(b_cols, p.n) && !contiguous(a_depth, p.k) && d.a_type == DType::f32 && d.b_type == DType::f32;
  p.all_rows = d.row_blocks.empty() && !p.epilogue && by_depth && p.n >= 32 && p.n <= kFewRows && p.m >= 2 * p.n && p.k >= 16 * p.n && p.m * p.k * 4 > model.l2;
  const bool narrow = few(p.n, p.m) && !scattered;
  p.swapped = d.row_blocks.empty() && (p.epilogue ? p.n == 1 && p.m > 1 : narrow || (columns_contiguous && !few(p.m, p.n)) || p.all_rows);
  if (variant.transposed && d.row_blocks.empty() && !p.epilogue) p.swapped = !p.swapped, p.all_rows = false;
  if (p.swapped) {
    std::swap(d.m, d.n);
    std::swap(p.m, p.n);
    std::swap(d.a_type, d.b_type);
    for (auto* loops : {&d.batch, &d.m, &d.n, &d.k})
      for (MatmulLoop& loop : *loops) std::swap(loop.a, loop.b);
  }
  p.a_type = d.a_type, p.b_type = d.b_type, p.c_type = d.c_type;
  p.batch_loops = d.batch;
  if (p.batch == 0 || p.m == 0 || p.n == 0) return std::make_unique<PackedMatmul>(std::move(p));
  p.a_m = IndexMap(d.m, &MatmulLoop::a), p.a_k = IndexMap(d.k, &MatmulLoop::a);
  p.b_n = IndexMap(d.n, &MatmulLoop::b), p.b_k = IndexMap(d.k, &MatmulLoop::b);
  p.c_m = IndexMap(d.m, &MatmulLoop::c), p.c_n = IndexMap(d.n, &MatmulLoop::c);

  const bool plain_b = p.b_n.map.regular() && p.b_k.map.regular();
  if (d.row_blocks.empty() && variant.few_rows && p.k > 0 && plain_b && (few(p.m, p.n) || p.m <= 4)) {
    if (contiguous(p.b_n, p.n) && p.b_type == DType::f32)
      p.shape = Shape::by_row;
    else if (contiguous(p.b_k, p.k))
      p.shape = Shape::by_dot;
  }
  p.k_size = p.k;
  if (p.shape == Shape::tiles && variant.pairs && p.a_type == DType::bf16 && p.b_type == DType::bf16)
    if (const MatmulKernels* pairs = unit_kernels(tier) ? unit_kernels(tier) : pair_kernels(tier)) p.kernels = pairs, p.per_k = 2, p.k = ceil_div(p.k, 2);
  for (size_t i = 0; i + 1 < d.row_blocks.size(); ++i) {
    const int64_t first = d.row_blocks[i], rows = d.row_blocks[i + 1] - first, tiles = ceil_div(rows, p.kernels->tile_rows);
    p.tile_at.push_back(int64_t(p.row_at.size()));
    for (int64_t t = 0; t < tiles; ++t) p.row_at.push_back(first + part_begin(rows, tiles, t));
  }
  if (!d.row_blocks.empty()) p.tile_at.push_back(int64_t(p.row_at.size())), p.row_at.push_back(p.m), p.row_blocks = int64_t(p.tile_at.size()) - 1;
  if (p.shape == Shape::tiles)
    plan_tiles(p);
  else
    plan_small(p);
  return std::make_unique<PackedMatmul>(std::move(p));
}

}  // namespace ridge::cpu
