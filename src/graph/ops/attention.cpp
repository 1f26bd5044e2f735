#include "graph/ops/attention.h"

#include <cmath>

#include "base/error.h"
#include "graph/builder.h"
#include "graph/ops/rows.h"

namespace ridge {

AttentionOperands attention_operands(const Node& n) {
  AttentionOperands o{.q = n.in[0],
                      .k = n.in[1],
                      .v = n.in[2],
                      .causal = n.attrs.ints[0] != 0,
                      .mask_kind = int(n.attrs.ints[1]),
                      .stream = uint32_t(n.attrs.ints[4]),
                      .scale = n.attrs.reals[0],
                      .dropout = n.attrs.reals[1]};
  size_t at = 3;
  if (o.mask_kind) o.mask = n.in[at++];
  if (n.attrs.ints[2]) o.length = n.in[at++];
  if (n.attrs.ints[3]) o.seed = n.in[at], o.step = n.in[at + 1], o.base = n.in[at + 2], at += 3;
  if (n.op == Op::attention_grad) o.out = n.in[at], o.lse = n.in[at + 1], o.dout = n.in[at + 2];
  return o;
}

namespace ops {

Types infer_attention(const InferContext& c) {
  const Shape &q = c.in[0].shape, &k = c.in[1].shape, &v = c.in[2].shape;
  bool fits = q.rank() == 4 && k.rank() == 4 && v == k && q[0] == k[0] && q[3] == k[3] && k[1] > 0 && q[1] % k[1] == 0 && is_float(c.in[0].dtype) &&
              c.in[1].dtype == c.in[0].dtype && c.in[2].dtype == c.in[0].dtype;
  if (!fits)
    fail(ErrorCode::shape, "[{}] q {}, k {}, v {}: need [batch, heads, positions, dim] of one floating dtype, with k and v alike and their heads dividing q's",
         name(c.op), to_string(c.in[0]), to_string(c.in[1]), to_string(c.in[2]));
  return {{c.in[0].dtype, {q[0], q[2], q[1], q[3]}}, {DType::f32, {q[0], q[1], q[2]}}};
}

Types infer_attention_grad(const InferContext& c) {
  infer_attention(c);
  const Shape &q = c.in[0].shape, &k = c.in[1].shape;
  DType t = c.in[0].dtype;
  return {{t, {q[0], q[2], q[1], q[3]}}, {t, {k[0], k[2], k[1], k[3]}}, {t, {k[0], k[2], k[1], k[3]}}};
}

namespace {

// Shared by forward and backward: f32 operands with repeated heads, scores, where attention is allowed, and the dropout mask.
struct Scores {
  NodeId q, k, v, scores, allowed = kNone, keep = kNone;
};

Scores attention_scores(Builder& b, const AttentionOperands& o) {
  DType wide = promote(b.dtype(o.q), DType::f32);
  Shape qs = b.shape(o.q), ks = b.shape(o.k);
  int64_t share = qs[1] / ks[1];
  auto repeat = [&](NodeId x) {
    x = b.reshape(b.cast(x, wide), {ks[0], ks[1], 1, ks[2], ks[3]});
    return b.reshape(b.expand(x, {ks[0], ks[1], share, ks[2], ks[3]}), {ks[0], qs[1], ks[2], ks[3]});
  };
  Scores s{b.cast(o.q, wide), repeat(o.k), repeat(o.v), kNone};
  s.scores = b.mul(b.matmul(s.q, b.transpose(s.k)), o.scale);
  Shape full = {qs[0], qs[1], qs[2], ks[2]};
  NodeId length = o.length ? o.length : b.literal(DType::i64, double(ks[2]));
  NodeId key = b.iota(full, 3);
  auto also = [&](NodeId condition) { s.allowed = s.allowed ? b.binary(Op::logical_and, s.allowed, condition) : condition; };
  if (o.length) also(b.binary(Op::less, key, length));
  if (o.causal) also(b.binary(Op::less_equal, key, b.add(b.iota(full, 2), b.sub(length, double(qs[2])))));
  if (o.mask_kind == 1) also(o.mask);
  if (o.mask_kind == 2) s.scores = b.add(s.scores, b.cast(o.mask, wide));
  if (o.dropout > 0) s.keep = b.binary(Op::greater_equal, b.uniform(full, {o.seed, o.step, o.base, o.stream}), o.dropout);
  return s;
}

NodeId dropped(Builder& b, const Scores& s, const AttentionOperands& o, NodeId x) {
  return s.keep ? b.select(s.keep, b.mul(x, 1 / (1 - o.dropout)), b.like(x, 0)) : x;
}

}  // namespace

std::vector<NodeId> decompose_attention(Graph& g, NodeId id) {
  Builder b(g);
  AttentionOperands o = attention_operands(g[id]);
  Scores s = attention_scores(b, o);
  int64_t last = -1;
  NodeId x = s.allowed ? b.select(s.allowed, s.scores, b.like(s.scores, -INFINITY)) : s.scores;
  NodeId top = b.stop_gradient(b.reduce(Op::reduce_max, x, {&last, 1}, true));
  top = b.select(b.unary(Op::is_finite, top), top, b.like(top, 0));
  NodeId e = b.unary(Op::exp, b.sub(x, top));
  NodeId total = b.sum(e, {&last, 1}, true);
  // A row without allowed keys gives zeros and a log-sum-exp of -inf; the inner selects keep its derivatives finite.
  NodeId some = b.binary(Op::greater, total, 0.0), safe = b.select(some, total, b.like(total, 1));
  NodeId p = b.div(e, safe);
  NodeId out = b.cast(b.permute(b.matmul(dropped(b, s, o, p), s.v), {0, 2, 1, 3}), g.dtype(o.q));
  NodeId lse = b.reshape(b.select(some, b.add(b.unary(Op::log, safe), top), b.like(total, -INFINITY)), g[id].types[1].shape);
  return {out, b.cast(lse, DType::f32)};
}

namespace {

struct BackwardScores {
  Scores s;
  NodeId p, ds, dout;  // probabilities before dropout, gradient of the scores, gradient of the output with heads before positions
};

BackwardScores backward_scores(Builder& b, const AttentionOperands& o) {
  Scores s = attention_scores(b, o);
  DType wide = b.dtype(s.q);
  int64_t last = -1;
  Shape qs = b.shape(o.q);
  NodeId lse = b.reshape(b.cast(o.lse, wide), {qs[0], qs[1], qs[2], 1});
  lse = b.select(b.unary(Op::is_finite, lse), lse, b.like(lse, 0));  // -inf: a row without keys
  NodeId x = b.sub(s.scores, lse);
  NodeId p = b.unary(Op::exp, s.allowed ? b.select(s.allowed, x, b.like(x, -INFINITY)) : x);
  NodeId dout = b.permute(b.cast(o.dout, wide), {0, 2, 1, 3}), out = b.permute(b.cast(o.out, wide), {0, 2, 1, 3});
  NodeId dp = dropped(b, s, o, b.matmul(dout, b.transpose(s.v)));
  NodeId delta = b.sum(b.mul(dout, out), {&last, 1}, true);
  return {s, p, b.mul(p, b.sub(dp, delta)), dout};
}

}  // namespace

std::vector<NodeId> decompose_attention_grad(Graph& g, NodeId id) {
  Builder b(g);
  AttentionOperands o = attention_operands(g[id]);
  auto [s, p, ds, dout] = backward_scores(b, o);
  ds = b.mul(ds, o.scale);
  Shape qs = b.shape(o.q), ks = b.shape(o.k);
  auto narrow = [&](NodeId x) { return b.cast(b.permute(x, {0, 2, 1, 3}), g.dtype(o.q)); };
  auto gather_heads = [&](NodeId x) {
    int64_t axis = 2;
    return b.sum(b.reshape(x, {ks[0], ks[1], qs[1] / ks[1], ks[2], ks[3]}), {&axis, 1});
  };
  return {narrow(b.matmul(ds, s.k)), narrow(gather_heads(b.matmul(b.transpose(ds), s.q))),
          narrow(gather_heads(b.matmul(b.transpose(dropped(b, s, o, p)), dout)))};
}

namespace {

// The derivative of a row's log-sum-exp with respect to each score is its probability before dropout. So its gradient for q is a weighted mean of keys,
// which is attention with k as v, and its gradient for k is what that attention computes as the gradient of v.
void vjp_log_sum_exp(GradContext& c) {
  Builder b(c.graph());
  const Node n = c.graph()[c.node()];
  AttentionOperands o = attention_operands(n);
  DType wide = promote(b.dtype(o.q), DType::f32);
  std::vector<NodeId> in = {o.q, o.k, o.k};
  if (o.mask) in.push_back(o.mask);
  if (o.length) in.push_back(o.length);
  Attrs attrs = n.attrs;
  attrs.ints[3] = attrs.ints[4] = 0, attrs.reals[1] = 0;  // no dropout
  NodeId keys = c.graph().add(Op::attention, in, attrs);
  const Shape& rows = n.types[1].shape;
  NodeId d = b.mul(b.reshape(b.cast(c.cotangent(1), wide), {rows[0], rows[1], rows[2], 1}), o.scale);
  auto weighted = [&](NodeId x) { return b.cast(b.mul(b.cast(x, wide), d), b.dtype(o.q)); };
  if (c.needs(0)) c.add(0, weighted(b.permute(b.get(keys, 0), {0, 2, 1, 3})));
  bool additive = o.mask_kind == 2 && c.needs(3);
  if (!c.needs(1) && !additive) return;
  in.insert(in.end(), {b.get(keys, 0), b.get(c.node(), 1), b.permute(weighted(o.q), {0, 2, 1, 3})});
  NodeId grad = c.graph().add(Op::attention_grad, in, attrs);
  if (c.needs(1)) c.add(1, b.permute(b.get(grad, 2), {0, 2, 1, 3}));
  if (!additive) return;
  NodeId p = backward_scores(b, attention_operands(c.graph()[grad])).p;
  c.add(3, b.cast(b.mul(p, b.reshape(b.cast(c.cotangent(1), wide), {rows[0], rows[1], rows[2], 1})), b.dtype(o.mask)));
}

}  // namespace

void vjp_attention(GradContext& c) {
  if (c.cotangent(1)) vjp_log_sum_exp(c);
  if (!c.cotangent(0)) return;
  Builder b(c.graph());
  std::vector<NodeId> in = c.graph()[c.node()].in;
  in.insert(in.end(), {b.get(c.node(), 0), b.get(c.node(), 1), c.cotangent(0)});
  NodeId n = c.graph().add(Op::attention_grad, in, c.graph()[c.node()].attrs);
  for (int i = 0; i < 3; ++i)
    if (c.needs(i)) c.add(i, b.permute(b.get(n, i), {0, 2, 1, 3}));
  AttentionOperands o = attention_operands(c.graph()[n]);
  if (o.mask_kind == 2 && c.needs(3)) c.add(3, b.cast(backward_scores(b, o).ds, b.dtype(o.mask)));  // as large as all scores, but rarely needed
}

Cost cost_attention(const Graph& g, NodeId id) {
  const Node& n = g[id];
  const Shape &q = g.shape(n.in[0]), &k = g.shape(n.in[1]);
  double products = n.op == Op::attention ? 2 : 5;
  Cost cost{products * 2 * double(q.numel()) * double(k[2]) * (n.attrs.ints[0] ? 0.5 : 1.0), 0};
  for (const Type& t : n.types) cost.bytes += double(t.bytes());
  for (NodeId in : n.in) cost.bytes += double(g.type(in).bytes());
  return cost;
}

namespace {

struct AttentionCase {
  Shape q, k;
  bool causal;
  int mask;  // 0 none, 1 boolean, 2 additive
  bool length;
  double dropout;
};

std::vector<Sample> attention_cases() {
  std::vector<Sample> out;
  for (DType t : {DType::f32, DType::bf16})
    for (const AttentionCase& a : {AttentionCase{{1, 1, 1, 1}, {1, 1, 1, 1}, false, 0, false, 0},
                                   {{2, 2, 7, 4}, {2, 2, 7, 4}, true, 0, false, 0},
                                   {{1, 4, 3, 8}, {1, 2, 5, 8}, false, 1, false, 0},
                                   {{1, 2, 5, 3}, {1, 1, 9, 3}, true, 2, false, 0},
                                   {{1, 2, 3, 5}, {1, 2, 11, 5}, true, 0, true, 0},
                                   {{2, 2, 5, 4}, {2, 2, 5, 4}, true, 0, false, 0.3}}) {
      Sample s{{{{t, a.q}}, {{t, a.k}}, {{t, a.k}}}, {{a.causal, a.mask, a.length, a.dropout > 0, 9}, {0.5, a.dropout}, nullptr}, 0};
      Shape mask = {a.q[0], a.q[1], a.q[2], a.k[2]};
      if (a.mask == 1) s.in.push_back({{DType::boolean, mask}, 0, 2, false});
      if (a.mask == 2) s.in.push_back({{DType::f32, mask}, -1, 1});
      if (a.length) s.in.push_back({{DType::i64, {}}, double(a.q[2]), double(a.k[2]), false});
      if (a.dropout > 0)
        for (int i = 0; i < 3; ++i) s.in.push_back({{DType::i64, {}}, 0, 100, false});
      out.push_back(s);
    }
  return out;
}

}  // namespace

void samples_attention(const SampleSink& sink) {
  for (Sample& s : attention_cases()) sink(std::move(s));
}

// The saved operands are random like all others: the rule must hold for any values, not only for consistent ones.
void samples_attention_grad(const SampleSink& sink) {
  for (Sample& s : attention_cases()) {
    DType t = s.in[0].type.dtype;
    Shape q = s.in[0].type.shape, out = {q[0], q[2], q[1], q[3]};
    s.in.push_back({{t, out}}), s.in.push_back({{DType::f32, {q[0], q[1], q[2]}}, 2, 3}), s.in.push_back({{t, out}});
    sink(std::move(s));
  }
}

BatchFlow batch_attention(const BatchContext& c) {
  for (size_t i = 0; i < 3; ++i)
    if (!c.in[i] || c.in[i]->axis != 0 || c.in[i]->inner != 1) throw Coupled{"its batch axis is not the samples'"};
  return batch_keep(c);
}

}  // namespace ops
}  // namespace ridge
