#include "base/mapped_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "base/error.h"

namespace ridge {

namespace {

int64_t page_bytes() {
  static const int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

size_t whole_pages(int64_t bytes) { return size_t((bytes + page_bytes() - 1) / page_bytes() * page_bytes()); }

}  // namespace

std::byte* reserve_memory(int64_t bytes) {
  // Maps one huge page more and trims to the alignment, so that every whole 2 MiB can be a huge page.
  const size_t page = size_t(kHugePage), size = whole_pages(bytes), mapped = size + (size >= page ? page : 0);
  void* p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  auto* data = static_cast<std::byte*>(p);
  if (mapped == size) return data;
  const size_t before = size_t(-reinterpret_cast<uintptr_t>(data)) % page, after = mapped - before - size;
  if (before) munmap(data, before);
  if (after) munmap(data + before + size, after);
  madvise(data + before, size, MADV_HUGEPAGE);  // advice only
  return data + before;
}

std::byte* map_memory(int64_t bytes) {
  if (bytes == 0) return nullptr;
  std::byte* data = reserve_memory(bytes);
  if (!data) fail(ErrorCode::memory, "[memory] could not map {} bytes; free memory or set a smaller budget", bytes);
  for (int64_t at = 0; at < bytes; at += page_bytes()) data[at] = std::byte{0};
  return data;
}

void unmap_memory(std::byte* p, int64_t bytes) {
  if (p) munmap(p, whole_pages(bytes));
}

}  // namespace ridge
