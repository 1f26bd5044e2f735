// The axes of a fused group as the tile interpreter iterates over them: reordered, merged, and assigned roles.
#pragma once
#include <vector>

#include "compile/tile_group.h"

namespace ridge::cpu {

struct TileAxes {
  struct Range {
    int64_t low, high;
    bool bounded() const;
  };
  std::vector<int64_t> sizes;
  std::vector<std::vector<int64_t>> strides;  // [access][axis], in elements
  std::vector<std::vector<Range>> bounds;     // [access][axis]
  std::vector<int> outer, loop;               // loop: reduced axes outside the block
  int row = 0, col = 0;
  bool transposes = false;  // some access is contiguous along the rows instead of the columns
};

// fixed: keep [batch, rows, columns] as they are.
TileAxes arrange_axes(const TileGroup& group, bool fixed);

}  // namespace ridge::cpu
