// The reference itself: values computed by hand, and PyTorch's behaviour where conventions differ.
#include "backend/reference/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/half.h"
#include "base/rng.h"
#include "graph/builder.h"
#include "graph/scan.h"
#include "support/samples.h"

namespace ridge::test {
namespace {

using reference::Array;
using reference::Rounding;
using Doubles = std::vector<double>;
using Whole = std::vector<int64_t>;

const double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

// A graph under construction whose inputs have values.
struct Scratch {
  Graph graph;
  Builder b{graph};
  Values values;

  NodeId in(DType dtype, Shape shape, Doubles v) {
    NodeId id = graph.input({dtype, shape}, "x");
    values[id] = reference::from_values({dtype, shape}, v);
    return id;
  }
  NodeId f(Shape shape, Doubles v) { return in(DType::f32, shape, std::move(v)); }
  NodeId i(Shape shape, Doubles v) { return in(DType::i64, shape, std::move(v)); }
  Array get(NodeId id, Rounding r = Rounding::exact) { return reference::evaluate(graph, {&id, 1}, values, r)[0]; }
  Doubles reals(NodeId id) { return get(id).f; }
  Whole whole(NodeId id) { return get(id).i; }
};

void expect_same(const Doubles& got, const Doubles& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t k = 0; k < got.size(); ++k) {
    bool same = std::isnan(want[k]) ? std::isnan(got[k]) : got[k] == want[k] || std::fabs(got[k] - want[k]) <= 1e-12 * (1 + std::fabs(want[k]));
    EXPECT_TRUE(same) << "element " << k << ": " << got[k] << ", expected " << want[k];
  }
}

TEST(Reference, ElementwiseFunctions) {
  Scratch s;
  NodeId x = s.f({4}, {-1.5, 0, 0.5, 2});
  auto u = [&](Op op) { return s.reals(s.b.unary(op, x)); };
  EXPECT_EQ(u(Op::neg), (Doubles{1.5, -0.0, -0.5, -2}));
  EXPECT_EQ(u(Op::abs), (Doubles{1.5, 0, 0.5, 2}));
  EXPECT_EQ(u(Op::sign), (Doubles{-1, 0, 1, 1}));
  EXPECT_EQ(u(Op::relu), (Doubles{0, 0, 0.5, 2}));
  EXPECT_EQ(u(Op::floor), (Doubles{-2, 0, 0, 2}));
  EXPECT_EQ(u(Op::ceil), (Doubles{-1, 0, 1, 2}));
  EXPECT_EQ(u(Op::round), (Doubles{-2, 0, 0, 2}));  // half to even
  expect_same(u(Op::exp), {0.22313016014842982, 1, 1.6487212707001282, 7.38905609893065});
  expect_same(u(Op::expm1), {-0.7768698398515702, 0, 0.6487212707001282, 6.38905609893065});
  expect_same(u(Op::log), {kNaN, -kInf, -0.6931471805599453, 0.6931471805599453});
  expect_same(u(Op::log1p), {kNaN, 0, 0.4054651081081644, 1.0986122886681098});
  expect_same(u(Op::sqrt), {kNaN, 0, 0.7071067811865476, 1.4142135623730951});
  expect_same(u(Op::rsqrt), {kNaN, kInf, 1.414213562373095, 0.7071067811865475});
  expect_same(u(Op::sin), {-0.9974949866040544, 0, 0.479425538604203, 0.9092974268256817});
  expect_same(u(Op::cos), {0.0707372016677029, 1, 0.8775825618903728, -0.4161468365471424});
  expect_same(u(Op::tanh), {-0.9051482536448664, 0, 0.46211715726000973, 0.9640275800758169});
  expect_same(u(Op::sigmoid), {0.18242552380635635, 0.5, 0.6224593312018546, 0.8807970779778823});
  expect_same(u(Op::erf), {-0.9661051464753108, 0, 0.5204998778130465, 0.9953222650189527});
  // Computed independently, from the definitions.
  expect_same(u(Op::gelu_erf), {-0.10021080190328713, 0, 0.34573123063700656, 1.9544997361036416});
  expect_same(u(Op::gelu_tanh), {-0.10042842301976707, 0, 0.34571400982514394, 1.954597694087775});
  expect_same(u(Op::silu), {-0.2736382857095345, 0, 0.3112296656009273, 1.7615941559557646});
  expect_same(u(Op::softplus), {0.2014132779827524, 0.6931471805599453, 0.9740769841801067, 2.1269280110429727});
}

TEST(Reference, ElementwiseEdges) {
  Scratch s;
  NodeId x = s.f({3}, {kNaN, kInf, -kInf});
  auto u = [&](Op op) { return s.reals(s.b.unary(op, x)); };
  expect_same(u(Op::sign), {kNaN, 1, -1});
  expect_same(u(Op::relu), {kNaN, kInf, 0});
  expect_same(u(Op::sigmoid), {kNaN, 1, 0});
  expect_same(u(Op::gelu_erf), {kNaN, kInf, 0});
  expect_same(u(Op::gelu_tanh), {kNaN, kInf, 0});
  expect_same(u(Op::silu), {kNaN, kInf, 0});
  expect_same(u(Op::softplus), {kNaN, kInf, 0});
  expect_same(u(Op::gelu_erf_grad), {kNaN, 1, 0});
  EXPECT_EQ(s.whole(s.b.unary(Op::is_finite, x)), (Whole{0, 0, 0}));
  // A NaN in either operand wins in minimum, maximum and clamp; comparisons with NaN are false except not_equal.
  NodeId y = s.f({3}, {1, kNaN, 2});
  expect_same(s.reals(s.b.binary(Op::maximum, x, y)), {kNaN, kNaN, 2});
  expect_same(s.reals(s.b.binary(Op::minimum, x, y)), {kNaN, kNaN, -kInf});
  expect_same(s.reals(s.b.clamp(x, -1, 1)), {kNaN, 1, -1});
  EXPECT_EQ(s.whole(s.b.binary(Op::equal, x, x)), (Whole{0, 1, 1}));
  EXPECT_EQ(s.whole(s.b.binary(Op::not_equal, x, x)), (Whole{1, 0, 0}));
  EXPECT_EQ(s.whole(s.b.binary(Op::greater_equal, x, y)), (Whole{0, 0, 0}));
}

TEST(Reference, ModuloHasTheSignOfTheDivisor) {
  Scratch s;
  EXPECT_EQ(s.reals(s.b.binary(Op::mod, s.f({4}, {5.5, -5.5, 5.5, -5.5}), s.f({4}, {3, 3, -3, -3}))), (Doubles{2.5, 0.5, -0.5, -2.5}));
  EXPECT_EQ(s.whole(s.b.binary(Op::mod, s.i({5}, {7, -7, 7, -7, 7}), s.i({5}, {3, 3, -3, -3, 0}))), (Whole{1, 2, -2, -1, 0}));
}

TEST(Reference, IntegersWrapAtTheirWidth) {
  Scratch s;
  EXPECT_EQ(s.whole(s.b.add(s.in(DType::i32, {2}, {2147483647, -2147483648.0}), s.in(DType::i32, {2}, {1, -1}))), (Whole{-2147483648LL, 2147483647}));
  EXPECT_EQ(s.whole(s.b.mul(s.in(DType::u8, {2}, {200, 16}), s.in(DType::u8, {2}, {2, 16}))), (Whole{144, 0}));
  EXPECT_EQ(s.whole(s.b.neg(s.in(DType::u8, {1}, {1}))), (Whole{255}));
}

TEST(Reference, CastsTruncateAndNonZeroIsTrue) {
  Scratch s;
  NodeId x = s.f({5}, {-1.9, -0.5, 0, 0.5, 2.9});
  EXPECT_EQ(s.whole(s.b.cast(x, DType::i64)), (Whole{-1, 0, 0, 0, 2}));
  EXPECT_EQ(s.whole(s.b.cast(x, DType::boolean)), (Whole{1, 1, 0, 1, 1}));
  EXPECT_EQ(s.whole(s.b.cast(s.i({2}, {257, -1}), DType::u8)), (Whole{1, 255}));
  EXPECT_EQ(s.reals(s.b.cast(s.i({2}, {3, -4}), DType::f32)), (Doubles{3, -4}));
}

TEST(Reference, StoredModeRoundsEveryNode) {
  Scratch s;
  NodeId x = s.f({2}, {1.0 / 3, 1e30}), half = s.b.cast(x, DType::bf16);
  EXPECT_EQ(s.get(half).f, (Doubles{1.0 / 3, 1e30}));  // exact: nothing is rounded
  EXPECT_EQ(s.get(half, Rounding::stored).f, (Doubles{bf16_to_f32(f32_to_bf16(1.0f / 3)), bf16_to_f32(f32_to_bf16(1e30f))}));
  EXPECT_EQ(s.get(s.b.cast(x, DType::f16), Rounding::stored).f, (Doubles{f16_to_f32(f32_to_f16(1.0f / 3)), kInf}));
  EXPECT_EQ(s.get(s.b.square(x), Rounding::stored).f[1], kInf);                                     // 1e60 does not fit in f32
  EXPECT_EQ(s.get(s.b.sub(s.b.add(s.f({1}, {1e8}), 1.0), 1e8), Rounding::stored).f, (Doubles{0}));  // after every node
  EXPECT_EQ(s.get(s.b.sub(s.b.add(s.f({1}, {1e8}), 1.0), 1e8)).f, (Doubles{1}));
}

TEST(Reference, Movement) {
  Scratch s;
  NodeId x = s.i({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(s.whole(s.b.permute(x, {1, 0})), (Whole{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(s.whole(s.b.slice(x, 1, 0, 3, 2)), (Whole{1, 3, 4, 6}));
  EXPECT_EQ(s.whole(s.b.slice(x, 1, -2, -1)), (Whole{2, 5}));
  EXPECT_EQ(s.whole(s.b.flip(x, Shape{1})), (Whole{3, 2, 1, 6, 5, 4}));
  EXPECT_EQ(s.whole(s.b.pad(x, 1, 1, 2, 1, 9)), (Whole{9, 1, 9, 2, 9, 3, 9, 9, 9, 4, 9, 5, 9, 6, 9, 9}));
  EXPECT_EQ(s.whole(s.b.expand(s.i({2, 1}, {7, 8}), {3, 2, 2})), (Whole{7, 7, 8, 8, 7, 7, 8, 8, 7, 7, 8, 8}));
  NodeId parts[] = {x, s.i({2, 1}, {10, 20})};
  EXPECT_EQ(s.whole(s.b.concat(parts, 1)), (Whole{1, 2, 3, 10, 4, 5, 6, 20}));
  NodeId line = s.i({6}, {1, 2, 3, 4, 5, 6}), w = s.b.windows(line, 0, 3, 2, 1);
  EXPECT_EQ(s.whole(w), (Whole{1, 2, 3, 3, 4, 5}));
  EXPECT_EQ(s.whole(s.b.windows(line, 0, 2, 1, 3)), (Whole{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(s.whole(s.graph.add(Op::fold, {w}, {{0, 3, 2, 1, 6}, {}, nullptr})), (Whole{1, 2, 6, 4, 5, 0}));  // overlaps add up
  EXPECT_EQ(s.whole(s.b.iota({2, 3}, 1)), (Whole{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(s.reals(s.b.one_hot(s.i({2}, {2, 0}), 3)), (Doubles{0, 0, 1, 1, 0, 0}));
}

TEST(Reference, DynamicSlicesClampTheirStarts) {
  Scratch s;
  NodeId x = s.i({5}, {0, 1, 2, 3, 4});
  for (auto [start, first] : {std::pair{-7, 0}, {1, 1}, {9, 3}}) {
    NodeId at = s.i({}, {double(start)});
    EXPECT_EQ(s.whole(s.b.dynamic_slice(x, {&at, 1}, {2})), (Whole{first, first + 1}));
    Whole updated = {0, 1, 2, 3, 4};
    updated[size_t(first)] = 8, updated[size_t(first) + 1] = 9;
    EXPECT_EQ(s.whole(s.b.dynamic_update_slice(x, s.i({2}, {8, 9}), {&at, 1})), updated);
  }
}

TEST(Reference, GatherScatterTake) {
  Scratch s;
  NodeId x = s.i({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(s.whole(s.b.gather(x, s.i({2, 2}, {2, 0, 1, 1}), 1)), (Whole{3, 1, 5, 5}));
  EXPECT_EQ(s.whole(s.b.gather(x, s.i({1, 3}, {1, 0, 1}), 0)), (Whole{4, 2, 6}));
  NodeId to = s.i({3}, {0, 0, 7}), where = s.i({4}, {1, 0, 1, 1}), what = s.i({4}, {10, 20, 30, 40});
  EXPECT_EQ(s.whole(s.b.scatter(to, where, what, 0)), (Whole{20, 40, 7}));  // the last of equal indices
  EXPECT_EQ(s.whole(s.b.scatter_add(to, where, what, 0)), (Whole{20, 80, 7}));
  EXPECT_EQ(s.whole(s.b.take(x, s.i({2, 2}, {2, 2, 0, 1}), 1)), (Whole{3, 3, 1, 2, 6, 6, 4, 5}));
  EXPECT_EQ(s.whole(s.b.take(x, s.i({}, {1}), 0)), (Whole{4, 5, 6}));
  NodeId back = s.graph.add(Op::take_grad, {s.f({3, 2}, {1, 2, 3, 4, 5, 6}), s.i({3}, {3, 0, 3})}, {{0, 4}, {}, nullptr});
  EXPECT_EQ(s.reals(back), (Doubles{3, 4, 0, 0, 0, 0, 6, 8}));
}

TEST(Reference, IndicesOutOfRangeAreErrors) {
  Scratch s;
  NodeId x = s.f({3}, {1, 2, 3});
  for (double bad : {-1.0, 3.0}) {
    NodeId at = s.i({1}, {bad}), one = s.f({1}, {1});
    for (NodeId id : {s.b.gather(x, at, 0), s.b.take(x, at, 0), s.b.scatter(x, at, one, 0), s.b.scatter_add(x, at, one, 0),
                      s.graph.add(Op::take_grad, {one, at}, {{0, 3}, {}, nullptr})})
      try {
        s.get(id);
        ADD_FAILURE() << "no error for index " << bad;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::value) << e.what();
        EXPECT_NE(std::string(e.what()).find("index " + std::to_string(int(bad))), std::string::npos) << e.what();
      }
  }
}

TEST(Reference, SortIsStableAndPutsNaNLast) {
  Scratch s;
  auto [v, i] = s.b.sort(s.f({6}, {3, kNaN, 1, 3, -kInf, kInf}), 0);
  expect_same(s.reals(v), {-kInf, 1, 3, 3, kInf, kNaN});
  EXPECT_EQ(s.whole(i), (Whole{4, 2, 0, 3, 5, 1}));
  auto [dv, di] = s.b.sort(s.f({5}, {3, kNaN, 1, 3, 7}), 0, true);
  expect_same(s.reals(dv), {kNaN, 7, 3, 3, 1});
  EXPECT_EQ(s.whole(di), (Whole{1, 4, 0, 3, 2}));
  EXPECT_EQ(s.whole(s.b.topk(s.i({2, 3}, {5, 9, 7, 1, 1, 0}), 2, 1).second), (Whole{1, 2, 0, 1}));
}

TEST(Reference, Reductions) {
  Scratch s;
  NodeId x = s.f({2, 3}, {1, 5, -2, 4, 0.5, 3});
  int64_t rows = 0, columns = 1;
  EXPECT_EQ(s.reals(s.b.sum(x)), (Doubles{11.5}));
  EXPECT_EQ(s.reals(s.b.sum(x, {&rows, 1})), (Doubles{5, 5.5, 1}));
  EXPECT_EQ(s.reals(s.b.reduce(Op::reduce_max, x, {&columns, 1})), (Doubles{5, 4}));
  EXPECT_EQ(s.reals(s.b.reduce(Op::reduce_min, x, {&rows, 1})), (Doubles{1, 0.5, -2}));
  EXPECT_EQ(s.reals(s.b.reduce(Op::reduce_prod, x, {&columns, 1})), (Doubles{-10, 6}));
  EXPECT_EQ(s.whole(s.b.arg(Op::arg_max, x)), (Whole{1}));
  EXPECT_EQ(s.whole(s.b.arg(Op::arg_min, x, 0)), (Whole{0, 1, 0}));
  expect_same(s.reals(s.b.var(x, {&columns, 1})), {37.0 / 3, 3.25});  // one degree of freedom less, like PyTorch
  expect_same(s.reals(s.b.var(x, {&columns, 1}, false, 0)), {74.0 / 9, 6.5 / 3});
  expect_same(s.reals(s.b.logsumexp(s.f({2, 2}, {1000, 1000, -kInf, -kInf}), {&columns, 1})), {1000 + std::log(2), -kInf});
  EXPECT_EQ(s.reals(s.b.cumsum(x, 1)), (Doubles{1, 6, 4, 4, 4.5, 7.5}));
  EXPECT_EQ(s.reals(s.b.cumsum(x, 0, true)), (Doubles{5, 5.5, 1, 4, 0.5, 3}));
}

TEST(Reference, ReductionEdges) {
  Scratch s;
  NodeId empty = s.f({0, 2}, {});
  int64_t rows = 0, columns = 1;
  EXPECT_EQ(s.reals(s.b.sum(empty, {&rows, 1})), (Doubles{0, 0}));
  EXPECT_EQ(s.reals(s.b.reduce(Op::reduce_prod, empty, {&rows, 1})), (Doubles{1, 1}));
  expect_same(s.reals(s.b.mean(empty, {&rows, 1})), {kNaN, kNaN});
  EXPECT_EQ(s.reals(s.b.sum(empty, {&columns, 1})), Doubles{});
  NodeId x = s.f({2, 4}, {1, kNaN, 7, kNaN, 2, 9, 9, 2});
  expect_same(s.reals(s.b.reduce(Op::reduce_max, x, {&columns, 1})), {kNaN, 9});
  expect_same(s.reals(s.b.reduce(Op::reduce_min, x, {&columns, 1})), {kNaN, 2});
  EXPECT_EQ(s.whole(s.b.arg(Op::arg_max, x, 1)), (Whole{1, 1}));  // the first NaN, else the first of equals
  EXPECT_EQ(s.whole(s.b.arg(Op::arg_min, x, 1)), (Whole{1, 0}));
}

TEST(Reference, Contractions) {
  Scratch s;
  NodeId a = s.f({2, 3}, {1, 2, 3, 4, 5, 6}), b = s.f({3, 2}, {1, 0, 2, 1, 0, 3});
  EXPECT_EQ(s.reals(s.b.matmul(a, b)), (Doubles{5, 11, 14, 23}));
  EXPECT_EQ(s.reals(s.b.matmul(s.f({2, 0}, {}), s.f({0, 2}, {}))), (Doubles{0, 0, 0, 0}));
  EXPECT_EQ(s.reals(s.b.matmul(s.f({3}, {1, 2, 3}), s.f({3}, {4, 5, 6}))), (Doubles{32}));
  EXPECT_EQ(s.reals(s.b.conv(s.f({1, 1, 5}, {1, 2, 3, 4, 5}), s.f({1, 1, 2}, {1, 10}), {.stride = {2}, .padding_low = {1}})), (Doubles{10, 32, 54}));
  // Two groups: each output channel sees its own input channel.
  EXPECT_EQ(s.reals(s.b.conv(s.f({1, 2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), s.f({2, 1, 2, 2}, {1, 1, 1, 1, 0, 0, 0, 1}), {.groups = 2})), (Doubles{10, 8}));
  NodeId image = s.f({1, 1, 4}, {1, 5, 2, 3});
  EXPECT_EQ(s.reals(s.b.max_pool(image, Shape{2}, Shape{2}, Shape{1})), (Doubles{1, 5, 3}));
  EXPECT_EQ(s.reals(s.b.avg_pool(image, Shape{2}, Shape{2}, Shape{1})), (Doubles{0.5, 3.5, 1.5}));  // padding counts
}

TEST(Reference, RandomIsPhilox) {
  Scratch s;
  RandomOperands r{s.i({}, {12345}), s.i({}, {7}), s.i({}, {100}), 3};
  Doubles u = s.reals(s.b.uniform({2, 3}, r));
  for (size_t k = 0; k < 6; ++k) EXPECT_EQ(u[k], uniform_from(random_word({12345, 7, 3}, 100 + k)));
  Whole p = s.whole(s.b.permutation(31, r));
  std::sort(p.begin(), p.end());
  for (int64_t k = 0; k < 31; ++k) EXPECT_EQ(p[size_t(k)], k);
  Doubles kept = s.reals(s.b.dropout(s.b.full({1000}, DType::f32, 1), 0.25, r));
  EXPECT_NEAR(double(std::count(kept.begin(), kept.end(), 0.0)), 250, 45);
  for (double v : kept) EXPECT_TRUE(v == 0 || std::fabs(v - 4.0 / 3) < 1e-12);
  Doubles n = s.reals(s.b.normal({4000}, r));
  double mean = 0, square = 0;
  for (double v : n) mean += v / 4000, square += v * v / 4000;
  EXPECT_NEAR(mean, 0, 0.06);
  EXPECT_NEAR(square, 1, 0.1);
  NodeId logits = s.b.expand(s.f({3}, {std::log(0.5), std::log(0.2), std::log(0.3)}), {4000, 3});
  Whole c = s.whole(s.b.categorical(logits, r));
  for (auto [k, p] : {std::pair{0, 0.5}, {1, 0.2}, {2, 0.3}}) EXPECT_NEAR(double(std::count(c.begin(), c.end(), k)), 4000 * p, 120);
}

TEST(Reference, ScanRunsBothWays) {
  for (bool reverse : {false, true}) {
    Scratch s;
    auto body = std::make_shared<ScanBody>();
    Builder b(body->graph);
    NodeId h = body->graph.input({DType::f32, {}}, "h"), x = body->graph.input({DType::f32, {}}, "x"), c = body->graph.input({DType::f32, {}}, "c");
    NodeId next = b.add(b.mul(h, c), x);
    body->carry_in = {h}, body->sequence_in = {x}, body->constant_in = {c}, body->carry_out = {next}, body->step_out = {b.neg(next)};
    NodeId h0 = s.f({}, {1}), xs = s.f({3}, {1, 2, 3}), ten = s.f({}, {10});
    ScanResult r = scan(s.graph, body, {&h0, 1}, {&xs, 1}, {&ten, 1}, 3, reverse);
    EXPECT_EQ(s.reals(r.carry[0]), (Doubles{reverse ? 1321.0 : 1123.0}));
    EXPECT_EQ(s.reals(r.outputs[0]), reverse ? (Doubles{-1321, -132, -13}) : (Doubles{-11, -112, -1123}));
    EXPECT_EQ(s.reals(s.b.get(s.graph[r.carry[0]].in[0], 2)), reverse ? (Doubles{132, 13, 1}) : (Doubles{1, 11, 112}));  // carries on entry
  }
}

// Softmax attention by its definition, in loops, against the decomposition that the reference runs.
TEST(Reference, AttentionMatchesItsDefinition) {
  for (bool causal : {false, true}) {
    Scratch s;
    Random random(3);
    Shape qs = {2, 4, 3, 5}, ks = {2, 2, 6, 5};
    auto bound = [&](Shape shape) {
      NodeId id = s.graph.input({DType::f32, shape}, "x");
      s.values[id] = draw({DType::f32, shape}, random);
      return id;
    };
    NodeId q = bound(qs), k = bound(ks), v = bound(ks);
    Doubles got = s.reals(s.b.attention(q, k, v, {.scale = 0.4, .causal = causal}));
    const Doubles &fq = s.values[q].f, &fk = s.values[k].f, &fv = s.values[v].f;
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < 4; ++h)
        for (int64_t t = 0; t < 3; ++t) {
          int64_t keys = causal ? t + 1 + 6 - 3 : 6;  // aligned at the end
          Doubles weight(static_cast<size_t>(keys));
          double total = 0;
          auto key = [&](int64_t u, int64_t d) { return size_t(((b * 2 + h / 2) * 6 + u) * 5 + d); };
          for (int64_t u = 0; u < keys; ++u) {
            double dot = 0;
            for (int64_t d = 0; d < 5; ++d) dot += fq[size_t(((b * 4 + h) * 3 + t) * 5 + d)] * fk[key(u, d)];
            total += weight[size_t(u)] = std::exp(0.4 * dot);
          }
          for (int64_t d = 0; d < 5; ++d) {
            double want = 0;
            for (int64_t u = 0; u < keys; ++u) want += weight[size_t(u)] / total * fv[key(u, d)];
            EXPECT_NEAR(got[size_t(((b * 4 + h) * 3 + t) * 5 + d)], want, 1e-12);
          }
        }
  }
}

TEST(Reference, AttentionToNothingIsZero) {
  Scratch s;
  NodeId q = s.f({1, 1, 2, 1}, {1, 2}), k = s.f({1, 1, 2, 1}, {1, 2}), v = s.f({1, 1, 2, 1}, {3, 5});
  NodeId mask = s.in(DType::boolean, {2, 2}, {0, 0, 0, 1});
  EXPECT_EQ(s.reals(s.b.attention(q, k, v, {.mask = mask})), (Doubles{0, 5}));
}

// Values computed independently, from the definitions.
TEST(Reference, NormsAndLosses) {
  Scratch s;
  NodeId x = s.f({2, 3}, {1, 2, 4, -1, 0, 3}), w = s.f({3}, {1, 2, 0.5}), bias = s.f({3}, {0, 1, -1});
  expect_same(s.reals(s.b.layer_norm(x, w, bias)),
              {-1.0690415314502977, 0.46547923427485094, -0.3318490428435641, -0.9805789785364644, 0.2155368171708285, -0.3135947150244749});
  expect_same(s.reals(s.b.rms_norm(x, w)), {0.3779642030348929, 1.5118568121395717, 0.7559284060697858, -0.5477217359231784, 0, 0.8215826038847676});
  expect_same(s.reals(s.b.softmax(x)),
              {0.04201006613406605, 0.11419519938459449, 0.8437947344813395, 0.01714782554552039, 0.04661262257797389, 0.9362395518765056});
  auto loss = s.b.cross_entropy(x, s.i({2}, {1, -7}), -7);
  expect_same(s.reals(loss.sum), {-std::log(0.11419519938459449)});
  expect_same(s.reals(loss.count), {1});
}

TEST(Reference, BindingsAreChecked) {
  Scratch s;
  NodeId x = s.graph.input({DType::f32, {3}}, "weights");
  auto code_of = [&] {
    try {
      s.get(s.b.neg(x));
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("weights"), std::string::npos) << e.what();
      return e.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code_of(), ErrorCode::binding);
  s.values[x] = reference::zeros({DType::f32, {4}});
  EXPECT_EQ(code_of(), ErrorCode::shape);
  s.values[x] = reference::zeros({DType::f32, {3}});
  EXPECT_EQ(s.reals(s.b.neg(x)), (Doubles{-0.0, -0.0, -0.0}));
}

TEST(Reference, BytesRoundTrip) {
  for (DType t : {DType::boolean, DType::u8, DType::i32, DType::i64, DType::f16, DType::bf16, DType::f32, DType::f64}) {
    Type type{t, {5}};
    Array a = reference::from_values(type, Doubles{0, 1, t == DType::boolean ? 1.0 : 3, t == DType::boolean || t == DType::u8 ? 0.0 : -2, 1});
    std::vector<char> bytes(size_t(type.bytes()));
    reference::to_bytes(a, bytes.data());
    EXPECT_EQ(reference::from_bytes(type, bytes.data()), a) << name(t);
  }
}

}  // namespace
}  // namespace ridge::test
