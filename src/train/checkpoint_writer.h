// Writes the checkpoints of a run: taken between two steps and, if the step's memory is not the host's, written while training continues.
#pragma once
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/checkpoint.h"
#include "train/run_state.h"
#include "train/training_loop.h"

namespace ridge {

class CheckpointWriter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Callbacks into the run, all from the thread that calls the writer.
  struct Calls {
    std::function<const RunState&()> state;               // returns the state to save; called when a checkpoint begins
    std::function<void()> before_write;                   // flushes the metrics rows of the steps in the checkpoint
    std::function<void(const std::string& line)> notice;  // reports files that could not be removed or written, or are damaged
    std::function<void(Time start)> spent;                // training has waited for the checkpoint since `start`
    std::function<void(int64_t step, double seconds)> on_written;
    std::function<void(int64_t step, const std::string& why)> on_failed;  // for example on a full disk; earlier checkpoints are intact
  };
  CheckpointWriter(const TrainerTask& task, const TrainerOptions& options, Calls calls);  // task and options must outlive the writer

  bool empty() const { return store_.steps().empty(); }
  std::optional<StoredCheckpoint> newest() const;  // the newest intact checkpoint
  void restore(const StoredCheckpoint& stored, const StepState& state);
  int64_t saved_step() const { return saved_step_; }  // of the last checkpoint written or restored; -1: none
  int failed() const { return failed_; }              // consecutive failed saves

  // later: a checkpoint that is due only because it is the best waits in memory for checkpoint_rest, unless tensors are saved in place. A
  // better one replaces it.
  void save(bool best, bool later);
  void poll();    // between steps: reports a finished checkpoint, and writes one that has waited long enough
  void wait();    // until the current write is done
  void finish();  // writes everything pending, and waits for it

 private:
  struct SaveInProgress {
    int64_t step = -1;
    Time start = {};
  };
  struct CopiedValues {
    std::shared_ptr<float> data;
    bool straight = false;
  };
  struct Saved {
    std::vector<std::string> left;  // files that could not be removed
    Time end;
  };
  template <class Visit>
  void each_tensor(Visit visit);
  std::span<const float> values_of(size_t index, TrainStep::Held what, size_t count, size_t& used);
  void add_task_state(CheckpointContent& content) const;
  bool rested() const;
  void write_held(Time start);

  const TrainerTask& task_;
  const TrainerOptions& o_;
  TrainStep& step_;
  Calls calls_;
  CheckpointStore store_;
  std::vector<CopiedValues> copies_;
  size_t straight_ = 0;                      // number of floats in memory that the device writes to directly
  std::shared_ptr<CheckpointContent> held_;  // in memory, not yet written
  bool held_best_ = false;
  SaveInProgress in_progress_;
  Time saved_at_ = {};
  int64_t saved_step_ = -1;
  int failed_ = 0;
  std::future<Saved> saving_;  // uses the store and the copies, so it is declared after them
};

}  // namespace ridge
