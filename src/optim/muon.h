// Muon as a graph: momentum whose direction is made orthogonal by matrix products, so that an update changes all directions of a matrix equally.
#pragma once
#include <span>
#include <vector>

#include "graph/builder.h"

namespace ridge {

struct MuonState {
  std::vector<NodeId> parameters;  // of two or more axes; further axes are flattened into the second, as for convolutions
  std::vector<NodeId> momentum;    // zeros before the first step
};

struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  double scale = 0.2;
};

// U·Vᵀ of the singular value decomposition U·S·Vᵀ of a matrix, approximately: its singular values are 0.68 to 1.14 instead of 1, those that start below
// 1e-3 of the norm less. Five Newton-Schulz iterations of degree 5. A matrix of zeros stays zero.
NodeId orthogonalize(Builder& b, NodeId matrix);

// One step. `rate` and `good` as for adamw; `decay` scales the parameter by 1 - rate·decay. The update is rate · scale · √max(rows, columns) times an
// orthogonal matrix: the root of its mean square is about rate · scale whatever the shape, and 0.2 is what AdamW's usually has, so rates for AdamW fit.
MuonState muon(Builder& b, const MuonState& state, std::span<const NodeId> gradients, NodeId rate, std::span<const double> decay,
               const MuonOptions& options = {}, NodeId good = kNone);

}  // namespace ridge
