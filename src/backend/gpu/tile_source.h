// The texts of tile kernels: three skeletons (map, row, column) around the straight-line code of a group's nodes, and a fourth that combines the parts of split
// reductions.
#pragma once
#include <vector>

#include "backend/gpu/kernel.h"
#include "backend/gpu/tile_loops.h"

namespace ridge::gpu {

// How a kernel iterates over its group. Every field affects the text.
struct TileSchedule {
  const KernelDialect* dialect = nullptr;
  int vector = 1;            // elements that a thread processes together
  int threads = 256;         // per block
  int unroll = 1;            // map: vectors per thread
  int lanes = 32;            // row: threads that share a row: a power of two up to 32, or the whole block
  int chunks = 0;            // row: vectors per thread that stay in registers; 0: a loop that reads again in every phase
  int blocks = 0;            // blocks per multiprocessor for which registers must suffice; 0: no limit
  bool loads_first = false;  // row, in registers: begins with what its last phase reads
  bool keep_shared = false;  // row, in a loop: keep data that is read again in shared memory
  int64_t row_blocks = 0;    // row, with keep_shared: this many blocks share the rows, and copy the next row while they store the current one; 0: a row each
  int columns = 32;          // column, combine: adjacent threads on different columns; the other threads take other rows
  int64_t sum_blocks = 0;    // row: this many blocks share the rows; each sums over its own rows the values for operands from `first_sum` on
  int first_sum = 0;
  int register_sums = 0;    // of these sums, how many stay in registers; a warp adds to the others in shared memory
  int64_t part = 0;         // reduced elements (rows) per block, whose results are combined later; 0: all
  int phase = 0;            // row, in parts: the phase that the kernel runs, after combining the parts of the earlier ones
  bool wide_index = false;  // 64 bits
  int across = -1;          // map: the axis along which some reads are contiguous; these are transposed in shared memory
  int entries = 1;          // groups in one launch
};

// The operands that the text uses, in the order of its entry's pointers. After the group's own operands, operand `operands + i` is the partial results of the
// group's i-th reduction, [part, kept point].
struct TileText {
  KernelText text;
  std::vector<int> pointers;
};

// The launch arguments, passed by value: the fault record, the number of entries, the entries.
struct TileEntryLayout {
  static constexpr int64_t kHead = 16, kTail = 24, kMax = 4096;  // tail: n, r, first block; most: the limit that every driver supports
  static int64_t bytes(size_t pointers) { return int64_t(pointers) * 8 + kTail; }
  static int most(size_t pointers) { return int((kMax - kHead) / bytes(pointers)); }
};

TileText map_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule);             // n: points
TileText transposed_map_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule);  // n: points of the other axes
TileText row_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule);             // n: rows, r: their length
// The same as a function for other kernels to call: its entry is the call, with `making` as the entry's arguments and `fault`, for block 0.
TileText row_part_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule);
int64_t row_sums_shared_bytes(const TileGroup& group, const TileSchedule& schedule, int sums);       // of a row kernel that sums over its rows
TileText column_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule);  // n: outer points, r: rows
// Combines the parts of the first reductions and performs the stores whose values are then known. n: kept points, r: parts.
TileText combine_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule);

// Nodes whose values a row keeps in registers from one phase to the next, and how many are kept at most at any time.
struct TileKept {
  std::vector<char> registers;  // by node
  int most = 0;
  std::vector<char> loads;  // read in several phases
};
TileKept kept_values(const TileGroup& group, const TileFacts& facts);

std::vector<int> reductions(const TileGroup& group);               // nodes, in order
int64_t accumulator_bytes(const TileGroup& group, int reduce);     // size of one partial result
bool stores_body(const TileGroup& group, const TileFacts& facts);  // some store varies within a row or column

}  // namespace ridge::gpu
