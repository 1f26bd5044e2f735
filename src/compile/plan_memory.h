// Assigns offsets to values from their live ranges: a pure function whose result is always verified.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace ridge {

struct LiveRange {
  int64_t bytes = 0;
  int32_t first = 0, last = 0;  // first and last step, inclusive, at which the value is live
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // one per range, aligned
  int64_t arena_bytes = 0;
  int64_t max_live_bytes = 0;  // lower bound of any plan (sizes rounded up to the alignment)
  int32_t peak_step = 0;       // where max_live_bytes is reached
};

inline constexpr int64_t kAlignment = 64;

// Returns the best of three plans: time-ordered best fit, filling from the bottom up, and greedy by size followed by a bounded search.
MemoryPlan plan_memory(std::span<const LiveRange> ranges, int64_t alignment = kAlignment);

// Throws ErrorCode::internal when two values that are live at the same time share a byte.
void verify_plan(std::span<const LiveRange> ranges, const MemoryPlan& plan, int64_t alignment = kAlignment);

}  // namespace ridge
