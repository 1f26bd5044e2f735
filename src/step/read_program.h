// A forward program over a step's own parameters, for acting, sampling and validating with the weights as they are.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/arena.h"
#include "runtime/executable.h"
#include "step/step.h"

namespace ridge {

class ReadProgram {
 public:
  // (builder, the step's parameters, inputs, random operands whose base is 0) -> outputs
  using Build = std::function<std::vector<NodeId>(Builder&, std::span<const NodeId>, std::span<const NodeId>, const RandomOperands&)>;

  // Compiled for the step's device; nothing is allocated before the first run. The step must live as long as it.
  ReadProgram(TrainStep& step, const std::vector<Type>& inputs, const Build& build);

  // With tensors in the host's memory. Every step that was enqueued must have been collected: else it would read weights that are being
  // changed. Draws are a function of `seed` and `number`, and no step of the training draws the same.
  void run(std::span<const void* const> inputs, std::span<void* const> outputs, uint64_t seed = 0, int64_t number = 0);

  int64_t bytes() const;  // that it holds besides the parameters

 private:
  TrainStep& step_;
  std::unique_ptr<Executable> program_;
  std::unique_ptr<Arena> memory_;  // seed, number and base, inputs, outputs
  std::vector<int64_t> at_;        // of each of those
  std::vector<const void*> in_;
  std::vector<void*> out_;
};

}  // namespace ridge
