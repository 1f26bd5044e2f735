#include "optim/muon.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "optim/clip.h"
#include "optim/update.h"

namespace ridge {

NodeId orthogonalize(Builder& b, NodeId x) {
  // An odd polynomial whose iterates take every singular value from 1e-3 to 1 close to 1; its slope at 0 is as steep as that allows.
  constexpr double kLinear = 3.4445, kCubic = -4.7750, kQuintic = 2.0315;
  constexpr int kIterations = 5;
  const bool tall = b.shape(x)[0] > b.shape(x)[1];
  if (tall) x = b.transpose(x);  // the products then have the smaller size
  x = b.div(x, b.add(global_norm(b, {&x, 1}), 1e-7));
  for (int i = 0; i < kIterations; ++i) {
    const NodeId square = b.matmul(x, b.transpose(x));
    const NodeId factor = b.add(b.mul(b.matmul(square, square), kQuintic), b.mul(square, kCubic));
    x = b.add(b.matmul(factor, x), b.mul(x, kLinear));
  }
  return tall ? b.transpose(x) : x;
}

MuonState muon(Builder& b, const MuonState& old, std::span<const NodeId> gradients, NodeId rate, std::span<const double> decay, const MuonOptions& o,
               NodeId good) {
  check_update(b, "muon", old.parameters, gradients, decay);
  check_state(b, "muon", old.parameters, old.momentum);
  MuonState out;
  for (size_t i = 0; i < gradients.size(); ++i) {
    NodeId p = old.parameters[i], g = b.cast(gradients[i], b.dtype(p));
    const Shape& shape = b.shape(p);
    if (shape.rank() < 2) fail(ErrorCode::shape, "[muon] parameter {} is {}; matrices have two or more axes", i, to_string(shape));
    const int64_t rows = shape[0], columns = shape.numel() / std::max<int64_t>(rows, 1);
    const NodeId m = b.add(b.mul(old.momentum[i], o.momentum), g);
    const NodeId direction = o.nesterov ? b.add(g, b.mul(m, o.momentum)) : m;
    const NodeId turned = b.reshape(orthogonalize(b, b.reshape(direction, {rows, columns})), shape);
    if (const double shrink = decay_of(decay, i); shrink != 0) p = b.mul(p, b.binary(Op::sub, 1.0, b.mul(rate, shrink)));
    p = b.sub(p, b.mul(turned, b.mul(rate, o.scale * std::sqrt(double(std::max(rows, columns))))));
    out.parameters.push_back(keep_unless(b, good, p, old.parameters[i]));
    out.momentum.push_back(keep_unless(b, good, m, old.momentum[i]));
  }
  return out;
}

}  // namespace ridge
