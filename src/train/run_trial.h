// Trains a few steps of a task with certain settings and keeps nothing, to learn how fast they are; and what follows for batch=auto and ridge tune.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "train/task.h"
#include "tune/search.h"
#include "tune/size_choice.h"

namespace ridge {

class RunTrial {
 public:
  // Plans the run and allocates its memory; throws what planning throws.
  RunTrial(const Task& task, const config::Resolved& settings, const RunOptions& options);
  // Trains for about this long after two warm-up steps, and returns the median seconds of a step with everything it waits for. Steps that learn from one
  // collected batch count together.
  double step_seconds(double seconds);
  double units() const;  // that a step learns from: tokens, sequences, steps of an environment
  const TaskRun& run() const { return *run_; }

 private:
  void group();

  std::unique_ptr<TaskRun> run_;
  TrainerTask task_;
  int64_t number_ = 0;
  double lr_ = 0;
};

// How fast a setting that is a size trains, from `first` on; sizes that would be split or do not fit end the curve. A measurement takes about
// `seconds`, and long enough to see whether other programs use the machine. `others` overrides the share of it that they use, for tests.
SizeCurve measure_sizes(const Task& task, const config::Resolved& settings, const RunOptions& options, const std::string& key, int64_t first, double seconds,
                        std::function<double()> others = {});
std::string curve_text(const SizeCurve& curve, const std::string& key, const std::string& unit);
std::string curve_svg(const SizeCurve& curve, const std::string& key, const std::string& unit, const std::string& title);

// Whether batch=auto was asked for, rather than left open.
bool is_batch_measured(const config::Resolved& settings);

// Sizes of a model that train the most parameters per second (parameters x units per second), with steps that take at most `latency` seconds.
struct SizeSearch {
  TuneSpace space;
  TuneResult result;
  double present_rate = 0, best_rate = 0;  // parameters x units per second
  double step_seconds = 0;
  int64_t parameters = 0;
  bool present_fits = false;  // the present sizes keep the latency
};
struct SizeSearchOptions {
  double latency = 0.01, seconds = 12;
  std::function<double(const TaskRun&)> guess = {};  // seconds of a step instead of a measurement, for a machine that is not here; `seconds` is then ignored
  std::function<double()> others = {};               // overrides the share of the machine that other programs use, for tests
};
SizeSearch search_sizes(const Task& task, const config::Resolved& settings, const RunOptions& options, const SizeSearchOptions& search);

}  // namespace ridge
