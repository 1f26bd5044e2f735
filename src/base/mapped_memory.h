// The host's memory in large pieces.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ridge {

inline constexpr int64_t kHugePage = int64_t(2) << 20;

// Zeros from the system, touched, with huge pages where that helps. ErrorCode::memory when there is no room.
std::byte* map_memory(int64_t bytes);
// The same untouched; null when there is no room.
std::byte* reserve_memory(int64_t bytes);
void unmap_memory(std::byte* p, int64_t bytes);

}  // namespace ridge
