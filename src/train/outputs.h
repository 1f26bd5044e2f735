// Combines all outputs of a run. A failing output never stops the run: the failure is reported once to the others, the output is retried, and it is
// switched off if it keeps failing for a while without writing anything.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "train/train_view.h"

namespace ridge {

class Outputs : public RunView {
 public:
  static constexpr int kTries = 3;                     // failures before switching off, counted at least kPause apart: quick steps are reported in bursts
  static constexpr double kPause = 1, kPatience = 10;  // seconds; kPatience: from the first failure to the one that switches it off
  explicit Outputs(const std::vector<TrainerView*>& outputs);                          // all must outlive this object
  Outputs(const std::vector<TrainerView*>& outputs, std::function<double()> seconds);  // `seconds`: the clock

  void begin(std::span<const Decision> decisions) override;
  void end(const RunSummary& summary) override;
  void on_step(const Progress& progress) override { on_steps({&progress, 1}); }
  void on_steps(std::span<const Progress> steps);  // each output gets all of them before the next output does
  void on_validation(const ValidationResult& result) override;
  void on_sample(int64_t step, const std::string& text) override;
  void on_checkpoint(int64_t step, const std::string& folder, double seconds) override;
  void on_notice(const std::string& line) override;

  // Writes a file at the end of the run, with two attempts because there is no later retry. Reports a failure and returns false.
  bool write_last(std::string_view what, const std::function<void()>& write);

 private:
  struct Output {
    TrainerView* view;
    int failures = 0;                     // since the last successful write
    double first_at = 0, counted_at = 0;  // times of those failures, in seconds
    bool reported = false, off = false;
  };
  template <class Call>
  bool attempt(Output& output, Call call);
  template <class Call>
  void each(Call call);
  void report();

  std::function<double()> seconds_;
  std::vector<Output> outputs_;
  std::vector<std::pair<const Output*, std::string>> reports_;  // with the output that each one is about
};

}  // namespace ridge
