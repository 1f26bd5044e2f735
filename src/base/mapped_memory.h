// Large allocations of host memory.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ridge {

inline constexpr int64_t kHugePage = int64_t(2) << 20;

// Zeroed pages from the system, already touched, huge where that helps. ErrorCode::memory on failure.
std::byte* map_memory(int64_t bytes);
// The same, untouched; null on failure.
std::byte* reserve_memory(int64_t bytes);
void unmap_memory(std::byte* p, int64_t bytes);

}  // namespace ridge
