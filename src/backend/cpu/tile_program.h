// The tile interpreter's program: a fused group lowered to instructions over blocks of rows x columns.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "backend/cpu/variant.h"
#include "base/rng.h"
#include "compile/tile_group.h"
#include "threads/task.h"

namespace ridge::cpu {

// Where an operand's block starts; `row` is the distance between its rows in bytes, 0 if all rows are the same.
struct TileSlot {
  std::byte* p = nullptr;
  int64_t row = 0;
};

struct TileFrame {
  TileSlot* slots = nullptr;
  const int64_t* index = nullptr;  // of the block's first point, per axis of the plan
  int64_t reduced_base = 0;        // number of the block's first point within its reduction
  Fault* fault = nullptr;
};

struct TileInstr;
using TileHandler = void (*)(const TileInstr&, const TileFrame&, int64_t rows, int64_t cols);

// The shape of a value within a block: bit 0: it has rows; bit 1: it has columns. A value with rows only is a vector along the rows, so its arithmetic is as
// wide as a block's.
enum TileShape : uint8_t { kScalar = 0, kRows = 1, kColumns = 2, kBlock = 3 };

inline int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// What an instruction with a function of one operand does in the same pass. The bits are set in TileInstr::join.
enum TileJoin : uint8_t {
  kWide = 1,        // a is bf16 in memory
  kRoundStore = 2,  // a is first rounded to bf16, and stored as bf16 at c
  kTimes = 4,       // the result is multiplied by b
  kRoundTimes = 8,  // b is first rounded to bf16
};

struct TileInstr {
  TileHandler run = nullptr;
  uint32_t d = 0, a = 0, b = 0, c = 0, e = 0;  // slots
  const void* aux = nullptr;
  TileShape shape = kScalar;
  bool stream = false;  // writes d with non-temporal stores where it is aligned
  bool narrow = false;  // writes d as bf16; only with TileHandlers::native_bf16
  uint8_t join = 0;
  int64_t ahead = 0;  // distance in bytes to the same place of a in the next block, which the handler prefetches; 0: no prefetch
};

// Values are computed in one of three register types: f32 (also for f16 and bf16), i32 (also for u8 and bool), i64.
enum class TileReg : uint8_t { f32, i32, i64 };
constexpr TileReg reg_of(DType t) { return is_float(t) ? TileReg::f32 : t == DType::i64 ? TileReg::i64 : TileReg::i32; }
constexpr int64_t reg_bytes(TileReg r) { return r == TileReg::i64 ? 8 : 4; }

using TileRectLoad = void (*)(std::byte* dst, int64_t dst_row, const std::byte* src, int64_t src_row, int64_t src_col, int64_t rows, int64_t cols);
// Copies from[index[i]] for i < n, up to an index outside 0 … size - 1; returns how many.
using TileGather = int64_t (*)(const int64_t* index, const float* from, int64_t size, float* to, int64_t n);
using TileRectStore = void (*)(std::byte* dst, int64_t dst_row, int64_t dst_col, const std::byte* src, int64_t src_row, int64_t rows, int64_t cols);

// A load that is more than a pointer: converting, strided, bounded or gathered. a = memory, b = fallback, c = gather index.
struct TileLoad {
  TileRectLoad rect = nullptr;
  int64_t bytes = 4;                       // size of a register element
  int row_axis = -1, col_axis = -1;        // the axes that run along the block's rows and columns
  int64_t row_stride = 0, col_stride = 0;  // in bytes
  struct Bound {
    int axis;
    int64_t low, high;
  };
  std::vector<Bound> bounds;
  TileHandler fill = nullptr;                                         // fills the block with the fallback; null: zeros
  bool gathers = false, gather_wide = false, gather_per_row = false;  // wide: i64 indices; per row: one index per row
  TileGather gather_words = nullptr;                                  // for elements of 4 bytes that need no conversion, side by side; i64 indices
  int64_t gather_stride = 0, gather_size = 0;                         // stride in bytes
};

struct TileStore {
  TileRectStore rect = nullptr;
  int64_t row_stride = 0, col_stride = 0;
};

// Words first … first + n - 1 of a random stream, raw or as f32 in [0, 1).
using TileRandom = void (*)(RandomKey key, uint64_t first, int64_t n, bool uniform, void* out);

// An element index, used as a value, as the counter of random words, or as the position that a failed check reports.
struct TileIndex {
  int64_t offset = 0;
  std::vector<std::pair<int, int64_t>> terms;  // axis, stride
  int64_t row_stride = 0, col_stride = 0;
  uint32_t stream = 0;
  bool uniform = false;
  TileRandom words = nullptr;
  int64_t limit = 0;                   // for a check
  bool wide = false, per_row = false;  // a check's operand: i64, one value per row
};

// One AdamW step; see TilePlanner::find_update. Slots of memory, and slots of single values.
struct TileUpdate {
  std::array<uint32_t, 3> out{};      // parameter, first and second moment
  std::array<uint32_t, 4> in{};       // their previous values, and the gradient
  uint32_t good = 0;                  // a boolean
  std::array<uint32_t, 8> factors{};  // scale, k1, k2, k3, shrink, rate, root, eps
};

enum class TileReduce : uint8_t { sum, max, min, prod, arg_max, arg_min };
inline constexpr int kTileReduces = 6;

// The reduction of a row or column plan: the slots of its running value (and index, for arg_*).
struct TileAccumulator {
  TileReduce op = TileReduce::sum;
  TileReg reg = TileReg::f32;
  uint32_t value = 0, position = 0;  // slots; position only for arg_*
  int64_t identity = 0;              // bits
  int phase = 0;
};

struct TilePlan {
  enum class Form : uint8_t { map, row, column } form = Form::map;

  // Axes of the block grid. row and col span a block; loop holds the other reduced axes, and outer the rest.
  std::vector<int64_t> sizes;
  std::vector<int> outer, loop;
  int row = 0, col = 0;
  int64_t block_rows = 1, block_cols = 1;

  struct Access {
    int operand = -1;
    int64_t offset = 0;                          // bytes
    std::vector<std::pair<int, int64_t>> terms;  // axis, stride in bytes
    int64_t row_stride = 0;                      // bytes
  };
  std::vector<Access> accesses;  // slots 0 … accesses.size() - 1
  struct Ahead {
    uint32_t slot = 0;
    int64_t bytes = 0;  // of a block
    int64_t share = 0;  // prefetched before each instruction: whole cache lines
  };
  std::vector<Ahead> ahead;  // inputs whose next block directly follows the current one in memory
  int accumulator = -1;      // the access that an epilogue's caller sets

  // Slots after the accesses: buffers in scratch, then literals.
  struct Buffer {
    int64_t offset = 0, row = 0;  // bytes
    int64_t kept = 0;             // distance in bytes between steps of the reduction if the buffer spans all of them, else 0
  };
  std::vector<Buffer> buffers;
  std::vector<int64_t> literals;
  int64_t tile_bytes = 0;

  // A row's or column's value that a later phase uses; between tasks it is passed through the workspace.
  struct Carried {
    uint32_t slot = 0;
    int64_t bytes = 4;
    int until = 0;  // the last phase that uses it
  };
  std::vector<TileInstr> outer_pre, block_pre;
  struct Phase {
    std::vector<TileInstr> body, after;
    std::vector<TileAccumulator> sums;
    std::vector<Carried> carried;  // defined by this phase
  };
  std::vector<Phase> phases;

  std::vector<std::unique_ptr<TileLoad>> loads;
  std::vector<std::unique_ptr<TileStore>> stores;
  std::vector<std::unique_ptr<TileIndex>> indices;
  std::vector<std::unique_ptr<TileUpdate>> updates;

  // A reduction is split into chunks of columns (row form) or rows (column form). If there are few rows or columns, the chunks form `parts` shares, whose sums
  // are added up at the end. Both depend only on the shape. A unit takes one share, or, if `whole_rows`, all shares of a row, one after the other.
  int64_t chunks = 1, parts = 1;
  bool whole_rows = false;

  int operands = 0;
  bool streams = false;  // has non-temporal stores
  double point_ns = 0;   // rough cost per point of the domain

  int64_t slot_count() const { return int64_t(accesses.size() + buffers.size() + literals.size()); }
  int64_t scratch_bytes() const;
  int64_t points() const;
  int64_t size_of(const std::vector<int>& axes) const;
};

// fixed: keep the axes [batch, rows, columns] as they are (matmul epilogues). threads: that will share the units; results do not depend on their number.
std::unique_ptr<TilePlan> plan_tile_group(const TileGroup& group, bool fixed = false, int threads = 1, const KernelVariant& variant = {});

}  // namespace ridge::cpu
