// metrics.jsonl: one object a line, appended; on resume cut back to the checkpoint's step.
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
  // Keeps the lines whose "step" is at most `last_step`; what is torn or no JSON is dropped. -1: a new file. An empty path: nothing is
  // written. ErrorCode::io: it cannot be read or written.
  MetricsFile(std::filesystem::path path, int64_t last_step);
  ~MetricsFile();  // flushes; who must know whether that worked calls flush()
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  void add(const nlohmann::ordered_json& row);  // buffered; numbers that are not finite become null
  void add_line(std::string_view row);          // a JSON object without line ends; one that has no room is flushed for, and refused when that fails
  void flush();                                 // ErrorCode::io on a full disk; nothing is lost and the next call goes on from there

 private:
  std::filesystem::path path_;
  WriteBuffer waiting_;
  int file_ = -1;
};

}  // namespace ridge
