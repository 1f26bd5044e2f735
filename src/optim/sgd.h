// Stochastic gradient descent with optional momentum, plain or Nesterov, as a graph.
#pragma once
#include <span>
#include <vector>

#include "graph/builder.h"

namespace ridge {

struct SgdState {
  std::vector<NodeId> parameters;
  std::vector<NodeId> momentum;  // empty without momentum; zeros before the first step
};

struct SgdOptions {
  double momentum = 0;
  bool nesterov = false;
};

// One step. `rate` and `good` as for adamw; `decay` is added to the gradient.
SgdState sgd(Builder& b, const SgdState& state, std::span<const NodeId> gradients, NodeId rate, std::span<const double> decay, const SgdOptions& options = {},
             NodeId good = kNone);

}  // namespace ridge
