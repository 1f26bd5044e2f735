// Writes TensorBoard's event files: protocol buffer records with checksums, encoded here without a library.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "io/write_buffer.h"

namespace ridge {

class TensorboardFile {
 public:
  // Creates a new file in `folder`, and the folder if needed. Events in earlier files there count up to `first_step`. If that fails, flush() reports it and
  // tries again; events are kept in memory meanwhile.
  explicit TensorboardFile(std::filesystem::path folder, int64_t first_step = 0);
  ~TensorboardFile();  // writes the remaining events
  TensorboardFile(const TensorboardFile&) = delete;

  void scalar(std::string_view tag, int64_t step, double value);  // buffered; values that are not finite are left out
  void text(std::string_view tag, int64_t step, std::string_view words);
  void flush();  // ErrorCode::io on a full disk; nothing is lost, and the next call continues from there. Also refuses an event for which there is no room

  int64_t writes() const { return writes_; }                   // flushes that left nothing in the buffer
  const std::filesystem::path& path() const { return path_; }  // empty: not created yet

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
