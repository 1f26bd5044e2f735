// Storage for eager tensors: blocks in size classes that are reused, within a bound, and never while work on them is in flight.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

namespace ridge {

// Identifies work that may still be running. Tickets increase, and all tickets up to some number are done (0 always is).
using Ticket = uint64_t;

// Where blocks come from. The system's source maps large blocks and advises huge pages.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  virtual std::byte* get(int64_t bytes, bool& zeroed) = 0;  // 64-byte aligned; null when out of memory
  virtual void put(std::byte* block, int64_t bytes) = 0;
};
std::shared_ptr<BlockSource> system_blocks();

struct PoolOptions {
  int64_t bound = std::numeric_limits<int64_t>::max();  // limit on bytes held, in use and free together
  std::shared_ptr<BlockSource> source = nullptr;        // null: system_blocks()
};

struct PoolStatistics {
  int64_t requests = 0, reuses = 0;
  int64_t bytes_asked = 0;    // requested by the buffers in use
  int64_t bytes_in_use = 0;   // allocated for them
  int64_t bytes_pending = 0;  // released, but work on them may still be running
  int64_t bytes_held = 0;     // in use, pending and free
  int64_t peak_bytes = 0;     // the most ever held
  int64_t bytes_trimmed = 0;  // returned to the system so far
  double reuse_rate() const { return requests ? double(reuses) / double(requests) : 0; }
  double waste() const { return bytes_in_use ? 1 - double(bytes_asked) / double(bytes_in_use) : 0; }
};

class BufferPool {
 public:
  enum class Fill { none, zero };
  class Buffer;

  explicit BufferPool(const PoolOptions& options = {});
  ~BufferPool();  // buffers may outlive their pool
  BufferPool(const BufferPool&) = delete;

  // Throws ErrorCode::memory with the sizes when, even after trimming, the system or the bound does not allow it.
  Buffer acquire(int64_t bytes, Fill fill = Fill::none);
  void complete(Ticket done);  // all work up to this ticket has finished
  void trim();                 // returns every free block to the system
  void set_bound(int64_t bytes);
  PoolStatistics statistics() const;

  // The block size for a request: from 1 KiB up, at most 1/16 larger than the request.
  static int64_t class_bytes(int64_t bytes);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

class BufferPool::Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { reset(); }

  std::byte* data() const { return data_; }  // 64-byte aligned; null only for an empty Buffer
  int64_t bytes() const { return bytes_; }
  int64_t capacity() const { return capacity_; }
  void used_by(Ticket ticket) { ticket_ = ticket > ticket_ ? ticket : ticket_; }  // keeps the memory until this work is done
  void reset();                                                                   // releases the memory to the pool

 private:
  friend class BufferPool;
  std::shared_ptr<State> state_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0, capacity_ = 0;
  Ticket ticket_ = 0;
};

}  // namespace ridge
