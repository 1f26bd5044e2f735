// Adam and AdamW as a graph: parameters and moments are nodes in and nodes out, and all operations are elementwise, so the whole update
// fuses. Values that change between steps (rate, applied steps) are rank-0 nodes, so a schedule needs no recompilation.
#pragma once
#include <span>
#include <vector>

#include "graph/builder.h"

namespace ridge {

struct AdamState {
  std::vector<NodeId> parameters, first, second;  // equal in number and shape
  NodeId applied = kNone;                         // i64 scalar: number of updates applied so far, not counting skipped ones
};

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};

// One step; the result's `applied` is one higher. `rate` is an f32 scalar node, `decay` has one entry per parameter (or one for all, or
// none for 0). If `good` (a boolean scalar) is given and false, everything keeps its old value. AdamW scales the parameter by 1 -
// rate·decay; Adam adds decay·parameter to the gradient.
AdamState adamw(Builder& b, const AdamState& state, std::span<const NodeId> gradients, NodeId rate, std::span<const double> decay,
                const AdamOptions& options = {}, NodeId good = kNone);
AdamState adam(Builder& b, const AdamState& state, std::span<const NodeId> gradients, NodeId rate, std::span<const double> decay,
               const AdamOptions& options = {}, NodeId good = kNone);

}  // namespace ridge
