// Where a run's batches come from: a data set, or what is collected with the current weights.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace ridge {

class Feed {
 public:
  virtual ~Feed() = default;

  struct Batch {
    int64_t position = 0;                  // its own; what leads to values that are not finite is left out by it
    std::span<const void* const> tensors;  // in the host's memory; valid until the next call
  };
  // The batch of a step, 0 and up. Where batches come in parts: its first part.
  virtual Batch next(int64_t step) = 0;

  // Behind the batch that next() gave last: where a run continues that is resumed or goes back.
  virtual int64_t position() const = 0;
  // Continues there, or begins at 0, without the batches of these positions. Called before the first batch, and after weights and the task's
  // state have been restored.
  virtual void seek(int64_t position, const std::vector<int64_t>& left_out) = 0;

  // Whether batches are made with the current weights. Then all steps have ended before a batch is asked for, so that the feed can run
  // programs over the step's parameters (step/read_program.h) and keep what it carries in the task's state.
  virtual bool on_policy() const { return false; }

  // For batches of which only a micro-batch at a time is held: the tensors of the next one.
  virtual bool in_parts() const { return false; }
  virtual std::span<const void* const> next_part() { return {}; }

  virtual bool wait(double seconds) { return (void)seconds, true; }  // so long at most, for next() not to wait; whether it would not
  virtual double waited_seconds() const { return 0; }                // for data, since it was made
};

}  // namespace ridge
