// TensorBoard's event files: records of protocol buffers with checksums, written here by hand.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "io/write_buffer.h"

namespace ridge {

class TensorboardFile {
 public:
  // A new file in `folder`, which is made if need be. Earlier files there stay and count up to `first_step`. Where that fails, flush() says so and tries
  // again; events wait in memory meanwhile.
  explicit TensorboardFile(std::filesystem::path folder, int64_t first_step = 0);
  ~TensorboardFile();  // writes what is left
  TensorboardFile(const TensorboardFile&) = delete;

  void scalar(std::string_view tag, int64_t step, double value);  // buffered; one that is not finite is left out
  void text(std::string_view tag, int64_t step, std::string_view words);
  void flush();  // ErrorCode::io on a full disk; nothing is lost and the next call goes on from there. An event that has no room is refused so too

  int64_t writes() const { return writes_; }                   // that left nothing waiting
  const std::filesystem::path& path() const { return path_; }  // empty: it could not be made yet

 private:
  void add_event(int64_t step, uint32_t field, std::string_view content);
  void open();

  std::filesystem::path folder_, path_;
  WriteBuffer waiting_;
  int file_ = -1;
  int64_t writes_ = 0;
};

uint32_t crc32c(std::string_view bytes);

}  // namespace ridge
