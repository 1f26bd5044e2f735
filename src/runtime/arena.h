// Memory that programs share: its size is known before it is mapped, and it is touched at once, so that nothing can be taken
// away later.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ridge {

class Backend;

class Arena {
 public:
  explicit Arena(Backend& backend) : backend_(backend) {}
  ~Arena();
  Arena(const Arena&) = delete;

  void require(int64_t bytes);  // grows what data() will map; programs that never run at the same time may share one
  int64_t bytes() const { return wanted_; }
  std::byte* data();  // maps on first use; ErrorCode::memory with the numbers when the system has no room

 private:
  void release();

  Backend& backend_;
  std::byte* data_ = nullptr;
  int64_t wanted_ = 0, mapped_ = 0;
};

}  // namespace ridge
