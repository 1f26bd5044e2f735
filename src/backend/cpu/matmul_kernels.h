// The vector kernels of the matmul, one table per instruction tier: micro-tiles, packing, small-M products, stores.
#pragma once
#include <cstdint>

#include "backend/cpu/matmul.h"
#include "machine/features.h"
#include "ridge/dtype.h"

namespace ridge::cpu {

// The element offset of an index: a single stride if the loops collapse, otherwise a table.
struct OffsetMap {
  const int64_t* table = nullptr;
  int64_t stride = 0;
  int64_t operator()(int64_t i) const { return table ? table[i] : i * stride; }
  bool regular() const { return !table; }
};

// One register tile: C[rows, cols] = or += sum over k of A[rows, k] * B[k, cols]. The function determines the number of rows and vectors.
struct TileArgs {
  const float* a = nullptr;
  int64_t a_row = 0, a_k = 0;  // strides of A; packed functions take adjacent rows
  const float* b = nullptr;
  int64_t b_k = 0;  // stride between rows of B
  float* c = nullptr;
  int64_t c_row = 0;
  int64_t k = 0;
  // K may be several stretches of k steps each (the rows of a convolution's window): where A of each begins, in elements. B continues.
  const int64_t* stretch_at = nullptr;
  int64_t stretches = 1;
  int64_t cols = 0;  // live columns, at most vectors * lanes
  int64_t rows = 0;  // live rows, which the function implies unless it is for matrix units
  bool add = false;  // add to C
  // If not null, results are written here as bf16 instead of to C; only kernels with `writes_bf16`.
  void* out = nullptr;
  int64_t out_row = 0;
};
using TileFn = void (*)(const TileArgs&);

// Packs a panel [k][width] of f32, or of pairs of bf16, from any layout; columns from `live` to `width` become zero.
struct PackArgs {
  const void* src = nullptr;  // element (0, 0) of the panel at k = 0
  OffsetMap column, k;
  int64_t first_column = 0, first_k = 0;   // indices into the maps
  int64_t live = 0, width = 0, depth = 0;  // depth of the panel
  float* dst = nullptr;
  int64_t k_size = 0;  // pairs: elements along k, two per step of the depth; the last may be missing
};
using PackFn = void (*)(const PackArgs&);

// Few rows of A times B, which is read once, in place.
struct SmallArgs {
  const float* a = nullptr;  // [rows][k] with stride a_row, k contiguous
  int64_t a_row = 0;
  const void* b = nullptr;
  int64_t b_stride = 0;  // by_row: between rows of [k][n]; by_dot: between columns, stored as [n][k]
  float* c = nullptr;
  int64_t c_row = 0;
  int64_t k = 0, rows = 0, cols = 0;
  bool add = false;
};
using SmallFn = void (*)(const SmallArgs&);

inline constexpr int kMaxTileRows = 32, kMaxTileVectors = 3;

// Storage types, in the order f32, bf16, f16.
inline constexpr int kStorageTypes = 3;
constexpr int storage_index(DType t) { return t == DType::f32 ? 0 : t == DType::bf16 ? 1 : t == DType::f16 ? 2 : -1; }

struct MatmulKernels {
  int lanes = 0;            // f32 per vector
  int tile_rows = 0;        // rows in a full tile
  int tile_vectors = 0;     // vectors across a full tile
  int narrow_rows = 0;      // rows in a tile of at most two vectors, which leaves registers for more
  int flops_per_cycle = 0;  // peak of a typical core
  int64_t depth = 0;        // longest K block for these tiles; 0: the model's
  int64_t k_grain = 1;      // steps along K that K blocks are a multiple of
  TileFn packed[kMaxTileRows + 1][kMaxTileVectors + 1] = {};
  TileFn strided[kMaxTileRows + 1][kMaxTileVectors + 1] = {};
  PackFn pack[kStorageTypes] = {};
  PackFn pack_rows = nullptr;                                                 // of bf16, if tiles read A by rows only: as [rows][width], K along rows
  PackFn pack_bytes = nullptr;                                                // of u8
  SmallFn by_row = nullptr;                                                   // B as [k][n], f32
  SmallFn by_dot[kStorageTypes] = {};                                         // B as [n][k]
  void (*widen[kStorageTypes])(const void* src, float* dst, int64_t n) = {};  // contiguous storage to f32
  // Writes n f32 to contiguous storage of a type.
  void (*store[kStorageTypes])(const float* src, void* dst, int64_t n) = {};
  void (*add)(const float* src, float* dst, int64_t n) = nullptr;
  // Rounds n pairs of f32 to pairs of bf16; a null `second` stands for zeros. Only in tables for pairs.
  void (*join)(const float* first, const float* second, float* dst, int64_t n) = nullptr;
  bool writes_bf16 = false;     // tiles can write bf16
  void (*release)() = nullptr;  // called by a thread when its tiles are done; may be null
};

const MatmulKernels& matmul_kernels(IsaTier tier);
// For products of two bf16 operands with a native dot product; null if the tier has none. An element is a pair of neighbours along K.
const MatmulKernels* pair_kernels(IsaTier tier);
// The same on matrix units, which take A by rows; null if the tier has none. On a CPU without them (tests only) they are simulated.
const MatmulKernels* unit_kernels(IsaTier tier);

// The parameters for choosing block sizes. They are constants, so that the order of sums depends only on the shape and the instruction tier.
struct MatmulModel {
  int64_t l2 = 1 << 20;
  int64_t depth = 512;              // longest K block: a tile's part of A fits in L1, a block of B in half of L2
  int64_t shared_bytes = 32 << 20;  // packed A or B of one chunk
  double ghz = 3.5;                 // with the tier's flops per cycle: one core at full speed
  double pack_ns = 0.15;            // per element packed
  double read_ns = 0.04;            // per byte of packed data from the last-level cache
  double unit_ns = 150;             // overhead of starting a unit
  double tiny_flops = 1e6;          // smaller products run as one unit
  int64_t few_rows = 16;            // up to this many rows, packing a large B costs more than it saves
};

// make_matmul with the kernels of a given tier, which this CPU must support, and a given model.
std::unique_ptr<MatmulKernel> make_matmul_for(const MatmulDesc& desc, IsaTier tier, const MatmulModel& model = {}, const KernelVariant& variant = {});

}  // namespace ridge::cpu
