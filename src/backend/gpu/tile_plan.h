// How a fused group runs: a sequence of launches, each with its text, blocks and pointers. Depends only on the group and the chip; how sums are split depends
// only on shapes.
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
  std::vector<int> pointers;  // operands of the group; values from `operands` on are pieces of the workspace
};

struct TilePlan {
  std::vector<TileLaunch> launches;
  std::vector<int64_t> pieces;  // byte offsets in the workspace
  int64_t workspace = 0;
};

// What several groups in one launch must have in common.
struct TileSharing {
  bool wide_index = false;
  bool many = false;  // several groups, listed in a table of entries
};

// Column groups over the same points as one group; their operands follow each other. Empty if the points differ.
std::optional<TileGroup> united_columns(std::span<const TileGroup* const> columns);

// A row group that also computes, from data it reads or writes anyway, the sums over rows of a column group over the same points. Operands: the row group's,
// then the column group's; `same` maps each operand of the column group to the row group's operand with the same memory, -1: none. `unread`: operands of
// the row group that need not be stored. Empty if the groups cannot be combined.
std::optional<TilePlan> plan_row_with_sums(const TileGroup& row, const TileGroup& column, std::span<const int> same, std::span<const int> unread,
                                           const GpuChip& chip);

TilePlan plan_tile(const TileGroup& group, const GpuChip& chip, const TileSharing& sharing);

}  // namespace ridge::gpu
