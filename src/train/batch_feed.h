// The source of a run's batches: a data set, or data collected with the current weights.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ridge {

struct StepMetrics;

class BatchFeed {
 public:
  virtual ~BatchFeed() = default;

  struct Batch {
    int64_t position = 0;                  // the batch's position; used to leave out batches that lead to non-finite values
    std::span<const void* const> tensors;  // in host memory; valid until the next call
    bool left_out = false;                 // the step is counted, but computes and changes nothing
    bool on_device = false;                // the tensors are in device memory, and the learning rate where the step reads it (TrainStep::enqueue_in_place)
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

  virtual bool needs_results(int64_t step) const { return (void)step, on_policy(); }  // whether all steps must have ended before the batch of this one

  // For batches that come in groups, such as the passes over what was collected once: the number of steps in a group. Validations, checkpoints and the end of
  // a run wait for the end of a group, so that a feed never has to continue in the middle of one.
  virtual int64_t group() const { return 1; }
  double rate_scale = 1;                                                          // set by the training loop: a factor of all learning rates
  virtual double rate(double scheduled) const { return scheduled * rate_scale; }  // the learning rate of the batch that next() returned last
  virtual void collected(const StepMetrics& metrics) { (void)metrics; }           // called after each step
  // Figures of the feed itself, reported with each step behind the scalars of the loss, such as the score of finished episodes. The names never change.
  virtual std::span<const std::string> scalar_names() const { return {}; }
  virtual std::span<const double> scalars() const { return {}; }
  virtual double frames() const { return 0; }    // of an environment, per unit that the run's speed counts; 0: batches are not played
  virtual bool may_end() const { return true; }  // whether a validation that reaches the target may end the run now
  // For a validation that is played: about how long one takes, in seconds; 0: unknown. A time-limited run leaves time for its last one.
  virtual double validation_seconds() const { return 0; }
  virtual std::string diagnosis() const { return "try a lower lr"; }  // after batches that gave non-finite steps twice: the likely cause, and what to do
  virtual bool wants_validation() const { return false; }             // a validation is requested, whatever the interval; asked once per group

  // For batches held one micro-batch at a time: the tensors of the next micro-batch.
  virtual bool in_parts() const { return false; }
  virtual std::span<const void* const> next_part() { return {}; }

  virtual bool wait(double seconds) { return (void)seconds, true; }  // waits at most this long for a batch; returns whether next() would not block
  virtual double waited_seconds() const { return 0; }                // for data, since the feed was created
};

}  // namespace ridge
