// Bytes on their way to a file. Those that cannot be written wait for the next flush, as long as there is room for them.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace ridge {

class WriteBuffer {
 public:
  static constexpr size_t kRoom = 64 << 10;

  bool fits(size_t bytes) const { return waiting_.empty() || waiting_.size() + bytes <= kRoom; }  // what is larger than the room goes alone
  bool empty() const { return waiting_.empty(); }
  void add(std::string_view bytes) { waiting_ += bytes; }
  int flush(int file);  // 0 or the errno; what was written is gone, and the next call goes on behind it

 private:
  std::string waiting_;
};

}  // namespace ridge
