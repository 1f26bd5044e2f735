#include "runtime/arena.h"

#include <algorithm>

#include "backend/backend.h"

namespace ridge {

Arena::~Arena() { release(); }

void Arena::release() {
  if (data_) backend_.release(data_, mapped_);
  data_ = nullptr, mapped_ = 0;
}

void Arena::require(int64_t bytes) { wanted_ = std::max(wanted_, bytes); }

std::byte* Arena::data() {
  if (mapped_ >= wanted_) return data_;
  release();
  data_ = backend_.allocate(wanted_);
  mapped_ = wanted_;
  return data_;
}

}  // namespace ridge
