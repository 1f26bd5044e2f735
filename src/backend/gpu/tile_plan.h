// How a fused group runs: its launches one after the other, each with its text, blocks and pointers. Depends on the group and the chip
// alone, and how sums are cut depends on shapes alone.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "backend/gpu/tile_source.h"

namespace ridge::gpu {

struct TileLaunch {
  KernelText text;
  int threads = 0;
  int64_t blocks = 0, n = 0, r = 0;
  std::vector<int> pointers;  // operands of the group; from `operands` on: pieces of the workspace
};

struct TilePlan {
  std::vector<TileLaunch> launches;
  std::vector<int64_t> pieces;  // byte offsets in the workspace
  int64_t workspace = 0;
};

// What several groups of one launch must have in common.
struct TileSharing {
  bool wide_index = false;
  bool many = false;  // several groups: entries in a table
};

// A row group that also makes the sums over rows of a column group over the same points, from what it has read anyway. Operands: the row
// group's, then the column group's; `same` names the row group's operand that is the same memory as the column group's, -1: none.
// Empty where it does not suit.
std::optional<TilePlan> plan_row_with_sums(const TileGroup& row, const TileGroup& column, std::span<const int> same, const GpuChip& chip);

TilePlan plan_tile(const TileGroup& group, const GpuChip& chip, const TileSharing& sharing);

}  // namespace ridge::gpu
