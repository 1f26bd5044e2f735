#include "backend/conv_desc.h"

#include <numeric>

#include "base/error.h"
#include "compile/conv_views.h"
#include "compile/program.h"

namespace ridge {

// 1-D convolutions get a first axis of size 1.
ConvDesc conv_desc(const Graph& g, NodeId id) {
  const Node& n = g[id];
  const Shape &x = g.shape(n.in[0]), &w = g.shape(n.in[1]), &out = n.type().shape;
  const std::vector<int64_t>& a = n.attrs.ints;
  const int spatial = x.rank() - 2;
  ConvDesc d;
  d.x = g.dtype(n.in[0]), d.w = g.dtype(n.in[1]), d.result = n.type().dtype;
  d.groups = a[0], d.images = x[0], d.channels = w[1], d.outputs = w[0] / d.groups;
  for (int i = 0; i < spatial && i < 2; ++i) {
    const size_t to = size_t(i + 2 - spatial), at = size_t(1 + i), s = size_t(spatial);
    d.source[to] = x[2 + i], d.window[to] = w[2 + i], d.out[to] = out[2 + i];
    d.stride[to] = a[at], d.low[to] = a[at + s], d.spread[to] = a[at + 3 * s], d.dilation[to] = a[at + 4 * s];
  }
  return d;
}

ConvDesc conv_desc(const Program& program, const ProgramKernel& kernel) {
  const Graph& g = program.graph;
  const Node& n = g[kernel.group.node];
  ConvDesc d = conv_desc(g, kernel.group.node);
  auto steps = [&](size_t operand, const Shape& shape, int grouped) {
    const auto found = conv_steps(kernel.views[operand], shape, grouped, d.groups);
    if (!found) fail(ErrorCode::internal, "[conv] operand {} {} is not divided into {} groups", operand, to_string(shape), d.groups);
    const std::vector<int64_t>& s = *found;
    ConvDesc::Steps out;
    out.first = grouped == 0 ? s[1] : s[0], out.group = grouped == 0 ? s[0] : s[1], out.second = s[2];
    if (s.size() == 5) out.axes[0] = s[3];
    out.axes[1] = s.back();
    const ProgramOperand& o = kernel.operands[operand];
    const ProgramBuffer& buffer = program.buffer_of(o.owner);
    out.alignment = std::gcd(o.offset, buffer.place == ProgramBuffer::Place::arena ? int64_t(64) : std::gcd(buffer.bytes, int64_t(64)));
    return out;
  };
  d.x_steps = steps(0, g.shape(n.in[0]), 1), d.w_steps = steps(1, g.shape(n.in[1]), 0);
  if (kernel.views.size() > 2) d.out_steps = steps(2, n.type().shape, 1);
  return d;
}

}  // namespace ridge
