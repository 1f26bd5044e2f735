#include "backend/host_memory.h"

#include <sys/mman.h>

#include "base/error.h"

namespace ridge {

std::byte* map_memory(int64_t bytes) {
  if (bytes == 0) return nullptr;
  void* p = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) fail(ErrorCode::memory, "[memory] {} bytes could not be mapped; free memory or give a smaller budget", bytes);
  constexpr int64_t kHugePage = int64_t(2) << 20, kPage = 4096;
  if (bytes >= kHugePage) madvise(p, size_t(bytes), MADV_HUGEPAGE);
  auto* data = static_cast<std::byte*>(p);
  for (int64_t at = 0; at < bytes; at += kPage) data[at] = std::byte{0};
  return data;
}

void unmap_memory(std::byte* p, int64_t bytes) {
  if (p) munmap(p, size_t(bytes));
}

}  // namespace ridge
