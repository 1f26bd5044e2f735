// metrics.jsonl: one object a line, appended; on resume cut back to the checkpoint's step.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace ridge {

class MetricsFile {
 public:
  // Keeps the lines whose "step" is at most `last_step`; a torn last line is dropped. -1: a new file.
  MetricsFile(std::filesystem::path path, int64_t last_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;

  void add(const nlohmann::ordered_json& row);  // buffered; numbers that are not finite become null
  void flush();                                 // ErrorCode::io on a full disk

 private:
  std::filesystem::path path_;
  std::string pending_;
  int file_ = -1;
};

}  // namespace ridge
