// Which kernels of a program may run side by side: those that share no memory that one of them writes. Bits do not change, since every
// kernel sees what it would see in order.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace ridge::cuda {

struct MemoryRange {
  uint64_t begin = 0, end = 0;
  bool written = false;
};

// The kernels, by number, that each must wait for: earlier ones only, the latest for each piece of memory.
std::vector<std::vector<int>> dependencies(std::span<const std::vector<MemoryRange>> kernels);

struct Lane {
  int lane = 0;            // which queue it goes into
  std::vector<int> waits;  // kernels of other lanes, which put up a signal
  bool signals = false;    // somebody in another lane waits for it
};

// Lanes for kernels in their order. A kernel follows what it depends on where that is the end of a lane, and else takes the lane that has
// been quiet for longest. Waits that follow from others are left out. Kernels in `alone` run with nothing beside them.
std::vector<Lane> assign_lanes(const std::vector<std::vector<int>>& dependencies, int lanes, std::span<const char> alone = {});

}  // namespace ridge::cuda
