// Memory that programs share. Its size is known before it is mapped, and its pages are touched when it is mapped, so that no
// later access can fail for lack of memory.
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

  void require(int64_t bytes);  // grows what data() will map; programs that never run at the same time may share an arena
  int64_t bytes() const { return wanted_; }
  std::byte* data();  // maps on first use; throws ErrorCode::memory with the sizes when there is not enough memory

 private:
  void release();

  Backend& backend_;
  std::byte* data_ = nullptr;
  int64_t wanted_ = 0, mapped_ = 0;
};

}  // namespace ridge
