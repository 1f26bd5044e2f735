#include "optim/clip.h"

#include "base/error.h"

namespace ridge {

NodeId global_norm(Builder& b, std::span<const NodeId> tensors) {
  if (tensors.empty()) return b.literal(DType::f32, 0);
  NodeId total = kNone;
  for (NodeId t : tensors) {
    NodeId squares = b.sum(b.square(b.cast(t, DType::f32)));
    total = total ? b.add(total, squares) : squares;
  }
  return b.unary(Op::sqrt, total);
}

Clipped clip_global_norm(Builder& b, std::span<const NodeId> gradients, double max_norm) {
  if (!(max_norm > 0)) fail(ErrorCode::value, "[clip_global_norm] max_norm {} must be above 0; leave clipping out instead", max_norm);
  Clipped out{{}, global_norm(b, gradients)};
  NodeId scale = b.binary(Op::minimum, b.binary(Op::div, max_norm, b.add(out.norm, 1e-6)), 1.0);
  for (NodeId g : gradients) out.gradients.push_back(b.mul(g, b.cast(scale, b.dtype(g))));
  return out;
}

}  // namespace ridge
