// Work large enough to be split into many units: the same bits for 1, 2, 3 and 4 threads, close to the reference, fused or not.
#include <functional>

#include "autograd/gradients.h"
#include "graph/builder.h"
#include "graph/scan.h"
#include "ops/tolerance.h"

namespace ridge::test {
namespace {

struct LargeCase {
  const char* name;
  std::vector<Type> inputs;
  std::function<std::vector<NodeId>(Builder&, const std::vector<NodeId>&)> build;
  double tolerance = 1e-5;    // relative to a result's largest magnitude
  double low = -1, high = 1;  // of floating inputs; integers are below `range`
  int64_t range = 100;
  bool one_order = true;  // fusion does not change how sums are split: the same bits without it; else both are within the tolerance
};

std::vector<LargeCase> large_cases() {
  using In = const std::vector<NodeId>&;
  using Out = std::vector<NodeId>;
  auto f = [](Shape s) { return Type{DType::f32, s}; };
  auto half = [](Shape s) { return Type{DType::bf16, s}; };
  auto whole = [](Shape s) { return Type{DType::i64, s}; };
  int64_t last = -1, first = 0;
  return {
      {"map", {f({70001}), f({70001})}, [](Builder& b, In x) { return Out{b.unary(Op::gelu_tanh, b.add(b.mul(x[0], x[1]), 0.5))}; }},
      {"map_bf16", {half({70001}), half({70001})}, [](Builder& b, In x) { return Out{b.unary(Op::tanh, b.mul(x[0], x[1]))}; }, 0.01},
      {"map_transposed",
       {f({300, 211}), f({211, 300})},
       [](Builder& b, In x) {
         return Out{b.add(x[0], b.permute(x[1], {1, 0}))};
       }},
      {"sum_all",
       {f({90007})},
       [](Builder& b, In x) {
         return Out{b.sum(x[0]), b.reduce(Op::reduce_max, x[0])};
       },
       1e-5,
       -1,
       1,
       100,
       false},
      {"sum_rows",
       {f({513, 131})},
       [last](Builder& b, In x) {
         return Out{b.sum(x[0], {&last, 1})};
       }},
      {"sum_columns",
       {f({1031, 67})},
       [first](Builder& b, In x) {
         return Out{b.sum(b.square(x[0]), {&first, 1})};
       },
       1e-5,
       -1,
       1,
       100,
       false},
      {"sum_columns_bf16",
       {half({1031, 67})},
       [first](Builder& b, In x) {
         return Out{b.sum(b.cast(x[0], DType::f32), {&first, 1})};
       }},
      {"sum_middle", {f({9, 401, 35})}, [](Builder& b, In x) { return Out{b.sum(x[0], Shape{1})}; }},
      {"argmax",
       {f({257, 301})},
       [](Builder& b, In x) {
         return Out{b.arg(Op::arg_max, x[0], 1), b.arg(Op::arg_min, x[0], 0)};
       }},
      {"softmax", {f({129, 1003})}, [](Builder& b, In x) { return Out{b.softmax(b.mul(x[0], 5.0))}; }, 1e-5, -1, 1, 100, false},
      {"softmax_columns", {f({501, 130})}, [](Builder& b, In x) { return Out{b.softmax(x[0], 0)}; }, 1e-5, -1, 1, 100, false},
      {"layer_norm", {f({257, 384}), f({384}), f({384})}, [](Builder& b, In x) { return Out{b.layer_norm(x[0], x[1], x[2])}; }},
      {"layer_norm_backward",
       {f({130, 97}), f({97}), f({97}), f({130, 97})},
       [](Builder& b, In x) {
         NodeId y = b.layer_norm(x[0], x[1], x[2]);
         NodeId wrt[] = {x[0], x[1], x[2]};
         return vector_jacobian(b.graph(), {&y, 1}, {&x[3], 1}, wrt);
       }},
      {"cross_entropy_backward",
       {f({257, 97}), whole({257})},
       [](Builder& b, In x) {
         NodeId loss = b.cross_entropy(x[0], x[1], 3).sum;
         return Out{loss, gradients(b.graph(), loss, {&x[0], 1})[0]};
       },
       1e-5,
       -1,
       1,
       97},
      {"matmul", {f({257, 129}), f({129, 300})}, [](Builder& b, In x) { return Out{b.matmul(x[0], x[1])}; }},
      {"matmul_long", {f({17, 3001}), f({3001, 33})}, [](Builder& b, In x) { return Out{b.matmul(x[0], x[1])}; }},
      {"matmul_fused",
       {f({130, 97}), f({65, 97}), f({65}), f({130, 65})},
       [](Builder& b, In x) { return Out{b.add(b.unary(Op::gelu_tanh, b.linear(x[0], x[1], x[2])), x[3])}; }},
      {"matmul_bf16", {half({131, 257}), half({257, 67})}, [](Builder& b, In x) { return Out{b.matmul(x[0], x[1])}; }, 0.02},
      {"matmul_batches", {f({2, 3, 33, 65}), f({2, 3, 65, 47})}, [](Builder& b, In x) { return Out{b.matmul(x[0], x[1])}; }},
      {"attention",
       {f({2, 4, 131, 32}), f({2, 4, 131, 32}), f({2, 4, 131, 32})},
       [](Builder& b, In x) { return Out{b.attention(x[0], x[1], x[2], {.causal = true})}; }},
      {"attention_backward",
       {f({2, 4, 65, 16}), f({2, 2, 131, 16}), f({2, 2, 131, 16}), f({2, 4, 65, 16})},
       [](Builder& b, In x) {
         NodeId y = b.attention(x[0], x[1], x[2], {.causal = true});
         NodeId wrt[] = {x[0], x[1], x[2]};
         return vector_jacobian(b.graph(), {&y, 1}, {&x[3], 1}, wrt);
       }},
      {"conv",
       {f({3, 8, 19, 17}), f({12, 8, 3, 3})},
       [](Builder& b, In x) {
         NodeId y = b.conv(x[0], x[1], {.stride = {2, 1}, .padding_low = {1, 1}, .padding_high = {1, 1}});
         NodeId wrt[] = {x[0], x[1]};
         std::vector<NodeId> out = gradients(b.graph(), b.sum(b.square(y)), wrt);
         out.push_back(y);
         return out;
       }},
      {"pool",
       {f({3, 5, 33, 31})},
       [](Builder& b, In x) {
         return Out{b.max_pool(x[0], Shape{3, 3}, Shape{2, 2}, Shape{1, 1}), b.avg_pool(x[0], Shape{2, 2}, Shape{2, 2}, Shape{0, 0})};
       }},
      {"pool_backward",
       {f({2, 3, 17, 15})},
       [](Builder& b, In x) {
         return gradients(b.graph(), b.sum(b.square(b.max_pool(x[0], Shape{3, 3}, Shape{2, 2}, Shape{1, 1}))), x);
       }},
      {"embedding",
       {f({211, 48}), whole({7, 65})},
       [](Builder& b, In x) {
         NodeId y = b.take(x[0], x[1], 0);
         return Out{y, gradients(b.graph(), b.sum(b.square(y)), {&x[0], 1})[0]};
       },
       1e-5,
       -1,
       1,
       211},
      {"scatter_add",
       {f({97, 33}), whole({301, 33}), f({301, 33})},
       [](Builder& b, In x) {
         return Out{b.scatter_add(x[0], x[1], x[2], 0), b.scatter(x[0], x[1], x[2], 0)};
       },
       1e-5,
       -1,
       1,
       97},
      {"cumsum",
       {f({65, 701}), f({701, 65})},
       [](Builder& b, In x) {
         return Out{b.cumsum(x[0], 1), b.cumsum(x[1], 0, true)};
       }},
      {"sort",
       {f({33, 501})},
       [](Builder& b, In x) {
         auto [v, i] = b.sort(x[0], 1, true);
         return Out{v, i};
       }},
      {"concat_pad", {f({211, 65}), f({211, 33})}, [](Builder& b, In x) { return Out{b.pad(b.concat(x, 1), 0, 3, 2, 1, 0.5)}; }},
      {"dropout",
       {f({201, 97}), Type{DType::i64, {}}, Type{DType::i64, {}}, Type{DType::i64, {}}},
       [](Builder& b, In x) {
         return Out{b.dropout(x[0], 0.3, {x[1], x[2], x[3], 4}), b.normal({301, 33}, {x[1], x[2], x[3], 9}), b.permutation(999, {x[1], x[2], x[3], 2})};
       }},
      {"scan",
       {f({33, 40}), f({12, 33, 24}), f({64, 40})},
       [](Builder& b, In x) {
         auto body = std::make_shared<ScanBody>();
         Builder s(body->graph);
         NodeId h = body->graph.input({DType::f32, {33, 40}}, "h"), step = body->graph.input({DType::f32, {33, 24}}, "x"),
                w = body->graph.input({DType::f32, {64, 40}}, "w");
         NodeId both[] = {h, step};
         NodeId next = s.unary(Op::tanh, s.mul(s.matmul(s.concat(both, 1), w), 0.3));
         body->carry_in = {h}, body->sequence_in = {step}, body->constant_in = {w}, body->carry_out = {next}, body->step_out = {next};
         ScanResult r = scan(b.graph(), body, {&x[0], 1}, {&x[1], 1}, {&x[2], 1}, 12);
         std::vector<NodeId> out = gradients(b.graph(), b.add(b.sum(b.square(r.outputs[0])), b.sum(r.carry[0])), x);
         out.push_back(r.outputs[0]);
         return out;
       }},
  };
}

class Threads : public ::testing::TestWithParam<size_t> {};

TEST_P(Threads, DoNotChangeBits) {
  LargeCase c = large_cases()[GetParam()];
  Graph graph;
  Builder b(graph);
  Values values;
  Random random(GetParam() + 1);
  std::vector<NodeId> in;
  for (const Type& t : c.inputs) {
    in.push_back(graph.input(t, "x"));
    reference::Array v = is_float(t.dtype) ? draw(t, random, c.low, c.high) : draw(t, random, 0, double(c.range));
    for (double& x : v.f) x = reference::round_to(t.dtype, x);
    values[in.back()] = std::move(v);
  }
  std::vector<NodeId> out = c.build(b, in);
  std::vector<Bytes> got = run_compiled(graph, in, out, values, "", 1);
  for (int threads : {2, 3, 4}) EXPECT_TRUE(run_compiled(graph, in, out, values, "", threads) == got) << threads << " threads";
  EXPECT_TRUE(run_compiled(graph, in, out, values, "-plan", 2) == got) << "without the memory plan";
  std::vector<reference::Array> want = reference::evaluate(graph, out, values, reference::Rounding::stored);
  std::vector<Bytes> unfused = run_compiled(graph, in, out, values, "-fuse", 2);
  for (size_t i = 0; i < out.size(); ++i) {
    Tolerance t{0, c.tolerance * (1 + largest(want[i]))};
    EXPECT_TRUE(close(reference::from_bytes(want[i].type, got[i].data()), want[i], t)) << "result " << i;
    EXPECT_TRUE(close(reference::from_bytes(want[i].type, unfused[i].data()), want[i], t)) << "result " << i << " without fusion";
    EXPECT_TRUE(unfused[i] == got[i] || !c.one_order) << "result " << i << " has other bits without fusion";
  }
}

INSTANTIATE_TEST_SUITE_P(Large, Threads, ::testing::Range(size_t(0), large_cases().size()),
                         [](const auto& info) { return std::string(large_cases()[info.param].name); });

}  // namespace
}  // namespace ridge::test
