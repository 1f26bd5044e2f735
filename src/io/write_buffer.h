// Bytes waiting to be written to a file. If a write fails, they wait for the next flush as long as there is room.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace ridge {

class WriteBuffer {
 public:
  static constexpr size_t kRoom = 64 << 10;

  bool fits(size_t bytes) const { return waiting_.empty() || waiting_.size() + bytes <= kRoom; }  // an item larger than the room goes alone
  bool empty() const { return waiting_.empty(); }
  void add(std::string_view bytes) { waiting_ += bytes; }
  int flush(int file);  // 0 or the errno; written bytes are dropped, and the next call continues after them

 private:
  std::string waiting_;
};

}  // namespace ridge
