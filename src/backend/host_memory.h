// The host's memory in large pieces.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ridge {

// Zeros from the system, touched, with huge pages where that helps. ErrorCode::memory when there is no room.
std::byte* map_memory(int64_t bytes);
void unmap_memory(std::byte* p, int64_t bytes);

}  // namespace ridge
