// NaN, infinities, huge and tiny values through every elementwise op and reduction.
#pragma once
#include <limits>

#include "graph/builder.h"
#include "ops/tolerance.h"

namespace ridge::test {

inline const double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

// Values that break naive formulas. All are exact in every floating dtype except the largest, which are clamped to its range.
inline std::vector<double> special(DType t) {
  double top = t == DType::f16 ? 65504 : t == DType::bf16 ? 0x1.fep127 : 0x1.fffffep127;
  std::vector<double> v = {kNaN, kInf, -kInf, 0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3, 20, -20, 100, -100, top, -top};
  if (t != DType::f16)
    for (double x : {88.0, 89.0, -87.0, -104.0, 1e10, -1e10, 1e30, 1e-30, -1e-30, 0x1p-126, 0x1p24, 0x1p31, -0x1p31}) v.push_back(x);
  for (double& x : v) x = reference::round_to(t, x);
  return v;
}

inline void compare(Graph& graph, NodeId node, const std::vector<NodeId>& inputs, const Values& values, Tolerance t) {
  std::vector<NodeId> out = {node};
  reference::Array want = reference::evaluate(graph, out, values, reference::Rounding::stored)[0];
  reference::Array got = reference::from_bytes(want.type, run_compiled(graph, inputs, out, values, "", 1)[0].data());
  int shown = 0;
  for (int64_t k = 0; k < want.size() && shown < 4; ++k) {
    double g = got.at(k), w = want.at(k);
    bool same = std::isnan(w) ? std::isnan(g) : g == w || std::fabs(g - w) <= t.relative * std::fabs(w) + t.absolute;
    if (std::isfinite(w) && std::isinf(g) && std::fabs(w) > 3.4e38) same = true;  // one unit below the largest number
    // x · 0 at -inf: PyTorch gives NaN, the limit is 0. Both are accepted; +inf must stay +inf.
    bool gated = graph[node].op == Op::gelu_tanh || graph[node].op == Op::gelu_erf || graph[node].op == Op::silu;
    if (same || (gated && std::isnan(g) && values.at(inputs[0]).at(k) < 0)) continue;
    std::string at;
    for (NodeId i : inputs) at += " " + std::to_string(values.at(i).at(k));
    ADD_FAILURE() << name(graph[node].op) << " of" << at << " (" << name(want.type.dtype) << ") is " << g << ", expected " << w;
    ++shown;
  }
}

inline void check_special(Op op) {
  int operands = row(op).max_in;
  for (DType type : {DType::f32, DType::bf16, DType::f16}) {
    Graph graph;
    Values values;
    std::vector<double> v = special(type);
    std::vector<std::vector<double>> columns(static_cast<size_t>(operands));
    size_t total = 1;
    for (int i = 0; i < operands; ++i) total *= v.size();
    for (size_t k = 0; k < total; ++k) {  // every combination
      size_t rest = k;
      for (auto& c : columns) c.push_back(v[rest % v.size()]), rest /= v.size();
    }
    std::vector<NodeId> in;
    for (size_t i = 0; i < columns.size(); ++i) {
      DType t = op == Op::select && i == 0 ? DType::boolean : type;
      in.push_back(graph.input({t, {int64_t(total)}}, "x"));
      for (double& x : columns[i])
        if (t == DType::boolean) x = x > 0;
      values[in.back()] = reference::from_values({t, {int64_t(total)}}, columns[i]);
    }
    bool logic = op == Op::logical_not || (op >= Op::logical_and && op <= Op::logical_xor);
    if (logic) return;  // boolean operands have no special values
    NodeId node = graph.add(op, in, op == Op::cast ? Attrs{{int64_t(DType::f16)}, {}, nullptr} : Attrs{});
    Tolerance t = tolerance(graph, node, graph.dtype(node), {});
    if (op == Op::gelu_tanh || op == Op::gelu_erf || op == Op::silu) t.absolute = 0x1p-100;     // far left only the magnitude matters
    if (op == Op::sin || op == Op::cos) t.absolute = 0x1p-22;                                   // near a zero only the absolute error matters
    if (is_exact(op) && is_float(graph.dtype(node))) t.absolute = smallest(graph.dtype(node));  // may be flushed to zero
    compare(graph, node, in, values, t);
  }
}

inline std::vector<int> elementwise_ops() {
  std::vector<int> ops;
  for (int i = 0; i <= int(Op::clamp); ++i) ops.push_back(i);
  return ops;
}

inline void check_special_reductions() {
  const std::vector<std::vector<double>> rows = {{kNaN},      {kInf},    {-kInf}, {kInf, -kInf}, {kNaN, kInf}, {1e38, 1e38, 1e38, 1e38}, {-1e38, -3e38, -1e38},
                                                 {0.0, -0.0}, {1e30, 1}, {}};
  for (DType type : {DType::f32, DType::bf16})
    for (int64_t n : {1, 7, 33, 300})
      for (bool columns : {false, true})
        for (Op op : {Op::reduce_sum, Op::reduce_max, Op::reduce_min, Op::reduce_prod, Op::arg_max, Op::arg_min}) {
          // Each row is ones with special values in a few places.
          Graph graph;
          Builder b(graph);
          Type t{type, {int64_t(rows.size()), n}};
          std::vector<double> v(size_t(t.shape.numel()), 1.0);
          Random random{uint64_t(n)};
          for (size_t r = 0; r < rows.size(); ++r)
            for (double x : rows[r]) v[r * size_t(n) + size_t(random.below(n))] = reference::round_to(type, x);
          NodeId x = graph.input(t, "x"), y = columns ? b.permute(x, {1, 0}) : x;
          Values values{{x, reference::from_values(t, v)}};
          int64_t axis = columns ? 0 : 1;
          NodeId node = graph.add(op, {y}, {{axis}, {}, nullptr});
          SCOPED_TRACE(std::string(name(op)) + " of " + std::to_string(n) + (columns ? " rows" : " columns"));
          std::vector<NodeId> out = {node};
          reference::Array want = reference::evaluate(graph, out, values, reference::Rounding::stored)[0];
          reference::Array got = reference::from_bytes(want.type, run_compiled(graph, {x}, out, values, "", 1)[0].data());
          EXPECT_TRUE(
              close(got, want, {op == Op::reduce_sum || op == Op::reduce_prod ? double(n) * 0x1p-23 + (type == DType::f32 ? 0 : spacing(type)) : 0, 0}));
        }
}

// An empty sum is 0 everywhere, also if its result is viewed in another shape.
inline void check_sums_over_nothing() {
  for (DType type : {DType::f32, DType::bf16})
    for (const auto& [shape, axis] : {std::pair<Shape, int64_t>{{0, 3}, 0}, {{0, 5000}, 0}, {{3, 0}, 1}, {{2, 0, 5}, 1}, {{2, 3, 0}, 2}}) {
      Graph graph;
      Builder b(graph);
      NodeId x = graph.input({type, shape}, "x");
      Shape kept = shape;
      kept[int(axis)] = 1;
      NodeId y = graph.input({type, kept}, "y"), sums = b.reshape(b.sum(x, {&axis, 1}), kept);
      Random random(1);
      Values values{{x, draw(graph.type(x), random)}, {y, draw(graph.type(y), random)}};
      for (double& v : values[y].f) v = reference::round_to(type, v);
      const std::vector<NodeId> out = {sums, b.add(sums, y)};
      const std::vector<reference::Array> want = reference::evaluate(graph, out, values, reference::Rounding::stored);
      const std::vector<Bytes> got = run_compiled(graph, {x, y}, out, values, "", 1);
      for (size_t i = 0; i < out.size(); ++i)
        EXPECT_TRUE(close(reference::from_bytes(want[i].type, got[i].data()), want[i], {})) << to_string(graph.type(x)) << " over axis " << axis << ", " << i;
    }
}

// Softmax-like chains must not produce inf - inf or 0 / 0 for large scores.
inline void check_special_chains() {
  Graph graph;
  Builder b(graph);
  Type t{DType::f32, {3, 33}};
  std::vector<double> v(99);
  for (size_t k = 0; k < v.size(); ++k) v[k] = k < 33 ? 1e30 * double(k % 3) : k < 66 ? -1e4 * double(k) : 80.0 + double(k % 7);
  NodeId x = graph.input(t, "x");
  Values values{{x, reference::from_values(t, v)}};
  int64_t last = -1;
  std::vector<NodeId> out = {b.softmax(x), b.log_softmax(x), b.logsumexp(x, {&last, 1}), b.unary(Op::softplus, x), b.unary(Op::sigmoid, x)};
  std::vector<reference::Array> want = reference::evaluate(graph, out, values, reference::Rounding::stored);
  std::vector<Bytes> got = run_compiled(graph, {x}, out, values, "", 1);
  for (size_t i = 0; i < out.size(); ++i) {
    for (double w : want[i].f) EXPECT_TRUE(std::isfinite(w));
    EXPECT_TRUE(close(reference::from_bytes(want[i].type, got[i].data()), want[i], {1e-5, 1e-6})) << i;
  }
}

// Exponentials that are both stored and summed, over their whole range.
inline void check_summed_exponentials() {
  for (int64_t n : {1, 17, 64, 1000}) {
    Graph graph;
    Builder b(graph);
    NodeId x = graph.input({DType::f32, {50, n}}, "x"), shift = graph.input({DType::f32, {50, 1}}, "shift");
    int64_t last = -1;
    NodeId y = b.unary(Op::exp, b.sub(x, shift));
    std::vector<NodeId> out = {y, b.sum(y, {&last, 1})};
    Random random(uint64_t(n) + 1);
    Values values{{x, draw(graph.type(x), random, -87, 80)}, {shift, reference::zeros(graph.type(shift))}};
    for (double& v : values[x].f) v = float(v);
    std::vector<reference::Array> want = reference::evaluate(graph, out, values);
    std::vector<Bytes> got = run_compiled(graph, {x, shift}, out, values, "", 1);
    for (size_t i = 0; i < out.size(); ++i) {
      SCOPED_TRACE(std::to_string(n) + ", result " + std::to_string(i));
      EXPECT_TRUE(close(reference::from_bytes(want[i].type, got[i].data()), want[i], {4 * 0x1p-23 + (i ? double(n) * 0x1p-24 : 0), 0x1p-125}));
    }
  }
}

}  // namespace ridge::test
