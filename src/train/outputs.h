// All outputs of a run as one. An output that fails costs itself and never the run: the others are told once, it goes on being tried, and is switched
// off when it has failed for a while and has written nothing meanwhile.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "train/train_view.h"

namespace ridge {

class Outputs : public RunView {
 public:
  static constexpr int kTries = 3;                      // failures, each kPause after the one before at least: quick steps are told many at a time
  static constexpr double kPause = 1, kPatience = 10;   // seconds; the latter from the first failure to the one that switches it off
  explicit Outputs(std::vector<TrainerView*> outputs);  // all must live as long as it
  Outputs(std::vector<TrainerView*> outputs, std::function<double()> seconds);  // of a clock

  void begin(std::span<const Decision> decisions) override;
  void end(const RunSummary& summary) override;
  void on_step(const Progress& progress) override { on_steps({&progress, 1}); }
  void on_steps(std::span<const Progress> steps);  // each output is told all of them before the next one is
  void on_validation(const ValidationResult& result) override;
  void on_sample(int64_t step, const std::string& text) override;
  void on_checkpoint(int64_t step, const std::string& folder, double seconds) override;
  void on_notice(const std::string& line) override;

  // A file that is written when the run is over: tried twice, as nothing tries it later. What could not be written is reported; false then.
  bool write_last(std::string_view what, const std::function<void()>& write);

 private:
  struct Output {
    TrainerView* view;
    int failures = 0;                     // since it wrote something
    double first_at = 0, counted_at = 0;  // of those
    bool told = false, off = false;
  };
  template <class Call>
  bool attempt(Output& output, Call call);
  template <class Call>
  void each(Call call);
  void report();

  std::function<double()> seconds_;
  std::vector<Output> outputs_;
  std::vector<std::pair<const Output*, std::string>> reports_;  // whom they are about
};

}  // namespace ridge
