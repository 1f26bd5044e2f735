// Writes a training run's events for TensorBoard.
#pragma once
#include <filesystem>
#include <optional>

#include "io/tensorboard.h"
#include "train/training_loop.h"

namespace ridge {

class TensorboardView : public TrainerView {
 public:
  explicit TensorboardView(std::filesystem::path folder);  // a new file is created there by the first write

  void on_step(const Progress& progress) override;
  void on_validation(const ValidationResult& result) override;
  void on_sample(int64_t step, const std::string& text) override;
  void on_checkpoint(int64_t step, const std::string& folder, double seconds) override;
  void on_notice(const std::string& line) override;
  void flush();
  std::optional<int64_t> writes() const override { return file_ ? file_->writes() : 0; }

 private:
  TensorboardFile& file(int64_t step);
  void flush_at_times(double elapsed_s);

  std::filesystem::path folder_;
  std::optional<TensorboardFile> file_;
  double flushed_s_ = 0;
  int64_t step_ = 0;
  bool above_roof_ = false;  // the reason for a missing roof value is reported only once
  std::string notices_;      // received before the first step
};

}  // namespace ridge
