// The network of an agent: observations to a distribution over actions and a value.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ridge/circuits.h"
#include "ridge/nn.h"
#include "ridge/rl.h"

namespace ridge {

struct PolicyArgs {
  std::string network = "mlp";      // mlp; for pictures: nature (three convolutions), small (two)
  int64_t hidden = 64, layers = 2;  // of an mlp
  std::string activation = "tanh";  // of an mlp: tanh, relu
  bool separate = false;            // the value has layers of its own
  std::string memory = "none";      // a recurrent layer before the outputs: none, cfc, ltc, lstm, gru, mingru
  int64_t memory_units = 64;
  Shape observation;  // of one instance
  DType dtype = DType::f32;
  ActionSpace actions;

  std::string json() const;  // without observation, dtype and actions, which are the environment's
  static PolicyArgs from_json(std::string_view text);
  std::string describe() const;  // "mlp 64x3 relu, lstm of 64 units"
};

// A module. Weights are orthogonal, biases 0; the outputs for actions start near 0, so that all actions are about as likely.
class Policy {
 public:
  explicit Policy(PolicyArgs args);

  struct Output {
    Tensor distribution;             // [rows, n]: the logits of all components, or the means of continuous actions
    Tensor value;                    // [rows]
    std::vector<Tensor> state = {};  // of the memory
  };
  Output step(const Tensor& observation, const std::vector<Tensor>& state) const;  // observation [rows, …]
  // Sequences of equal length: observation [rows, time, …], results [rows · time, …]. The state is 0 from where `reset` (f32 [rows, time]) is 1.
  Output sequence(const Tensor& observation, const std::vector<Tensor>& state, const Tensor& reset) const;
  std::vector<Tensor> zero_state(int64_t rows) const;
  bool has_memory() const { return memory_.has_value(); }

  // Actions as they are stored: i64 [rows] or [rows, n]; continuous ones f32 [rows, n], where -1 … 1 stands for the environment's bounds and values outside
  // of it are possible. Draws depend on the instance and its counter.
  Tensor sample(const Tensor& distribution, const Tensor& counter, const Tensor& instance) const;
  Tensor most_likely(const Tensor& distribution) const;
  Tensor for_environment(const Tensor& action) const;                              // within the bounds
  Tensor log_probability(const Tensor& distribution, const Tensor& action) const;  // [rows]
  Tensor entropy(const Tensor& distribution) const;                                // [rows]

  const PolicyArgs& args() const { return args_; }
  void visit(Visitor& v);

 private:
  Tensor features(const Tensor& observation, size_t tower) const;
  Output heads(const Tensor& actor, const Tensor& critic) const;
  std::vector<Tensor> logits_by_component(const Tensor& distribution) const;

  PolicyArgs args_;
  struct Tower {
    std::vector<Conv2d> convolutions;
    std::vector<Linear> layers;
    void visit(Visitor& v) { v("conv", convolutions)("layers", layers); }
  };
  std::vector<Tower> towers_;  // one, or one for the actions and one for the value
  std::optional<Circuit> memory_;
  std::optional<Linear> actor_, critic_;
  Tensor log_deviation_;  // [n] of continuous actions
};

}  // namespace ridge
