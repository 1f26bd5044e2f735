// The global norm of the gradients: used for clipping, and to decide whether a step may be applied.
#pragma once
#include <span>
#include <vector>

#include "graph/builder.h"

namespace ridge {

// Euclidean norm over all elements of all tensors, f32. Finite if and only if every element is (and no square overflows).
NodeId global_norm(Builder& b, std::span<const NodeId> tensors);

struct Clipped {
  std::vector<NodeId> gradients;
  NodeId norm;  // before clipping
};
// Scales by min(1, max_norm / (norm + 1e-6)).
Clipped clip_global_norm(Builder& b, std::span<const NodeId> gradients, double max_norm);

}  // namespace ridge
