// Whole training steps as one program, and the memory they run on.
#pragma once
#include <string>
#include <vector>

#include "backend/backend.h"
#include "graph/builder.h"
#include "nn/gpt.h"
#include "runtime/executable.h"
#include "step/train_step.h"

namespace ridge::engine {

// Forward, gradients, clip at 1, and AdamW under a guard. Inputs: data…, rate, then state; outputs: loss, norm, then the same state in the same memory:
// parameters, first and second moments, applied steps.
struct Step {
  Graph graph;
  std::vector<Parameter> parameters;
  std::vector<NodeId> inputs, outputs;
  std::vector<std::pair<int, int>> state;
  NodeId loss = kNone;
  int data = 0;  // how many inputs are data
};

Step make_step(const StepModel& model);

GptConfig small_gpt();                                                      // 4 layers, 4 heads, width 128
StepModel gpt_model(const GptConfig& config, int64_t batch, int64_t time);  // batch: tokens, targets (i64)
StepModel mlp_model(int64_t batch);                                         // 64 -> 128 -> 128 -> 10; batch: x, targets
StepModel conv_model(int64_t batch);                                        // two convolutions with pooling; batch: x [N, 3, 16, 16], targets

// Planned bytes as text, for comparison with the stored ones. Scratch depends on the number of threads and is left out.
std::string planned_bytes(const StepPlan& plan);

// A compiled step with the memory of its inputs and outputs. Data is drawn once from a seed; integers are below `classes`. If the device has its own memory,
// everything is copied there before a step and back after it.
class Training {
 public:
  Training(const Step& step, int64_t classes, CompileOptions options = default_backend());
  ~Training();
  float run(float rate);  // the loss before the update
  float norm() const;
  std::span<float> parameter(size_t index);
  std::span<float> data(size_t index);
  int64_t applied() const;
  std::vector<std::vector<std::byte>> state() const;  // a copy of everything the step changes
  const Report& report() const { return executable_.report(); }
  std::string dump() const { return executable_.dump(); }

 private:
  const Step& step_;
  Backend* device_;  // null: host memory
  Executable executable_;
  std::vector<std::vector<std::byte>> inputs_;
  std::vector<std::byte*> there_;  // copies of these on the device, then loss and norm
  std::vector<const void*> in_;
  std::vector<void*> out_;
  float loss_ = 0, norm_ = 0;
};

}  // namespace ridge::engine
