// The source of a run's batches: a data set, or data collected with the current weights.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace ridge {

class BatchFeed {
 public:
  virtual ~BatchFeed() = default;

  struct Batch {
    int64_t position = 0;                  // the batch's position; used to leave out batches that lead to non-finite values
    std::span<const void* const> tensors;  // in host memory; valid until the next call
  };
  // The batch of a step, counted from 0. If batches come in parts: its first part.
  virtual Batch next(int64_t step) = 0;

  // The position after the batch that next() returned last: where a resumed or rolled-back run continues.
  virtual int64_t position() const = 0;
  // Continues at that position, or starts at 0, leaving out the batches at these positions. Called before the first batch, and after weights and the
  // task's state have been restored.
  virtual void seek(int64_t position, const std::vector<int64_t>& left_out) = 0;

  // Whether batches are made with the current weights. If so, all steps have ended before a batch is requested, so that the feed can run
  // programs that read the step's parameters (step/read_program.h) and keep its own state in the task's.
  virtual bool on_policy() const { return false; }

  // For batches held one micro-batch at a time: the tensors of the next micro-batch.
  virtual bool in_parts() const { return false; }
  virtual std::span<const void* const> next_part() { return {}; }

  virtual bool wait(double seconds) { return (void)seconds, true; }  // waits at most this long for a batch; returns whether next() would not block
  virtual double waited_seconds() const { return 0; }                // for data, since the feed was created
};

}  // namespace ridge
