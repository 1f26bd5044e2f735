#include "backend/attention_desc.h"

#include <utility>

#include "compile/program.h"
#include "graph/ops/attention.h"

namespace ridge {
namespace {

AttentionDesc::Strides strides(const View& v) {
  AttentionDesc::Strides s{};
  for (size_t a = 0; a < 4; ++a) s[a] = v.axes[a].empty() ? 0 : v.axes[a][0].stride;
  return s;
}

AttentionDesc::Strides heads_first(AttentionDesc::Strides s) {  // from [batch, position, head, dim]
  std::swap(s[1], s[2]);
  return s;
}

}  // namespace

AttentionDesc attention_desc(const Program& program, const ProgramKernel& kernel) {
  const Graph& g = program.graph;
  const Node& n = g[kernel.group.node];
  AttentionOperands o = attention_operands(n);
  AttentionDesc d;
  const Shape &q = g.shape(o.q), &k = g.shape(o.k);
  d.batch = q[0], d.heads = q[1], d.queries = q[2], d.dim = q[3], d.kv_heads = k[1], d.keys = k[2];
  d.dtype = g.dtype(o.q);
  d.q = strides(kernel.views[0]), d.k = strides(kernel.views[1]), d.v = strides(kernel.views[2]);
  if (o.mask_kind) d.mask = o.mask_kind == 1 ? AttentionDesc::Mask::boolean : AttentionDesc::Mask::additive, d.mask_strides = strides(kernel.views[3]);
  d.scale = o.scale, d.causal = o.causal, d.has_length = o.length != kNone, d.dropout = o.dropout, d.stream = o.stream;
  size_t ins = n.in.size();
  if (n.op == Op::attention) {
    d.out = heads_first(strides(kernel.views[ins]));
    return d;
  }
  d.out = heads_first(strides(kernel.views[ins - 3])), d.dout = heads_first(strides(kernel.views[ins - 1]));
  d.dq = heads_first(strides(kernel.views[ins])), d.dk = heads_first(strides(kernel.views[ins + 1])), d.dv = heads_first(strides(kernel.views[ins + 2]));
  return d;
}

}  // namespace ridge
