// Tokens of 1, 2 or 4 bytes in mapped files, in one or more shards.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ridge {

// Copies share the mapping. Resident mapped pages count as the process's memory, so at most kMaxResident stays resident.
class TokenArray {
 public:
  struct Shard {
    std::string path;
    int64_t offset = 0;  // bytes before the first token
    int64_t tokens = 0;
  };
  static constexpr int64_t kMaxResident = int64_t(64) << 20;

  TokenArray() = default;  // no tokens
  // `width`: bytes per token, little-endian; every token is below `vocab`. ErrorCode::io: a file is missing or too short.
  TokenArray(const std::vector<Shard>& shards, int width, int64_t vocab, int64_t max_resident = kMaxResident);

  int64_t size() const { return size_; }
  void copy(int64_t first, std::span<int64_t> out) const;  // thread-safe; ErrorCode::value past the end, ErrorCode::io for a token outside the vocabulary
  TokenArray part(int64_t first, int64_t count) const;     // ErrorCode::value past the end

  int64_t mapped_bytes() const;  // of all files; parts of one array share it
  int64_t resident_cap() const;  // the maximum that stays resident

 private:
  struct Files;
  std::shared_ptr<Files> files_;
  int64_t first_ = 0, size_ = 0;
};

}  // namespace ridge
