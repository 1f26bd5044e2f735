// Stochastic gradient descent with momentum and Nesterov's look-ahead, as graph.
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

// One step. `rate`, `decay` (added to the gradient) and `good` as for adam.
SgdState sgd(Builder& b, const SgdState& state, std::span<const NodeId> gradients, NodeId rate, std::span<const double> decay, const SgdOptions& options = {},
             NodeId good = kNone);

}  // namespace ridge
