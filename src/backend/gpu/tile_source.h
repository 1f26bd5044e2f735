// The texts of tile kernels: three skeletons (map, row, column) around the straight-line code of a group's nodes, and one that joins
// the parts of reductions that were split.
#pragma once
#include <vector>

#include "backend/gpu/kernel.h"
#include "backend/gpu/tile_loops.h"

namespace ridge::gpu {

// How a kernel walks its group. All of it is part of the text.
struct TileSchedule {
  const KernelDialect* dialect = nullptr;
  int vector = 1;            // elements that a thread takes at once
  int threads = 256;         // of a block
  int unroll = 1;            // map: vectors of a thread
  int lanes = 32;            // row: threads that share a row: a power of two up to 32, or all of the block
  int chunks = 0;            // row: vectors of a thread, kept in registers; 0: a loop that reads again in every phase
  int blocks = 0;            // of a multiprocessor that registers must leave room for; 0: as it comes
  bool keep_shared = false;  // row, in a loop: what is read again lies in shared memory
  int columns = 32;          // column, combine: threads side by side; the others take other rows
  int64_t sum_blocks = 0;    // row: so many blocks share the rows, and sum over theirs what goes to operands from `first_sum` on
  int first_sum = 0;
  int64_t part = 0;         // reduced elements (rows) of a block whose results are then joined; 0: all
  bool wide_index = false;  // 64 bits
  int across = -1;          // map: the axis along which some reads are contiguous; they go through a square in shared memory
  int entries = 1;          // groups of one launch
};

// The operands that the text takes, in the order of its entry's pointers. Beyond the group's own come, for the group's i-th reduction,
// operand `operands + i`: the parts of its result, [part, kept point].
struct TileText {
  KernelText text;
  std::vector<int> pointers;
};

// What a launch passes by value: the fault record, the number of entries, the entries.
struct TileEntryLayout {
  static constexpr int64_t kHead = 16, kTail = 24, kMost = 4096;  // tail: n, r, first block; most: what every driver takes
  static int64_t bytes(size_t pointers) { return int64_t(pointers) * 8 + kTail; }
  static int most(size_t pointers) { return int((kMost - kHead) / bytes(pointers)); }
};

TileText map_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule);             // n: points
TileText transposed_map_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule);  // n: points of the other axes
TileText row_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule);             // n: rows, r: their length
TileText column_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule);          // n: outer points, r: rows
// Joins the parts of the first reductions and stores what is known then. n: kept points, r: parts.
TileText combine_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule);

// Nodes whose values a row keeps in registers from one phase to the next, and the most that are kept at a time.
struct TileKept {
  std::vector<char> registers;  // by node
  int most = 0;
  std::vector<char> loads;  // read in several phases
};
TileKept kept_values(const TileGroup& group, const TileFacts& facts);

std::vector<int> reductions(const TileGroup& group);               // nodes, in order
int64_t accumulator_bytes(const TileGroup& group, int reduce);     // of one part of its result
bool stores_body(const TileGroup& group, const TileFacts& facts);  // some store varies within a row or column

}  // namespace ridge::gpu
