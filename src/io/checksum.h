// Incremental file checksums: xxHash's 128-bit XXH3.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace ridge {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(std::span<const std::byte> bytes);
  int64_t bytes() const { return bytes_; }
  std::string hex() const;  // of all bytes so far: 32 lowercase hex digits

 private:
  struct State;
  std::unique_ptr<State> state_;
  int64_t bytes_ = 0;
};

std::string checksum_of(std::string_view text);

}  // namespace ridge
