// metrics.jsonl: one object per line, append-only; truncated to the checkpoint's step on resume.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "io/write_buffer.h"

namespace ridge {

class MetricsFile {
 public:
  // Keeps the lines whose "step" is at most `last_step`; drops torn lines and lines that are not JSON. -1: a new file. An empty path: nothing is
  // written. ErrorCode::io if the file cannot be read or written.
  MetricsFile(std::filesystem::path path, int64_t last_step);
  ~MetricsFile();  // flushes, ignoring errors; call flush() to see them
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  void add(const nlohmann::ordered_json& row);  // buffered; non-finite numbers become null
  void add_line(std::string_view row);  // a JSON object without newlines; if the buffer is full it is flushed first, and the row is rejected if that fails
  void flush();                         // ErrorCode::io on a full disk; nothing is lost, and the next call continues from there

 private:
  std::filesystem::path path_;
  WriteBuffer waiting_;
  int file_ = -1;
};

}  // namespace ridge
