// A forward program that reads a step's parameters: for acting, sampling and validating with the current weights.
#pragma once
#include <functional>
#include <memory>
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

  // Compiles for the step's device; nothing is allocated before the first run. The step must outlive the program.
  ReadProgram(TrainStep& step, const std::vector<Type>& inputs, const Build& build);

  // Inputs and outputs are in host memory. All enqueued steps must have been collected, or the program would read weights while they
  // change. Draws are a function of `seed` and `number`, and never coincide with those of a training step.
  void run(std::span<const void* const> inputs, std::span<void* const> outputs, uint64_t seed = 0, int64_t number = 0);

  int64_t bytes() const;  // held in addition to the parameters

 private:
  TrainStep& step_;
  std::unique_ptr<Executable> program_;
  std::unique_ptr<Arena> memory_;  // seed, number and base, inputs, outputs
  std::vector<int64_t> at_;        // offset of each of those
  std::vector<const void*> in_;
  std::vector<void*> out_;
};

}  // namespace ridge
