#include "optim/sgd.h"

#include "base/error.h"
#include "optim/update.h"

namespace ridge {

SgdState sgd(Builder& b, const SgdState& old, std::span<const NodeId> gradients, NodeId rate, std::span<const double> decay, const SgdOptions& o, NodeId good) {
  check_update(b, "sgd", old.parameters, gradients, decay);
  if (o.momentum != 0) check_state(b, "sgd", old.parameters, old.momentum);
  if (o.nesterov && o.momentum == 0) fail(ErrorCode::value, "[sgd] nesterov needs a momentum above 0");
  SgdState out;
  for (size_t i = 0; i < gradients.size(); ++i) {
    NodeId p = old.parameters[i], g = b.cast(gradients[i], b.dtype(p));
    if (double shrink = decay_of(decay, i); shrink != 0) g = b.add(g, b.mul(p, shrink));
    if (o.momentum != 0) {
      NodeId m = b.add(b.mul(old.momentum[i], o.momentum), g);
      out.momentum.push_back(keep_unless(b, good, m, old.momentum[i]));
      g = o.nesterov ? b.add(g, b.mul(m, o.momentum)) : m;
    }
    out.parameters.push_back(keep_unless(b, good, b.sub(p, b.mul(g, rate)), p));
  }
  return out;
}

}  // namespace ridge
