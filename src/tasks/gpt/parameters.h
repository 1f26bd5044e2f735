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

DType weight_storage(Precision precision);  // of matrices that are only read; tf32 is a way to multiply fp32

// A model's parameters where programs can read them: memory of their own, in f32 or with matrices in 16 bits, or somebody else's.
class GptParameters {
 public:
  using Fill = std::function<void(size_t index, std::span<float> values)>;
  // `backend`: where the memory of their own lies.
  GptParameters(const GptConfig& config, DType storage, const Fill& fill, Backend& backend = default_backend());
  explicit GptParameters(const GptWeights& weights, DType storage = DType::f32, Backend& backend = default_backend());
  GptParameters(const GptConfig& config, std::span<const std::span<float>> in_place);  // f32; read as they are at the time
  GptParameters(const GptConfig& config, std::vector<const void*> in_place);           // the same on any device
  ~GptParameters();
  GptParameters(GptParameters&&) noexcept;

  const GptConfig& config() const;
  DType storage() const;
  int64_t bytes() const;        // all that a pass over the model reads
  int64_t owned_bytes() const;  // memory of its own
  const std::vector<const void*>& data() const;

  // Inputs of a graph for all of them, to be bound to data(), and the same widened to f32 for the model's functions.
  struct Nodes {
    std::vector<NodeId> inputs, values;
  };
  Nodes trace(Graph& graph) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
