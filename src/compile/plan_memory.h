// Offsets for values from their live ranges: a pure function, always verified.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace ridge {

struct LiveRange {
  int64_t bytes = 0;
  int32_t first = 0, last = 0;  // steps of the order in which the value is live, both included
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // one per range, aligned
  int64_t arena_bytes = 0;
  int64_t max_live_bytes = 0;  // no plan can be smaller (sizes rounded up to the alignment)
  int32_t peak_step = 0;       // where max_live_bytes is reached
};

inline constexpr int64_t kAlignment = 64;

// The best of time-ordered best fit, filling from the bottom up, and greedy by size with a bounded search behind it.
MemoryPlan plan_memory(std::span<const LiveRange> ranges, int64_t alignment = kAlignment);

// ErrorCode::internal when two values that live at the same time share a byte.
void verify_plan(std::span<const LiveRange> ranges, const MemoryPlan& plan, int64_t alignment = kAlignment);

}  // namespace ridge
