// The state of a run in addition to weights and moments, stored as state.json in its checkpoints.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "ridge/score.h"
#include "step/train_step.h"

namespace ridge {

// Version of how random numbers are counted (docs/ops.md). 2: by time index inside loops, and along the sample axis in parts of a batch. A folder
// without this entry has version 1.
constexpr int kDrawsVersion = 2;

struct RunState {
  int draws = kDrawsVersion;  // version used by the program that wrote the state
  StepState step;
  int64_t next_batch = 0;
  std::vector<int64_t> left_out;  // batches that led to non-finite values
  int64_t skipped = 0;
  int roll_backs = 0;
  std::vector<int64_t> strikes;                         // batches of the consecutive bad steps so far
  Score score;                                          // the validation metric; the loss if the file has no entry
  std::optional<double> best_score, final_score;        // equal to the next two if the score is the loss
  std::optional<double> best_val_loss, final_val_loss;  // losses of the same validations
  int64_t best_step = 0;
  int64_t validation_samples = 0;  // number of samples behind these losses; 0: unknown
  std::string validation_data;     // identifies them; empty: unknown
  bool validation_due = false;     // the run was stopped before a validation that was due
  double first_loss = 0;
  std::deque<double> recent_losses;                                               // the last kMeanSteps
  double seconds = 0;                                                             // over all parts so far
  int64_t validation_interval = 0, checkpoint_interval = 0, sample_interval = 0;  // as decided at the start; 0: never
  bool finished = false;
  int cut = kTextCut;  // version of the text splitting behind the run's tokens; 1 if the file has no entry
  std::map<std::string, std::string> identity, settings, choices;

  double final_train_loss() const;  // mean of recent_losses
  void forget_validations();        // after a change of samples or score, as results are no longer comparable
};

std::string to_json(const RunState& state);
RunState run_state_from(const std::string& json, const std::string& file);  // ErrorCode::io names the file and the problem

}  // namespace ridge
