// Functions that the builder expands at trace time: first and second derivatives of norms, losses, pooling, attention, loops and more.
#include <functional>

#include "autograd/gradient_check.h"
#include "base/error.h"
#include "graph/builder.h"
#include "graph/custom.h"
#include "graph/scan.h"

namespace ridge::test {
namespace {

using Inputs = std::vector<NodeId>;

struct Formula {
  std::string name;
  std::vector<Shape> inputs;                                        // f32 inputs, all differentiated
  std::function<Inputs(Builder&, const Inputs&, Values&)> outputs;  // may add inputs with values
  double low = -2, high = 2;
};

NodeId bind(Builder& b, Values& values, Type type, std::vector<double> v) {
  NodeId id = b.graph().input(type, "bound");
  values[id] = reference::from_values(type, v);
  return id;
}

RandomOperands random_operands(Builder& b, Values& values) {
  auto scalar = [&](double v) { return bind(b, values, {DType::i64, {}}, {v}); };
  return {scalar(11), scalar(3), scalar(40), 5};
}

NodeId attend(Builder& b, const Inputs& x, AttentionOptions o) { return b.attention(x[0], x[1], x[2], o); }

// The log-sum-exp in addition to the output, since a loss may use it.
Inputs attend_both(Builder& b, const Inputs& x, AttentionOptions o) {
  NodeId out = attend(b, x, o), node = out;
  while (b.graph()[node].op != Op::attention) node = b.graph()[node].in[0];
  return {out, b.get(node, 1)};
}

NodeId recurrent(Builder& b, const Inputs& x, Values& values, bool reverse) {
  // h' = tanh(x_t W + r_t · h V), where r_t = 0 restores the initial carry before the step.
  auto body = std::make_shared<ScanBody>();
  Builder s(body->graph);
  auto in = [&](DType t, Shape shape, const char* name) { return body->graph.input({t, shape}, name); };
  NodeId h = in(DType::f32, {2, 3}, "h"), step = in(DType::f32, {2, 2}, "x"), reset = in(DType::boolean, {2, 1}, "reset");
  NodeId h0 = in(DType::f32, {2, 3}, "h0"), w = in(DType::f32, {2, 3}, "w"), v = in(DType::f32, {3, 3}, "v");
  NodeId before = s.select(reset, h0, h);
  NodeId next = s.unary(Op::tanh, s.add(s.matmul(step, w), s.matmul(before, v)));
  body->carry_in = {h}, body->sequence_in = {step, reset}, body->constant_in = {h0, w, v};
  body->carry_out = {next}, body->step_out = {s.mul(next, before)};
  NodeId resets = bind(b, values, {DType::boolean, {4, 2, 1}}, {0, 0, 1, 0, 0, 0, 0, 1});
  NodeId sequences[] = {x[1], resets}, constants[] = {x[0], x[2], x[3]};
  ScanResult r = scan(b.graph(), body, {&x[0], 1}, sequences, constants, 4, reverse);
  return b.add(b.sum(r.outputs[0]), b.sum(b.square(r.carry[0])));
}

std::vector<Formula> formulas() {
  int64_t last = -1;
  auto one = [](auto make) { return [make](Builder& b, const Inputs& x, Values& v) { return Inputs{make(b, x, v)}; }; };
  auto plain = [](auto make) { return [make](Builder& b, const Inputs& x, Values&) { return Inputs{make(b, x)}; }; };
  auto einsum = [&](std::string equation) { return plain([equation](Builder& b, const Inputs& x) { return b.einsum(equation, x); }); };
  std::vector<Formula> f = {
      {"layer_norm", {{3, 7}, {7}, {7}}, plain([](Builder& b, const Inputs& x) { return b.layer_norm(x[0], x[1], x[2]); })},
      {"layer_norm_bare", {{2, 3, 5}}, plain([](Builder& b, const Inputs& x) { return b.layer_norm(x[0], kNone, kNone); })},
      {"rms_norm", {{3, 7}, {7}}, plain([](Builder& b, const Inputs& x) { return b.rms_norm(x[0], x[1]); })},
      {"batch_norm_training",
       {{3, 2, 4}, {2}, {2}},
       [](Builder& b, const Inputs& x, Values&) {
         auto r = b.batch_norm(x[0], x[1], x[2], kNone, kNone, true);
         return Inputs{r.out, r.mean, r.var};
       }},
      {"batch_norm_inference",
       {{3, 2, 4}, {2}, {2}, {2}, {2}},
       plain([](Builder& b, const Inputs& x) { return b.batch_norm(x[0], x[1], x[2], x[3], x[4], false).out; }),
       0.2},
      {"softmax", {{3, 7}}, plain([](Builder& b, const Inputs& x) { return b.softmax(x[0]); })},
      {"softmax_middle", {{2, 5, 3}}, plain([](Builder& b, const Inputs& x) { return b.softmax(x[0], 1); })},
      {"log_softmax", {{3, 7}}, plain([](Builder& b, const Inputs& x) { return b.log_softmax(x[0]); })},
      {"logsumexp", {{3, 7}}, plain([last](Builder& b, const Inputs& x) {
         return b.logsumexp(x[0], {&last, 1});
       })},
      {"logsumexp_all", {{3, 7}}, plain([](Builder& b, const Inputs& x) { return b.logsumexp(x[0]); })},
      {"mean_var",
       {{3, 7}},
       [last](Builder& b, const Inputs& x, Values&) {
         return Inputs{b.mean(x[0], {&last, 1}), b.var(x[0]), b.var(x[0], {&last, 1}, true, 0)};
       }},
      {"cross_entropy", {{4, 5}}, one([](Builder& b, const Inputs& x, Values& v) {
         return b.cross_entropy(x[0], bind(b, v, {DType::i64, {4}}, {1, 0, 4, 2})).sum;
       })},
      {"cross_entropy_ignore", {{2, 3, 5}}, one([](Builder& b, const Inputs& x, Values& v) {
         auto r = b.cross_entropy(x[0], bind(b, v, {DType::i64, {2, 3}}, {1, -100, 4, 2, -100, 0}), -100);
         return b.div(r.sum, r.count);
       })},
      {"gelu_tanh", {{13}}, plain([](Builder& b, const Inputs& x) { return b.unary(Op::gelu_tanh, x[0]); })},
      {"gelu_erf", {{13}}, plain([](Builder& b, const Inputs& x) { return b.unary(Op::gelu_erf, x[0]); })},
      {"max_pool", {{2, 2, 5, 4}}, plain([](Builder& b, const Inputs& x) {
         return b.max_pool(x[0], Shape{3, 2}, Shape{2, 2}, Shape{1, 0});
       })},
      {"avg_pool", {{2, 2, 5, 4}}, plain([](Builder& b, const Inputs& x) {
         return b.avg_pool(x[0], Shape{3, 2}, Shape{2, 2}, Shape{1, 0});
       })},
      {"conv1d", {{2, 4, 7}, {6, 2, 3}}, plain([](Builder& b, const Inputs& x) {
         return b.conv(x[0], x[1], {.stride = {2}, .padding_low = {1}, .padding_high = {2}, .dilation = {2}, .groups = 2});
       })},
      {"conv2d", {{2, 2, 5, 4}, {3, 2, 3, 2}}, plain([](Builder& b, const Inputs& x) {
         return b.conv(x[0], x[1], {.stride = {2, 1}, .padding_low = {1, 0}, .padding_high = {1, 1}});
       })},
      {"linear", {{2, 3, 5}, {4, 5}, {4}}, plain([](Builder& b, const Inputs& x) { return b.linear(x[0], x[1], x[2]); })},
      {"matmul_broadcast", {{3, 1, 2, 5}, {4, 5, 3}}, plain([](Builder& b, const Inputs& x) { return b.matmul(x[0], x[1]); })},
      {"matmul_vectors",
       {{5}, {5}, {4, 5}},
       [](Builder& b, const Inputs& x, Values&) {
         return Inputs{b.matmul(x[0], x[1]), b.matmul(x[2], x[0])};
       }},
      {"rope", {{1, 2, 3, 4}}, one([](Builder& b, const Inputs& x, Values& v) {
         return b.rope(x[0], bind(b, v, {DType::i64, {3}}, {0, 5, 2}));
       })},
      {"topk", {{3, 7}}, plain([](Builder& b, const Inputs& x) { return b.topk(x[0], 3, -1).first; })},
      {"topk_smallest", {{7, 2}}, plain([](Builder& b, const Inputs& x) { return b.topk(x[0], 2, 0, false).first; })},
      {"dropout", {{5, 7}}, one([](Builder& b, const Inputs& x, Values& v) { return b.dropout(x[0], 0.4, random_operands(b, v)); })},
      {"broadcasting", {{3, 1}, {1, 5}, {}}, plain([](Builder& b, const Inputs& x) { return b.div(b.mul(x[0], x[1]), b.add(b.square(x[2]), 1.0)); })},
      {"stack_split",
       {{2, 3}, {2, 3}},
       [](Builder& b, const Inputs& x, Values&) {
         NodeId s = b.stack(x, 1);
         int64_t sizes[] = {1, 2};
         Inputs parts = b.split(s, sizes, 2);
         return Inputs{b.square(parts[0]), b.unary(Op::exp, parts[1])};
       }},
      {"clamp", {{11}}, plain([](Builder& b, const Inputs& x) { return b.square(b.clamp(x[0], -1, 0.5)); })},
      {"product_with_zero", {{4}}, plain([](Builder& b, const Inputs& x) {
         return b.reduce(Op::reduce_prod, b.mul(x[0], b.cast(b.iota({4}, 0), DType::f32)));
       })},
      {"embedding", {{5, 3}}, one([](Builder& b, const Inputs& x, Values& v) {
         return b.square(b.take(x[0], bind(b, v, {DType::i64, {2, 2}}, {4, 0, 4, 2}), 0));
       })},
      {"recurrent", {{2, 3}, {4, 2, 2}, {2, 3}, {3, 3}}, one([](Builder& b, const Inputs& x, Values& v) { return recurrent(b, x, v, false); }), -1, 1},
      {"recurrent_reverse", {{2, 3}, {4, 2, 2}, {2, 3}, {3, 3}}, one([](Builder& b, const Inputs& x, Values& v) { return recurrent(b, x, v, true); }), -1, 1},
      {"attention", {{2, 2, 3, 4}, {2, 2, 3, 4}, {2, 2, 3, 4}}, plain([](Builder& b, const Inputs& x) { return attend(b, x, {}); })},
      {"attention_causal_shared_heads", {{1, 4, 3, 2}, {1, 2, 5, 2}, {1, 2, 5, 2}}, plain([](Builder& b, const Inputs& x) {
         return attend(b, x, {.scale = 0.7, .causal = true});
       })},
      {"attention_dropout", {{1, 2, 3, 2}, {1, 2, 4, 2}, {1, 2, 4, 2}}, one([](Builder& b, const Inputs& x, Values& v) {
         return attend(b, x, {.dropout = 0.3, .random = random_operands(b, v)});
       })},
      {"attention_length", {{1, 1, 2, 2}, {1, 1, 6, 2}, {1, 1, 6, 2}}, one([](Builder& b, const Inputs& x, Values& v) {
         return attend(b, x, {.causal = true, .length = bind(b, v, {DType::i64, {}}, {4})});
       })},
      // The second query may attend to nothing: its output and gradients are zero, not NaN.
      {"attention_masked_row", {{1, 1, 3, 2}, {1, 1, 4, 2}, {1, 1, 4, 2}}, one([](Builder& b, const Inputs& x, Values& v) {
         return attend(b, x, {.mask = bind(b, v, {DType::boolean, {3, 4}}, {1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 1})});
       })},
      {"attention_causal_more_queries", {{1, 1, 4, 2}, {1, 1, 2, 2}, {1, 1, 2, 2}}, plain([](Builder& b, const Inputs& x) {
         return attend(b, x, {.causal = true});
       })},
      {"attention_additive_mask", {{1, 2, 3, 2}, {1, 2, 4, 2}, {1, 2, 4, 2}, {2, 1, 4}}, plain([](Builder& b, const Inputs& x) {
         return attend(b, x, {.mask = x[3]});
       })},
      {"attention_log_sum_exp", {{2, 2, 3, 4}, {2, 2, 5, 4}, {2, 2, 5, 4}}, [](Builder& b, const Inputs& x, Values&) { return attend_both(b, x, {}); }},
      {"attention_log_sum_exp_alone", {{1, 2, 3, 4}, {1, 1, 5, 4}, {1, 1, 5, 4}}, plain([](Builder& b, const Inputs& x) {
         return b.add(attend_both(b, x, {.scale = 0.7, .causal = true})[1], b.mul(b.sum(x[2]), 0.0));
       })},
      {"attention_log_sum_exp_dropout",
       {{1, 2, 3, 2}, {1, 2, 4, 2}, {1, 2, 4, 2}},
       [](Builder& b, const Inputs& x, Values& v) { return attend_both(b, x, {.causal = true, .dropout = 0.3, .random = random_operands(b, v)}); }},
      {"attention_log_sum_exp_length",
       {{1, 1, 2, 2}, {1, 1, 6, 2}, {1, 1, 6, 2}},
       [](Builder& b, const Inputs& x, Values& v) { return attend_both(b, x, {.length = bind(b, v, {DType::i64, {}}, {4})}); }},
      {"attention_log_sum_exp_additive_mask",
       {{1, 2, 3, 2}, {1, 2, 4, 2}, {1, 2, 4, 2}, {2, 1, 4}},
       [](Builder& b, const Inputs& x, Values&) { return attend_both(b, x, {.mask = x[3]}); }},
      {"einsum_product", {{3, 4}, {4, 5}}, einsum("ij,jk->ik")},
      {"einsum_batch", {{2, 3, 4}, {2, 4, 5}}, einsum("bij,bjk->bki")},
      {"einsum_trace", {{4, 4}}, einsum("ii")},
      {"einsum_diagonal", {{4, 3, 4}}, einsum("iji->ji")},
      {"einsum_triple", {{2, 3}, {3, 4}, {4, 2}}, einsum("ab,bc,ca->")},
      {"einsum_ellipsis", {{2, 1, 3, 4}, {5, 4, 2}}, einsum("...ij,...jk")},
      {"einsum_outer", {{3}, {4}}, einsum("i,j->ji")},
      {"einsum_unused", {{3, 4}, {3, 5}}, einsum("ij,ik->i")},
  };
  return f;
}

class BuilderGradients : public ::testing::TestWithParam<size_t> {};

TEST_P(BuilderGradients, MatchCentralDifferencesTwice) {
  Formula f = formulas()[GetParam()];
  Graph graph;
  Builder b(graph);
  Values values;
  Random random(GetParam() + 1);
  Inputs x;
  for (const Shape& s : f.inputs) {
    x.push_back(graph.input({DType::f32, s}, "x"));
    values[x.back()] = draw({DType::f32, s}, random, f.low, f.high);
  }
  Inputs out = f.outputs(b, x, values);
  expect_second_gradients(graph, out, x, values, f.name);
}

INSTANTIATE_TEST_SUITE_P(All, BuilderGradients, ::testing::Range(size_t(0), formulas().size()), [](const auto& info) { return formulas()[info.param].name; });

TEST(Gradients, KeepTheTypeOfNarrowOperands) {
  Graph graph;
  Builder b(graph);
  NodeId x = graph.input({DType::bf16, {3, 4}}, "x"), w = graph.input({DType::f32, {4}}, "w");
  NodeId wrt[] = {x, w};
  std::vector<NodeId> g = gradients(graph, b.sum(b.cast(b.layer_norm(x, w, kNone), DType::f32)), wrt);
  EXPECT_EQ(to_string(graph.type(g[0])), "bf16[3, 4]");
  EXPECT_EQ(to_string(graph.type(g[1])), "f32[4]");
}

TEST(Gradients, AreZeroForUnrelatedInputs) {
  Graph graph;
  Builder b(graph);
  NodeId x = graph.input({DType::f32, {3}}, "x"), y = graph.input({DType::f32, {2}}, "y");
  NodeId loss = b.sum(b.mul(b.stop_gradient(x), x));
  NodeId wrt[] = {x, y};
  std::vector<NodeId> g = gradients(graph, loss, wrt);
  Values values;
  values[x] = reference::from_values({DType::f32, {3}}, std::vector<double>{1, 2, 3});
  auto got = reference::evaluate(graph, g, values);
  EXPECT_EQ(got[0].f, (std::vector<double>{1, 2, 3}));  // only the path without stop_gradient
  EXPECT_EQ(got[1].f, (std::vector<double>{0, 0}));
}

TEST(Gradients, TiesFollowPyTorch) {
  Graph graph;
  Builder b(graph);
  NodeId x = graph.input({DType::f32, {4}}, "x");
  Values values;
  values[x] = reference::from_values({DType::f32, {4}}, std::vector<double>{2, 1, 2, 0});
  auto gradient = [&](NodeId loss) { return reference::evaluate(graph, gradients(graph, loss, {&x, 1}), values)[0].f; };
  EXPECT_EQ(gradient(b.reduce(Op::reduce_max, x)), (std::vector<double>{0.5, 0, 0.5, 0}));                    // amax splits it evenly
  EXPECT_EQ(gradient(b.sum(b.binary(Op::maximum, x, b.like(x, 2)))), (std::vector<double>{0.5, 0, 0.5, 0}));  // so does maximum
  EXPECT_EQ(gradient(b.sum(b.unary(Op::relu, b.sub(x, 1.0)))), (std::vector<double>{1, 0, 1, 0}));            // relu'(0) = 0
  EXPECT_EQ(gradient(b.sum(b.unary(Op::abs, x))), (std::vector<double>{1, 1, 1, 0}));                         // abs'(0) = 0
  EXPECT_EQ(gradient(b.sum(b.clamp(x, 0, 2))), (std::vector<double>{1, 1, 1, 1}));                            // passes at the bounds
  NodeId image = b.reshape(x, {1, 1, 4});
  EXPECT_EQ(gradient(b.sum(b.max_pool(image, Shape{4}, Shape{4}, Shape{0}))), (std::vector<double>{1, 0, 0, 0}));  // the first maximum
}

TEST(Gradients, UseACustomRule) {
  Graph graph;
  Builder b(graph);
  NodeId x = graph.input({DType::f32, {2}}, "x"), y = graph.input({DType::f32, {2}}, "y");
  auto rule = std::make_shared<CustomGradient>();
  rule->vjp = [](Graph& g, std::span<const NodeId> in, NodeId out, NodeId cotangent) {
    Builder inner(g);
    return std::vector<NodeId>{inner.mul(inner.mul(cotangent, out), in[1]), kNone};
  };
  NodeId custom = graph.add(Op::custom, {b.mul(x, y), x, y}, {{}, {}, rule});
  Values values;
  values[x] = reference::from_values({DType::f32, {2}}, std::vector<double>{2, 3});
  values[y] = reference::from_values({DType::f32, {2}}, std::vector<double>{5, 7});
  NodeId wrt[] = {x, y};
  auto got = reference::evaluate(graph, gradients(graph, b.sum(custom), wrt), values);
  EXPECT_EQ(got[0].f, (std::vector<double>{2 * 5 * 5, 3 * 7 * 7}));
  EXPECT_EQ(got[1].f, (std::vector<double>{0, 0}));
}

TEST(Gradients, RejectOpsWithoutGradients) {
  Graph graph;
  Builder b(graph);
  NodeId x = graph.input({DType::f32, {3}}, "x"), n = graph.input({DType::i64, {3}}, "n");
  auto code_of = [&](NodeId loss, NodeId wrt) {
    try {
      gradients(graph, loss, {&wrt, 1});
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("[grad]"), std::string::npos) << e.what();
      return e.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code_of(b.square(x), x), ErrorCode::shape);
  EXPECT_EQ(code_of(b.sum(b.mul(x, n)), n), ErrorCode::dtype);
  EXPECT_EQ(code_of(b.sum(n), x), ErrorCode::dtype);
}

}  // namespace
}  // namespace ridge::test
