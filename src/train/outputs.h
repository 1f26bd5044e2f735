// All outputs of a run as one. An output that fails costs itself and never the run: the others are told once, it goes on being tried, and is switched
// off after some failures in a row.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "train/train_view.h"

namespace ridge {

class Outputs : public RunView {
 public:
  static constexpr int kTries = 3;                      // failures in a row
  explicit Outputs(std::vector<TrainerView*> outputs);  // all must live as long as it

  void begin(std::span<const Decision> decisions) override;
  void end(const RunSummary& summary) override;
  void on_step(const Progress& progress) override { on_steps({&progress, 1}); }
  void on_steps(std::span<const Progress> steps);  // each output is told all of them before the next one is
  void on_validation(const ValidationResult& result) override;
  void on_sample(int64_t step, const std::string& text) override;
  void on_checkpoint(int64_t step, const std::string& folder, double seconds) override;
  void on_notice(const std::string& line) override;

 private:
  struct Output {
    TrainerView* view;
    int failures = 0;  // in a row
    bool told = false;
  };
  template <class Call>
  bool attempt(Output& output, Call call);
  template <class Call>
  void each(Call call);
  void report();

  std::vector<Output> outputs_;
  std::vector<std::pair<const Output*, std::string>> reports_;  // whom they are about
};

}  // namespace ridge
