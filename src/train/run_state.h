// What a run carries from step to step beside weights and moments, as its checkpoints hold it in state.json.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "ridge/score.h"
#include "step/step.h"

namespace ridge {

// How random numbers are counted (docs/ops.md). 2: inside loops by the time index, in parts of a batch along the samples' own axis. A folder
// that says nothing has version 1.
constexpr int kDrawsVersion = 2;

struct RunState {
  int draws = kDrawsVersion;  // of the program that wrote it
  StepState step;
  int64_t next_batch = 0;
  std::vector<int64_t> left_out;  // batches that led to non-finite values
  int64_t skipped = 0;
  int roll_backs = 0;
  std::vector<int64_t> strikes;                         // batches of the bad steps in a row so far
  Score score;                                          // by which validations are judged; files that say nothing mean the loss
  std::optional<double> best_score, final_score;        // where that is the loss, the same as
  std::optional<double> best_val_loss, final_val_loss;  // the losses of those validations
  int64_t best_step = 0;
  int64_t validation_samples = 0;  // that these losses are of; 0: not known
  bool validation_due = false;     // the run was stopped before it
  double first_loss = 0;
  std::deque<double> recent_losses;                                               // the last kMeanSteps
  double seconds = 0;                                                             // of all parts so far
  int64_t validation_interval = 0, checkpoint_interval = 0, sample_interval = 0;  // as settled at the start; 0: never
  bool finished = false;
  int cut = kTextCut;  // version of the cut of texts that the run's tokens were made with; files that say nothing are of version 1
  std::map<std::string, std::string> identity, settings, choices;

  double final_train_loss() const;  // mean of the recent ones
  void forget_validations();        // those of other samples, or by another score, cannot be compared
};

std::string to_json(const RunState& state);
RunState run_state_from(const std::string& json, const std::string& file);  // ErrorCode::io names the file and what is wrong in it

}  // namespace ridge
