// A GPT's parameters in memory, for programs that only read them: sampling and evaluation.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "machine/precision.h"
#include "measure/default_team.h"
#include "tasks/gpt/files.h"

namespace ridge {

class Backend;

DType weight_storage(Precision precision);  // of read-only matrices; f32 for tf32, which is only a way to multiply

// A model's parameters for programs to read: in owned memory, in f32 or with 16-bit matrices, or in memory owned by others.
class GptParameters {
 public:
  using Fill = std::function<void(size_t index, std::span<float> values)>;
  // `backend`: where the owned memory is allocated.
  GptParameters(const GptConfig& config, DType storage, const Fill& fill, Backend& backend = default_backend());
  explicit GptParameters(const GptWeights& weights, DType storage = DType::f32, Backend& backend = default_backend());
  GptParameters(const GptConfig& config, std::span<const std::span<float>> in_place);  // f32, not copied: programs read the current values
  GptParameters(const GptConfig& config, std::vector<const void*> in_place);           // the same, on any device
  ~GptParameters();
  GptParameters(GptParameters&&) noexcept;

  const GptConfig& config() const;
  DType storage() const;
  int64_t bytes() const;        // read by one pass over the model
  int64_t owned_bytes() const;  // memory of its own
  const std::vector<const void*>& data() const;

  // Adds graph inputs for all parameters, to be bound to data(), and their values widened to f32 for the model's functions.
  struct Nodes {
    std::vector<NodeId> inputs, values;
  };
  Nodes trace(Graph& graph) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
