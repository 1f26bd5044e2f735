// What a run writes to metrics.jsonl: a row for each step and each validation. A disk without room costs rows, never the run.
#pragma once
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "train/metrics_file.h"
#include "train/trainer.h"

namespace ridge {

class MetricRows {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `notice` is told once of rows that wait for room, and once of rows that are lost.
  explicit MetricRows(std::function<void(const std::string&)> notice) : notice_(std::move(notice)) {}

  void open(std::filesystem::path file, int64_t last_step);  // as MetricsFile
  void cut(int64_t last_step);                               // rows of later steps go
  void add(const Progress& step);
  void add(const ValidationResult& validation);
  void flush();  // what cannot be written waits in memory
  bool waiting() const { return waiting_; }
  Time flushed_at() const { return flushed_at_; }
  void keep(std::span<const Progress> steps) noexcept;  // of a run that ends by an error: it leaves the rows of all steps that it took

 private:
  void keep_row(int64_t step, std::string_view row);

  std::function<void(const std::string&)> notice_;
  std::filesystem::path path_;
  std::optional<MetricsFile> file_;
  std::string row_;
  Time flushed_at_ = {};
  bool waiting_ = false, lost_ = false;
};

}  // namespace ridge
