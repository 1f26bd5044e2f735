#include "runtime/buffer_pool.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mapped_memory.h"

namespace ridge {
namespace {

// Sixteen classes per doubling, so a class is at most 1/16 larger than the one below. A request may also take a free block that is a class
// or two larger, if it wastes no more than this fraction of the block.
constexpr int kStepBits = 4;
constexpr double kMaxWaste = 0.15;
constexpr int64_t kSmallest = 64;
constexpr int64_t kLargest = int64_t(1) << 46;

// Class c holds blocks of size_of_class(c): multiples of 64 up to 1024, then sixteen steps per doubling.
int class_of(int64_t bytes) {
  const uint64_t units = uint64_t(std::max<int64_t>(bytes, 1) - 1) / kSmallest;  // from 0; the size is units + 1
  if (units < 16) return int(units);
  const int octave = std::bit_width(units) - 1 - kStepBits;  // units >> octave is in 16 … 31
  return (octave << kStepBits) + int(units >> octave);
}

int64_t size_of_class(int c) {
  if (c < 16) return (c + 1) * kSmallest;
  const int octave = (c >> kStepBits) - 1;
  return (int64_t((c & 15) | 16) + 1) * kSmallest << octave;
}

constexpr int kClasses = ((46 - 6 - kStepBits) << kStepBits) + 32;

class SystemBlocks : public BlockSource {
 public:
  std::byte* get(int64_t bytes, bool& zeroed) override {
#if defined(__linux__)
    if (bytes >= kHugePage) {
      zeroed = true;
      return reserve_memory(bytes);
    }
#endif
    zeroed = false;
    return static_cast<std::byte*>(::operator new[](size_t(bytes), std::align_val_t(64), std::nothrow));
  }

  void put(std::byte* block, int64_t bytes) override {
#if defined(__linux__)
    if (bytes >= kHugePage) {
      unmap_memory(block, bytes);
      return;
    }
#endif
    (void)bytes;
    ::operator delete[](block, std::align_val_t(64));
  }
};

}  // namespace

std::shared_ptr<BlockSource> system_blocks() {
  static const auto source = std::make_shared<SystemBlocks>();
  return source;
}

struct BufferPool::State {
  struct Free {
    std::byte* data;
    uint64_t since;  // order of release
  };
  struct Pending {
    std::byte* data;
    int cls;
    Ticket ticket;
  };

  std::shared_ptr<BlockSource> source;
  mutable std::mutex mutex;
  int64_t bound = 0;
  PoolStatistics stats;
  Ticket done = 0;
  uint64_t releases = 0;
  std::array<std::vector<Free>, kClasses> free;  // oldest first
  std::vector<Pending> pending;

  ~State() {  // no buffer refers to this any more
    for (const Pending& p : pending) source->put(p.data, size_of_class(p.cls));
    give_back(std::numeric_limits<int64_t>::max());
  }

  // The functions below are called with the mutex held.

  void make_free(std::byte* data, int cls) { free[size_t(cls)].push_back({data, ++releases}); }

  void collect() {
    std::erase_if(pending, [&](const Pending& p) {
      if (p.ticket > done) return false;
      stats.bytes_pending -= size_of_class(p.cls);
      make_free(p.data, p.cls);
      return true;
    });
  }

  std::byte* take_free(int cls, int64_t bytes, int& got) {
    for (int c = cls; c < kClasses; ++c) {
      if (c > cls && double(bytes) < (1 - kMaxWaste) * double(size_of_class(c))) return nullptr;
      if (auto& list = free[size_t(c)]; !list.empty()) {
        std::byte* data = list.back().data;
        list.pop_back();
        got = c;
        return data;
      }
    }
    return nullptr;
  }

  // Returns free blocks to the system, least recently released first, until `bytes` have been returned or none is left.
  void give_back(int64_t bytes) {
    while (bytes > 0) {
      int oldest = -1;
      for (int c = 0; c < kClasses; ++c)
        if (!free[size_t(c)].empty() && (oldest < 0 || free[size_t(c)].front().since < free[size_t(oldest)].front().since)) oldest = c;
      if (oldest < 0) return;
      auto& list = free[size_t(oldest)];
      source->put(list.front().data, size_of_class(oldest));
      list.erase(list.begin());
      const int64_t size = size_of_class(oldest);
      stats.bytes_held -= size;
      stats.bytes_trimmed += size;
      bytes -= size;
    }
  }

  [[noreturn]] void refuse(int64_t bytes, const char* why) {
    fail(ErrorCode::memory,
         "[buffer_pool] could not allocate {} bytes: {} ({} in use, {} waiting for work to finish, {} held, bound {}); release tensors, use smaller ones or "
         "raise the bound",
         bytes, why, stats.bytes_in_use, stats.bytes_pending, stats.bytes_held, bound);
  }
};

BufferPool::BufferPool(const PoolOptions& options) : state_(std::make_shared<State>()) {
  state_->source = options.source ? options.source : system_blocks();
  set_bound(options.bound);
}

BufferPool::~BufferPool() { trim(); }

int64_t BufferPool::class_bytes(int64_t bytes) { return size_of_class(class_of(bytes)); }

BufferPool::Buffer BufferPool::acquire(int64_t bytes, Fill fill) {
  if (bytes < 0) fail(ErrorCode::value, "[buffer_pool] {} bytes requested", bytes);
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  ++s.stats.requests;
  if (bytes > kLargest) s.refuse(bytes, "no machine has that much");
  int cls = class_of(bytes);
  bool zeroed = false;
  if (!s.pending.empty()) s.collect();
  std::byte* data = s.take_free(cls, bytes, cls);
  if (data) {
    ++s.stats.reuses;
  } else {
    const int64_t size = size_of_class(cls);
    if (s.stats.bytes_held > s.bound - size) s.give_back(s.stats.bytes_held - (s.bound - size));
    if (s.stats.bytes_held > s.bound - size) s.refuse(bytes, "the pool's bound is reached");
    data = s.source->get(size, zeroed);
    if (!data) {
      s.give_back(std::numeric_limits<int64_t>::max());
      data = s.source->get(size, zeroed);
    }
    if (!data) s.refuse(bytes, "the system has none left");
    s.stats.bytes_held += size;
    s.stats.peak_bytes = std::max(s.stats.peak_bytes, s.stats.bytes_held);
  }
  Buffer buffer;
  buffer.data_ = data;
  buffer.bytes_ = bytes;
  buffer.capacity_ = size_of_class(cls);
  s.stats.bytes_asked += bytes;
  s.stats.bytes_in_use += buffer.capacity_;
  lock.unlock();
  buffer.state_ = state_;
  if (fill == Fill::zero && !zeroed) std::memset(data, 0, size_t(bytes));
  return buffer;
}

void BufferPool::complete(Ticket done) {
  std::lock_guard lock(state_->mutex);
  state_->done = std::max(state_->done, done);
}

void BufferPool::trim() {
  std::lock_guard lock(state_->mutex);
  state_->collect();
  state_->give_back(std::numeric_limits<int64_t>::max());
}

void BufferPool::set_bound(int64_t bytes) {
  if (bytes <= 0) fail(ErrorCode::value, "[buffer_pool] a bound of {} bytes; give a positive number", bytes);
  std::lock_guard lock(state_->mutex);
  state_->bound = bytes;
  state_->collect();
  if (state_->stats.bytes_held > bytes) state_->give_back(state_->stats.bytes_held - bytes);
}

PoolStatistics BufferPool::statistics() const {
  std::lock_guard lock(state_->mutex);
  state_->collect();
  return state_->stats;
}

BufferPool::Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

BufferPool::Buffer& BufferPool::Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  reset();
  state_ = std::move(other.state_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  capacity_ = std::exchange(other.capacity_, 0);
  ticket_ = std::exchange(other.ticket_, 0);
  return *this;
}

void BufferPool::Buffer::reset() {
  if (!data_) return;
  {
    State& s = *state_;
    std::lock_guard lock(s.mutex);
    s.stats.bytes_asked -= bytes_;
    s.stats.bytes_in_use -= capacity_;
    const int cls = class_of(capacity_);
    if (ticket_ > s.done) {
      s.pending.push_back({data_, cls, ticket_});
      s.stats.bytes_pending += capacity_;
    } else {
      s.make_free(data_, cls);
    }
  }
  state_.reset();
  data_ = nullptr;
  bytes_ = capacity_ = 0;
  ticket_ = 0;
}

}  // namespace ridge
