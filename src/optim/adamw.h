// Adam and AdamW as graph: parameters and moments come in as nodes and leave as nodes, all elementwise, so that the whole
// update fuses. What changes between steps (rate, applied steps) is a rank-0 node: a schedule compiles once.
#pragma once
#include <span>
#include <vector>

#include "graph/builder.h"

namespace ridge {

struct AdamState {
  std::vector<NodeId> parameters, first, second;  // alike in number and shape
  NodeId applied = kNone;                         // i64 scalar: updates applied so far; skipped ones do not count
};

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};

// One step; the result's `applied` is one higher. `rate` is an f32 scalar node, `decay` has one entry per parameter (or one
// for all, or none for 0). With `good` (a boolean scalar) everything keeps its old value where it is false.
// AdamW shrinks the parameter by 1 - rate·decay; Adam adds decay·parameter to the gradient.
AdamState adamw(Builder& b, const AdamState& state, std::span<const NodeId> gradients, NodeId rate, std::span<const double> decay,
                const AdamOptions& options = {}, NodeId good = kNone);
AdamState adam(Builder& b, const AdamState& state, std::span<const NodeId> gradients, NodeId rate, std::span<const double> decay,
               const AdamOptions& options = {}, NodeId good = kNone);

}  // namespace ridge
