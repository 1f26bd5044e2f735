// A forward program that reads a step's parameters: for acting, sampling and validating with the current weights.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/arena.h"
#include "runtime/executable.h"
#include "step/train_step.h"

namespace ridge {

class ReadProgram {
 public:
  // (builder, the step's parameters, inputs, random operands whose base is 0) -> outputs
  using Build = std::function<std::vector<NodeId>(Builder&, std::span<const NodeId>, std::span<const NodeId>, const RandomOperands&)>;

  // Compiles for the step's device; nothing is allocated before the first run. The step must outlive the program. Kept: how many of the first outputs overwrite
  // the first inputs, in run_in_place().
  ReadProgram(TrainStep& step, const std::vector<Type>& inputs, const Build& build, std::optional<size_t> kept = {});

  // Inputs and outputs are in host memory. All enqueued steps must have been collected, or the program would read weights while they
  // change. Draws are a function of `seed` and `number`, and never coincide with those of a training step.
  void run(std::span<const void* const> inputs, std::span<void* const> outputs, uint64_t seed = 0, int64_t number = 0);

  // The same in device memory that the caller holds, without waiting; for programs that were made with `kept`. Steps may be pending.
  void run_in_place(std::span<const void* const> inputs, std::span<void* const> outputs, uint64_t seed = 0, int64_t number = 0);

  const std::vector<Type>& output_types() const { return program_->output_types(); }
  int64_t bytes() const;  // held in addition to the parameters

 private:
  TrainStep& step_;
  std::unique_ptr<Executable> program_;
  std::unique_ptr<Arena> memory_;  // seed, number and base, inputs, outputs; in place: only the first three
  std::vector<int64_t> at_;        // offset of each of those
  bool in_place_;
  static constexpr size_t kNumbers = 3;                   // seed, number, base
  std::optional<std::array<int64_t, kNumbers>> numbers_;  // that the device has
  void bind_first(size_t inputs, size_t outputs, uint64_t seed, int64_t number);
  std::vector<const void*> in_;
  std::vector<void*> out_;
};

}  // namespace ridge
