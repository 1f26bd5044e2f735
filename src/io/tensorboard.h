// TensorBoard's event files: records of protocol buffers with checksums, written here by hand.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace ridge {

class TensorboardFile {
 public:
  // A new file in `folder`, which is made if need be. Earlier files there stay and count up to `first_step`. ErrorCode::io.
  explicit TensorboardFile(const std::filesystem::path& folder, int64_t first_step = 0);
  ~TensorboardFile();  // writes what is left
  TensorboardFile(const TensorboardFile&) = delete;

  void scalar(std::string_view tag, int64_t step, double value);  // buffered; one that is not finite is left out
  void text(std::string_view tag, int64_t step, std::string_view words);
  void flush();  // ErrorCode::io on a full disk

  const std::filesystem::path& path() const { return path_; }

 private:
  void add_event(int64_t step, uint32_t field, std::string_view content);

  std::filesystem::path path_;
  std::string pending_;
  int file_ = -1;
};

uint32_t crc32c(std::string_view bytes);

}  // namespace ridge
