// Names the operands of attention nodes; shared by shape rules, decompositions and backends.
#pragma once
#include "graph/graph.h"

namespace ridge {

// attrs: ints = causal, mask kind (0 none, 1 boolean, 2 additive), has length, has dropout, stream; reals = scale, dropout
struct AttentionOperands {
  NodeId q, k, v, mask = kNone, length = kNone, seed = kNone, step = kNone, base = kNone;
  NodeId out = kNone, lse = kNone, dout = kNone;  // attention_grad only
  bool causal;
  int mask_kind;
  uint32_t stream;
  double scale, dropout;
};
AttentionOperands attention_operands(const Node& node);

}  // namespace ridge
