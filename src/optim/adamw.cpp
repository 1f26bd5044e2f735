#include "optim/adamw.h"

#include <algorithm>
#include <cmath>

#include "optim/update.h"

namespace ridge {
namespace {

AdamState update(Builder& b, const AdamState& old, std::span<const NodeId> gradients, NodeId rate, std::span<const double> decay, const AdamOptions& o,
                 NodeId good, bool decoupled) {
  const char* op = decoupled ? "adamw" : "adam";
  check_update(b, op, old.parameters, gradients, decay);
  check_state(b, op, old.parameters, old.first);
  check_state(b, op, old.parameters, old.second);
  AdamState out;
  out.applied = b.add(old.applied, 1.0);
  // 1 - beta^t through expm1: in the first steps with beta2 = 0.999 the subtraction would lose four digits in f32.
  NodeId t = b.cast(out.applied, DType::f32);
  NodeId bias1 = b.neg(b.unary(Op::expm1, b.mul(t, std::log(o.beta1))));
  NodeId bias2 = b.neg(b.unary(Op::expm1, b.mul(t, std::log(o.beta2))));
  NodeId rate1 = b.div(rate, bias1), root2 = b.unary(Op::sqrt, bias2);
  // If any parameter decays, all are multiplied, some by 1, because identical updates run in one launch.
  bool decays = std::any_of(decay.begin(), decay.end(), [](double d) { return d != 0; });
  for (size_t i = 0; i < gradients.size(); ++i) {
    NodeId p = old.parameters[i], m = old.first[i], v = old.second[i], g = b.cast(gradients[i], b.dtype(p));
    double shrink = decay_of(decay, i);
    if (decays && decoupled) p = b.mul(p, b.binary(Op::sub, 1.0, b.mul(rate, shrink)));
    if (decays && !decoupled) g = b.add(g, b.mul(p, shrink));
    m = b.add(m, b.mul(b.sub(g, m), 1 - o.beta1));
    v = b.add(b.mul(v, o.beta2), b.mul(b.mul(g, 1 - o.beta2), g));
    NodeId denominator = b.add(b.div(b.unary(Op::sqrt, v), root2), o.eps);
    p = b.sub(p, b.div(b.mul(m, rate1), denominator));
    out.parameters.push_back(keep_unless(b, good, p, old.parameters[i]));
    out.first.push_back(keep_unless(b, good, m, old.first[i]));
    out.second.push_back(keep_unless(b, good, v, old.second[i]));
  }
  out.applied = keep_unless(b, good, out.applied, old.applied);
  return out;
}

}  // namespace

AdamState adamw(Builder& b, const AdamState& state, std::span<const NodeId> gradients, NodeId rate, std::span<const double> decay, const AdamOptions& options,
                NodeId good) {
  return update(b, state, gradients, rate, decay, options, good, true);
}

AdamState adam(Builder& b, const AdamState& state, std::span<const NodeId> gradients, NodeId rate, std::span<const double> decay, const AdamOptions& options,
               NodeId good) {
  return update(b, state, gradients, rate, decay, options, good, false);
}

}  // namespace ridge
