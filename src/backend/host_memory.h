// Shared by the devices that use host memory.
#pragma once
#include <cstring>

#include "backend/backend.h"
#include "base/mapped_memory.h"

namespace ridge {

class HostBackend : public Backend {
 public:
  bool host_memory() const override { return true; }
  std::byte* allocate(int64_t bytes) override { return map_memory(bytes); }
  void release(std::byte* p, int64_t bytes) override { unmap_memory(p, bytes); }
  void upload(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, size_t(bytes)); }
  void clear(void* to, int64_t bytes) override { std::memset(to, 0, size_t(bytes)); }
};

}  // namespace ridge
