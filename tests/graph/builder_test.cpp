// The builder's contract: dtypes are promoted, shapes broadcast, and convenience functions do what their names say.
#include "graph/builder.h"

#include <gtest/gtest.h>

#include <map>

#include "input.h"
#include "support/samples.h"

namespace ridge::test {
namespace {

std::string type_of(Builder& b, NodeId id) { return to_string(b.graph().type(id)); }

TEST(Builder, PromotesTypesWithWeakLiterals) {
  Graph g;
  Builder b(g);
  NodeId half = in(b, {3}, DType::bf16), full = in(b, {3}), whole = in(b, {3}, DType::i32), truth = in(b, {3}, DType::boolean);
  EXPECT_EQ(type_of(b, b.add(half, full)), "f32[3]");
  EXPECT_EQ(type_of(b, b.add(half, whole)), "bf16[3]");
  EXPECT_EQ(type_of(b, b.add(half, 0.5)), "bf16[3]");
  EXPECT_EQ(type_of(b, b.add(whole, 2.0)), "i32[3]");
  EXPECT_EQ(type_of(b, b.add(whole, 0.5)), "f32[3]");
  EXPECT_EQ(type_of(b, b.div(whole, whole)), "f32[3]");
  EXPECT_EQ(type_of(b, b.unary(Op::exp, whole)), "f32[3]");
  EXPECT_EQ(type_of(b, b.unary(Op::abs, whole)), "i32[3]");
  EXPECT_EQ(type_of(b, b.sum(truth)), "i64[]");
  EXPECT_EQ(type_of(b, b.mean(truth)), "f32[]");
  EXPECT_EQ(type_of(b, b.binary(Op::less, half, full)), "bool[3]");
  EXPECT_EQ(type_of(b, b.matmul(half, full)), "f32[]");
}

TEST(Builder, ShapesOfMatmul) {
  Graph g;
  Builder b(g);
  auto shape = [&](Shape x, Shape y) { return to_string(b.shape(b.matmul(in(b, x), in(b, y)))); };
  EXPECT_EQ(shape({5}, {5}), "[]");
  EXPECT_EQ(shape({3, 5}, {5}), "[3]");
  EXPECT_EQ(shape({5}, {5, 4}), "[4]");
  EXPECT_EQ(shape({2, 3, 5}, {5, 4}), "[2, 3, 4]");
  EXPECT_EQ(shape({2, 1, 3, 5}, {7, 5, 4}), "[2, 7, 3, 4]");
  EXPECT_EQ(shape({5}, {7, 5, 4}), "[7, 4]");
  EXPECT_EQ(shape({7, 3, 5}, {5}), "[7, 3]");
  EXPECT_EQ(shape({3, 5}, {2, 5, 4}), "[2, 3, 4]");
  EXPECT_EQ(shape({0, 5}, {5, 4}), "[0, 4]");
}

TEST(Builder, NoOpsAddNoNodes) {
  Graph g;
  Builder b(g);
  NodeId x = in(b, {2, 3});
  EXPECT_EQ(b.reshape(x, {2, 3}), x);
  EXPECT_EQ(b.permute(x, {0, 1}), x);
  EXPECT_EQ(b.expand(x, {2, 3}), x);
  EXPECT_EQ(b.slice(x, 0, 0, 2), x);
  EXPECT_EQ(b.pad(x, 0, 0, 0), x);
  EXPECT_EQ(b.cast(x, DType::f32), x);
  EXPECT_EQ(b.concat(std::vector{x}, 0), x);
}

TEST(Builder, ScalarsReduceAndNormalise) {
  Graph g;
  Builder b(g);
  NodeId x = in(b, {});
  EXPECT_EQ(type_of(b, b.sum(x)), "f32[]");
  EXPECT_EQ(type_of(b, b.mean(x, {}, true)), "f32[]");
  EXPECT_EQ(type_of(b, b.reduce(Op::reduce_max, x)), "f32[]");
  EXPECT_EQ(type_of(b, b.arg(Op::arg_max, x)), "i64[]");
}

// einsum by its definition: a loop over all labels.
reference::Array einsum_by_loops(const std::vector<std::string>& terms, const std::string& out, const std::vector<const reference::Array*>& in) {
  std::map<char, int64_t> size;
  for (size_t t = 0; t < terms.size(); ++t)
    for (size_t i = 0; i < terms[t].size(); ++i) {
      int64_t& n = size.try_emplace(terms[t][i], 1).first->second;
      if (n == 1) n = in[t]->type.shape[int(i)];
    }
  std::string labels;
  Shape space, result;
  for (auto [l, n] : size) labels += l, space.push_back(n);
  for (char l : out) result.push_back(size[l]);
  reference::Array y = reference::zeros({DType::f32, result});
  for (int64_t point = 0; point < space.numel(); ++point) {
    std::map<char, int64_t> at;
    int64_t rest = point;
    for (int i = space.rank() - 1; i >= 0; --i) at[labels[size_t(i)]] = rest % space[i], rest /= space[i];
    double product = 1;
    for (size_t t = 0; t < terms.size(); ++t) {
      int64_t element = 0;
      for (size_t i = 0; i < terms[t].size(); ++i) {
        int64_t n = in[t]->type.shape[int(i)];
        element = element * n + (n == 1 ? 0 : at[terms[t][i]]);
      }
      product *= in[t]->at(element);
    }
    int64_t element = 0;
    for (char l : out) element = element * size[l] + at[l];
    y.f[size_t(element)] += product;
  }
  return y;
}

struct EinsumCase {
  const char* equation;
  std::vector<Shape> shapes;
  std::vector<std::string> terms;  // the meaning, written in full
  std::string out;
};

TEST(Einsum, MatchesItsDefinition) {
  const EinsumCase cases[] = {
      {"ij,jk->ik", {{3, 4}, {4, 5}}, {"ij", "jk"}, "ik"},
      {"ij,jk", {{3, 4}, {4, 5}}, {"ij", "jk"}, "ik"},
      {"ba", {{3, 4}}, {"ba"}, "ab"},  // implicit: letters in alphabetical order
      {"ii", {{4, 4}}, {"ii"}, ""},
      {"ii->i", {{4, 4}}, {"ii"}, "i"},
      {"iii->i", {{3, 3, 3}}, {"iii"}, "i"},
      {"ijij->ji", {{2, 3, 2, 3}}, {"ijij"}, "ji"},
      {"ij->", {{3, 4}}, {"ij"}, ""},
      {"ij->j", {{3, 4}}, {"ij"}, "j"},
      {"i,j->ij", {{3}, {4}}, {"i", "j"}, "ij"},
      {"i,i->i", {{3}, {3}}, {"i", "i"}, "i"},
      {"i,i", {{3}, {3}}, {"i", "i"}, ""},
      {",ij->ji", {{}, {3, 4}}, {"", "ij"}, "ji"},
      {"bhqd,bhkd->bhqk", {{2, 3, 4, 5}, {2, 3, 6, 5}}, {"bhqd", "bhkd"}, "bhqk"},
      {"bij,jk->bik", {{2, 3, 4}, {4, 5}}, {"bij", "jk"}, "bik"},
      {"bik,bjk,kl->blij", {{2, 3, 4}, {2, 5, 4}, {4, 3}}, {"bik", "bjk", "kl"}, "blij"},
      {"ab,bc,cd,de->ae", {{2, 3}, {3, 7}, {7, 2}, {2, 5}}, {"ab", "bc", "cd", "de"}, "ae"},
      {"...ij,...jk->...ik", {{2, 1, 3, 4}, {5, 4, 2}}, {"xyij", "yjk"}, "xyik"},
      {"...ij,jk", {{2, 3, 4}, {4, 5}}, {"xij", "jk"}, "xik"},
      {"i...->...", {{3, 2, 4}}, {"ixy"}, "xy"},
      {"...->", {{3, 2}}, {"xy"}, ""},
      {"ij,ij->ij", {{3, 1}, {3, 4}}, {"ij", "ij"}, "ij"},  // a size of 1 broadcasts
      {"ij,ik->", {{3, 4}, {3, 5}}, {"ij", "ik"}, ""},
      {"ij,jk->ik", {{3, 0}, {0, 5}}, {"ij", "jk"}, "ik"},
      {"ij,jk->ik", {{0, 4}, {4, 5}}, {"ij", "jk"}, "ik"},
      {" i j , j k -> i k ", {{3, 4}, {4, 5}}, {"ij", "jk"}, "ik"},
      {"ab,bc,cd,da,a,b,c,d,ab,bc,cd,da->a",  // too many operands to try every order
       {{2, 3}, {3, 1}, {2, 2}, {2, 2}, {2}, {3}, {2}, {2}, {2, 3}, {3, 2}, {2, 2}, {2, 2}},
       {"ab", "bc", "cd", "da", "a", "b", "c", "d", "ab", "bc", "cd", "da"},
       "a"},
  };
  for (DType type : {DType::f32, DType::i64})
    for (const EinsumCase& c : cases) {
      Graph g;
      Builder b(g);
      Values values;
      Random random(5);
      std::vector<NodeId> x;
      std::vector<const reference::Array*> arrays;
      for (const Shape& s : c.shapes) {
        x.push_back(in(b, s, type));
        values[x.back()] = draw({type, s}, random, -3, 4);
      }
      for (NodeId id : x) arrays.push_back(&values[id]);
      NodeId y = b.einsum(c.equation, x);
      reference::Array got = reference::evaluate(g, {&y, 1}, values)[0], want = einsum_by_loops(c.terms, c.out, arrays);
      ASSERT_EQ(to_string(got.type), std::string(name(type)) + to_string(want.type.shape)) << c.equation;
      for (int64_t k = 0; k < want.size(); ++k) EXPECT_NEAR(got.at(k), want.at(k), 1e-9 * (1 + std::fabs(want.at(k)))) << c.equation << " element " << k;
    }
}

// (vector · matrix) · matrix instead of vector · (matrix · matrix): no product may be larger than in the best order.
TEST(Einsum, ChoosesTheCheapOrder) {
  auto work = [](std::vector<Shape> shapes, const char* equation) {
    Graph g;
    Builder b(g);
    std::vector<NodeId> x;
    for (const Shape& s : shapes) x.push_back(in(b, s));
    NodeId y = b.einsum(equation, x);
    double flops = 0;
    for (NodeId id : topological(g, {&y, 1}))
      if (g[id].op == Op::matmul) flops += row(Op::matmul).cost(g, id).flops;
    return flops;
  };
  EXPECT_EQ(work({{100, 100}, {100, 100}, {100}}, "ij,jk,k->i"), 2 * 2 * 100 * 100);
  EXPECT_EQ(work({{100}, {100, 100}, {100, 100}}, "i,ij,jk->k"), 2 * 2 * 100 * 100);
  EXPECT_EQ(work({{2, 50}, {50, 3}, {3, 70}, {70, 4}}, "ab,bc,cd,de->ae"), 2.0 * (2 * 50 * 3 + 3 * 70 * 4 + 2 * 3 * 4));
}

}  // namespace
}  // namespace ridge::test
