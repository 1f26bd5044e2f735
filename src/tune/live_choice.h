// Which of several ways to do the same work makes the steps of a running training fastest. The ways give the same bits, so they are tried on the training's own
// steps: nothing is computed in addition, and what a slower way costs stays within a share of the run.
#pragma once
#include <cstddef>
#include <optional>
#include <vector>

namespace ridge {

class LiveChoice {
 public:
  struct Limits {
    double first = 10;    // seconds of steps before the first trial, at least
    double share = 0.02;  // of the steps' time that trials may take
    double pause = 300;   // seconds of steps between trials, at least
  };
  struct Switch {
    size_t from = 0, to = 0;
    double from_seconds = 0, to_seconds = 0;  // of a step: medians of interleaved blocks of steps
  };

  explicit LiveChoice(size_t ways, const Limits& limits);
  explicit LiveChoice(size_t ways) : LiveChoice(ways, Limits()) {}
  size_t use() const { return now_; }         // by the next step
  std::optional<Switch> add(double seconds);  // of the step that used it; returns a change that was adopted

 private:
  void begin(size_t candidate);
  std::optional<Switch> end(bool adopt);

  const Limits limits_;
  const size_t ways_;
  size_t current_ = 0, now_ = 0;
  size_t candidate_ = 0;  // == current_: no trial
  size_t skip_ = 0, in_block_ = 0;
  std::vector<double> present_, other_;
  double since_ = 0, tried_for_ = 0, wait_ = 0;  // seconds of steps
};

}  // namespace ridge
