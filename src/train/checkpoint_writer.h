// The checkpoints of a run under way: taken between two steps, and written while training goes on where the step's memory is not the host's.
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
#include "train/trainer.h"

namespace ridge {

class CheckpointWriter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // What the run does about it. All are called from the thread that calls the writer.
  struct Calls {
    std::function<const RunState&()> state;               // as it is to be saved: one begins
    std::function<void()> before_write;                   // rows of the steps that it holds go to the disk first
    std::function<void(const std::string& line)> notice;  // what could not be removed or written, what is damaged
    std::function<void(Time start)> spent;                // since then training waited for it
    std::function<void(int64_t step, double seconds)> on_written;
    std::function<void(int64_t step, const std::string& why)> on_failed;  // as on a full disk; the ones before it are intact
  };
  CheckpointWriter(const TrainerTask& task, const TrainerOptions& options, Calls calls);  // the first two must live as long as it

  bool empty() const { return store_.steps().empty(); }
  std::optional<StoredCheckpoint> newest() const;  // that is whole
  void restore(const StoredCheckpoint& stored, const StepState& state);
  int64_t saved_step() const { return saved_step_; }  // of the last one written or restored; -1: none
  int failed() const { return failed_; }              // saves in a row, by now

  // later: what is due only because it is the best waits in memory for checkpoint_rest, unless it lies in place. A better one
  // takes its place.
  void save(bool best, bool later);
  void look();    // between steps: tells of one that was written meanwhile, writes one that has waited long enough
  void wait();    // until what is being written is
  void finish();  // nothing is being written, and nothing waits to be

 private:
  struct BeingSaved {
    int64_t step = -1;
    Time start = {};
  };
  struct CopiedValues {
    std::shared_ptr<float> data;
    bool straight = false;
  };
  struct Saved {
    std::vector<std::string> left;  // what could not be removed
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
  size_t straight_ = 0;                      // numbers in memory that the device writes to
  std::shared_ptr<CheckpointContent> held_;  // in memory, not yet written
  bool held_best_ = false;
  BeingSaved being_saved_;
  Time saved_at_ = {};
  int64_t saved_step_ = -1;
  int failed_ = 0;
  std::future<Saved> saving_;  // which uses the store and the copies: it ends before they do
};

}  // namespace ridge
