// The host's memory in large pieces, and what the devices that work on it share.
#pragma once
#include <cstring>

#include "backend/backend.h"

namespace ridge {

inline constexpr int64_t kHugePage = int64_t(2) << 20;

// Zeros from the system, touched, with huge pages where that helps. ErrorCode::memory when there is no room.
std::byte* map_memory(int64_t bytes);
// The same untouched; null when there is no room.
std::byte* reserve_memory(int64_t bytes);
void unmap_memory(std::byte* p, int64_t bytes);

class HostBackend : public Backend {
 public:
  std::byte* allocate(int64_t bytes) override { return map_memory(bytes); }
  void release(std::byte* p, int64_t bytes) override { unmap_memory(p, bytes); }
  void upload(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, size_t(bytes)); }
  void clear(void* to, int64_t bytes) override { std::memset(to, 0, size_t(bytes)); }
};

}  // namespace ridge
