// The rows of metrics.jsonl: one per step and per validation. A full disk loses rows, but never stops the run.
#pragma once
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "train/metrics_file.h"
#include "train/training_loop.h"

namespace ridge {

class MetricRows {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `notice` is called once when rows wait for disk space, and once when rows are lost.
  explicit MetricRows(std::function<void(const std::string&)> notice) : notice_(std::move(notice)) {}

  void open(std::filesystem::path file, int64_t last_step);  // as in MetricsFile
  void cut(int64_t last_step);                               // deletes the rows of later steps
  void add(const Progress& step);
  void add(const ValidationResult& validation);
  void flush();  // rows that cannot be written stay in memory
  bool waiting() const { return waiting_; }
  Time flushed_at() const { return flushed_at_; }
  void keep(std::span<const Progress> steps) noexcept;  // for a run that ends with an error: saves the rows of all its steps

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
