#include "runtime/arena.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/error.h"

namespace ridge {

Arena::~Arena() {
  if (data_) munmap(data_, size_t(mapped_));
}

void Arena::require(int64_t bytes) { wanted_ = std::max(wanted_, bytes); }

std::byte* Arena::data() {
  if (mapped_ >= wanted_) return data_;
  if (data_) munmap(data_, size_t(mapped_));
  data_ = nullptr, mapped_ = 0;
  void* p = mmap(nullptr, size_t(wanted_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) fail(ErrorCode::memory, "[arena] {} bytes could not be mapped; free memory or give a smaller budget", wanted_);
  constexpr int64_t kHugePage = int64_t(2) << 20, kPage = 4096;
  if (wanted_ >= kHugePage) madvise(p, size_t(wanted_), MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(p), mapped_ = wanted_;
  for (int64_t at = 0; at < mapped_; at += kPage) data_[at] = std::byte{0};
  return data_;
}

}  // namespace ridge
