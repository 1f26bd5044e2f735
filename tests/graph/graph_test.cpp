// The graph's own laws: equal nodes, and only those, are one node.
#include "graph/graph.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "compile/simplify.h"
#include "graph/builder.h"
#include "graph/rewrite.h"
#include "support/samples.h"

namespace ridge::test {
namespace {

TEST(Graph, EqualNodesAreOneNode) {
  Graph g;
  Builder b(g);
  NodeId x = g.input({DType::f32, {3}}, "x"), y = g.input({DType::f32, {3}}, "y");
  EXPECT_EQ(b.add(x, y), b.add(x, y));
  EXPECT_NE(b.add(x, y), b.add(y, x));
  EXPECT_NE(b.add(x, y), b.sub(x, y));
  EXPECT_EQ(b.slice(x, 0, 1, 3), b.slice(x, 0, -2, 3));
  EXPECT_NE(b.slice(x, 0, 1, 3), b.slice(x, 0, 0, 2));
  NodeId size = g.size();
  for (int i = 0; i < 100; ++i) b.unary(Op::exp, b.add(x, y));
  EXPECT_EQ(g.size(), size + 1);
}

TEST(Graph, InputsAreNeverMerged) {
  Graph g;
  EXPECT_NE(g.input({DType::f32, {3}}, "x"), g.input({DType::f32, {3}}, "x"));
}

TEST(Graph, CopiesAreNeverMerged) {
  Graph g;
  NodeId x = g.input({DType::f32, {3}}, "x");
  NodeId first = g.add(Op::exp, {x}), copy = g.add(Op::exp, {x}, {}, 1);
  EXPECT_NE(first, copy);
  EXPECT_EQ(copy, g.add(Op::exp, {x}, {}, 1));
  EXPECT_NE(copy, g.add(Op::exp, {x}, {}, 2));
}

TEST(Graph, LiteralsAreComparedByBits) {
  Graph g;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(g.literal(DType::f32, nan), g.literal(DType::f32, nan));
  EXPECT_EQ(g.literal(DType::f32, 0.1), g.literal(DType::f32, 0.1));
  EXPECT_NE(g.literal(DType::f32, 0.0), g.literal(DType::f32, -0.0));
  EXPECT_NE(g.literal(DType::f32, 1), g.literal(DType::i64, 1));
  EXPECT_NE(g.literal(DType::f32, 1), g.literal(DType::f32, 1 + 1e-15));
}

// A number rounded to 16 bits stays rounded when it is widened.
TEST(Graph, WidenedLiteralsKeepTheirRounding) {
  Graph g;
  Builder b(g);
  for (auto [type, value] : {std::pair(DType::bf16, 0.10009765625), {DType::f16, 0.0999755859375}}) {
    const NodeId wide[] = {b.cast(g.literal(type, 0.1), DType::f32)};
    EXPECT_EQ(simplify(g, wide)[0], g.literal(DType::f32, value)) << name(type);
  }
}

TEST(Graph, OperandsComeFirst) {
  Graph g;
  Builder b(g);
  NodeId x = g.input({DType::f32, {3, 4}}, "x");
  NodeId y = b.layer_norm(x, kNone, kNone), other = b.neg(x);
  std::vector<NodeId> order = topological(g, {&y, 1});
  EXPECT_EQ(order.back(), y);
  std::vector<char> seen(g.size());
  for (NodeId id : order) {
    for (NodeId in : g[id].in) EXPECT_TRUE(seen[in]);
    EXPECT_FALSE(seen[id]);
    seen[id] = 1;
  }
  EXPECT_FALSE(seen[other]);  // nothing the root does not need
}

TEST(Graph, ImportKeepsMeaningAndSharing) {
  Graph from, to;
  Builder b(from), c(to);
  NodeId x = from.input({DType::f32, {2}}, "x"), y = from.input({DType::f32, {2}}, "y");
  NodeId root = b.mul(b.unary(Op::exp, b.add(x, y)), b.add(x, y));
  NodeId a = c.neg(to.input({DType::f32, {2}}, "a"));
  std::unordered_map<NodeId, NodeId> known{{x, a}};  // x already exists under another name
  NodeId moved = import_nodes(to, from, {&root, 1}, known)[0];
  EXPECT_EQ(to[to[moved].in[0]].in[0], to[moved].in[1]);
  EXPECT_EQ(to[to[moved].in[1]].in[0], a);
  EXPECT_EQ(to.input_name(known.at(y)), "y");
  NodeId size = to.size();
  EXPECT_EQ(import_nodes(to, from, {&root, 1}, known)[0], moved);
  EXPECT_EQ(to.size(), size);
}

TEST(Graph, PrintsOneLinePerNode) {
  Graph g;
  Builder b(g);
  NodeId x = g.input({DType::f32, {2, 3}}, "tokens");
  NodeId y = g.add(Op::exp, {b.permute(x, {1, 0})}, {}, 1);
  EXPECT_EQ(to_string(g, {&y, 1}), "%1 = input() \"tokens\" f32[2, 3]\n%2 = permute(%1) ints=1,0 f32[3, 2]\n%3 = exp'1(%2) f32[3, 2]\n");
}

TEST(Rewrite, ReplacesOperandsFirstAndKeepsTheRest) {
  Graph g;
  Builder b(g);
  NodeId x = g.input({DType::f32, {3}}, "x");
  NodeId kept = b.neg(x), root = b.add(b.square(b.unary(Op::exp, x)), kept);
  std::vector<NodeId> out = rewrite(g, {&root, 1}, [&](NodeId id, std::span<const NodeId> in) -> std::vector<NodeId> {
    if (g[id].op != Op::exp) return {};
    return {b.unary(Op::tanh, in[0])};
  });
  EXPECT_EQ(out[0], b.add(b.square(b.unary(Op::tanh, x)), kept));
  out = rewrite(g, {&root, 1}, [](NodeId, std::span<const NodeId>) { return std::vector<NodeId>{}; });
  EXPECT_EQ(out[0], root);
}

TEST(Rewrite, ReplacesEachResultOfANode) {
  Graph g;
  Builder b(g);
  NodeId x = g.input({DType::f32, {3}}, "x");
  auto [values, index] = b.sort(x, 0);
  NodeId roots[] = {b.neg(values), index};
  std::vector<NodeId> out = rewrite(g, roots, [&](NodeId id, std::span<const NodeId> in) -> std::vector<NodeId> {
    if (g[id].op != Op::sort) return {};
    return {b.unary(Op::exp, in[0]), b.iota({3}, 0)};
  });
  EXPECT_EQ(out[0], b.neg(b.unary(Op::exp, x)));
  EXPECT_EQ(out[1], b.iota({3}, 0));
}

// A node with several results, used only through `get`, whose operand is itself replaced.
TEST(Rewrite, CarriesReplacementsThroughMacroOps) {
  Graph g;
  Builder b(g);
  NodeId q = g.input({DType::f32, {1, 2, 3, 4}}, "q");
  NodeId y = b.attention(b.attention(q, q, q), q, q);
  NodeId plain = decompose(g, {&y, 1}, [](NodeId) { return true; })[0];
  for (NodeId id : topological(g, {&plain, 1})) EXPECT_NE(g[id].op, Op::attention);
  Random random(1);
  Values values{{q, draw(g.type(q), random)}};
  NodeId both[] = {y, plain};
  auto got = reference::evaluate(g, both, values);
  EXPECT_EQ(got[0].f, got[1].f);
}

}  // namespace
}  // namespace ridge::test
