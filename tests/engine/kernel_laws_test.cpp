// How many kernels small formulas become. One kernel more is a pass over memory more; one fewer means the law can be sharper.
#include <gtest/gtest.h>

#include "autograd/gradients.h"
#include "engine/steps.h"
#include "optim/adamw.h"
#include "optim/clip.h"

namespace ridge::engine {
namespace {

struct Formula {
  Graph graph;
  Builder b{graph};
  std::vector<NodeId> inputs;
  NodeId input(Shape shape, DType dtype = DType::f32) { return inputs.emplace_back(graph.input({dtype, shape}, "x" + std::to_string(inputs.size()))); }
  // The number of kernels, and their list for the message.
  std::pair<size_t, std::string> kernels(const std::vector<NodeId>& outputs) {
    Executable e(graph, inputs, outputs);
    return {e.report().kernels.size(), e.dump()};
  }
};

void expect_exactly(Formula& f, const std::vector<NodeId>& outputs, size_t count) {
  auto [n, text] = f.kernels(outputs);
  EXPECT_EQ(n, count) << text;
}

void expect_at_most(Formula& f, const std::vector<NodeId>& outputs, size_t count) {
  auto [n, text] = f.kernels(outputs);
  EXPECT_LE(n, count) << text;
  EXPECT_GE(n, 1u) << text;
}

TEST(KernelLaws, ReluOfSum) {
  Formula f;
  NodeId a = f.input({33, 65}), b = f.input({33, 65});
  expect_exactly(f, {f.b.unary(Op::relu, f.b.add(a, b))}, 1);
}

TEST(KernelLaws, ReluOfProduct) {
  Formula f;
  NodeId a = f.input({33, 65}), b = f.input({33, 65});
  expect_exactly(f, {f.b.unary(Op::relu, f.b.mul(a, b))}, 1);
}

TEST(KernelLaws, ReluOfMatmul) {
  Formula f;
  NodeId a = f.input({33, 65}), b = f.input({65, 31});
  expect_exactly(f, {f.b.unary(Op::relu, f.b.matmul(a, b))}, 1);
}

TEST(KernelLaws, Affine) {
  Formula f;
  NodeId a = f.input({33, 65}), s = f.input({}), b = f.input({});
  expect_exactly(f, {f.b.add(f.b.mul(a, s), b)}, 1);
}

TEST(KernelLaws, AffineOfLiterals) {
  Formula f;
  NodeId a = f.input({33, 65});
  expect_exactly(f, {f.b.add(f.b.mul(a, 2.5), 0.5)}, 1);
}

TEST(KernelLaws, MatmulBiasActivation) {
  for (Op op : {Op::relu, Op::gelu_tanh, Op::gelu_erf, Op::silu, Op::tanh}) {
    Formula f;
    NodeId x = f.input({6, 11, 64}), w = f.input({48, 64}), b = f.input({48});
    expect_exactly(f, {f.b.unary(op, f.b.linear(x, w, b))}, 1);
  }
}

TEST(KernelLaws, MatmulBiasResidual) {
  Formula f;
  NodeId x = f.input({6, 11, 64}), w = f.input({64, 64}), b = f.input({64});
  expect_exactly(f, {f.b.add(x, f.b.linear(x, w, b))}, 1);
}

TEST(KernelLaws, LayerNorm) {
  Formula f;
  NodeId x = f.input({64, 96}), w = f.input({96}), b = f.input({96});
  expect_at_most(f, {f.b.layer_norm(x, w, b)}, 2);
}

TEST(KernelLaws, RmsNorm) {
  Formula f;
  NodeId x = f.input({64, 96}), w = f.input({96});
  expect_at_most(f, {f.b.rms_norm(x, w)}, 2);
}

TEST(KernelLaws, Softmax) {
  Formula f;
  NodeId x = f.input({64, 96});
  expect_at_most(f, {f.b.softmax(x)}, 2);
}

TEST(KernelLaws, LogSoftmax) {
  Formula f;
  NodeId x = f.input({64, 96});
  expect_at_most(f, {f.b.log_softmax(x)}, 2);
}

// Over any axes, a leading one as well: columns are read once for each number that must be known first, by one kernel.
TEST(KernelLaws, SoftmaxOverAnyAxis) {
  for (const Shape& s : {Shape{64, 96}, Shape{5, 33, 7}, Shape{5000, 3}, Shape{3, 4, 5, 6}})
    for (int axis = 0; axis < s.rank(); ++axis)
      for (int kind = 0; kind < 3; ++kind) {
        Formula f;
        NodeId x = f.input(s);
        int64_t over = axis;
        expect_exactly(f, {kind == 0 ? f.b.softmax(x, axis) : kind == 1 ? f.b.log_softmax(x, axis) : f.b.logsumexp(x, {&over, 1})}, 1);
      }
}

TEST(KernelLaws, NormOverAnyAxes) {
  for (const std::vector<int64_t>& axes : std::vector<std::vector<int64_t>>{{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}, {0, 1, 2}}) {
    Formula f;
    NodeId x = f.input({12, 33, 20}), w = f.input({12, 33, 20});
    NodeId centred = f.b.sub(x, f.b.mean(x, axes, true)), variance = f.b.mean(f.b.mul(centred, centred), axes, true);
    expect_at_most(f, {f.b.mul(f.b.mul(centred, f.b.unary(Op::rsqrt, f.b.add(variance, 1e-5))), w)}, 2);
  }
}

TEST(KernelLaws, CrossEntropy) {
  for (std::optional<int64_t> ignore : {std::optional<int64_t>{}, {-100}}) {
    Formula f;
    NodeId x = f.input({64, 96}), t = f.input({64}, DType::i64);
    auto [sum, count] = f.b.cross_entropy(x, t, ignore);
    expect_at_most(f, {f.b.div(sum, count)}, 2);
  }
}

// Splitting qkv, splitting heads and merging them are strides of the attention and matmul kernels.
TEST(KernelLaws, HeadsAreViews) {
  const int64_t batch = 3, time = 16, heads = 4, dim = 8, width = heads * dim;
  Formula f;
  NodeId qkv = f.input({batch, time, 3 * width}), w = f.input({width, width});
  auto part = [&](int64_t i) { return f.b.permute(f.b.reshape(f.b.slice(qkv, -1, i * width, (i + 1) * width), {batch, time, heads, dim}), {0, 2, 1, 3}); };
  AttentionOptions o;
  o.causal = true;
  NodeId y = f.b.reshape(f.b.permute(f.b.attention(part(0), part(1), part(2), o), {0, 2, 1, 3}), {batch, time, width});
  NodeId z = f.b.linear(y, w);
  expect_exactly(f, {z}, 2);
  // Backwards: the gradient of y and one kernel that writes dq, dk and dv straight into their places in dqkv.
  NodeId d = f.input(f.graph.shape(z)), dqkv = vector_jacobian(f.graph, {&z, 1}, {&d, 1}, {&qkv, 1})[0];
  expect_exactly(f, {z, dqkv}, 4);
}

TEST(KernelLaws, AdamWIsOneLaunch) {
  std::vector<Parameter> parameters = gpt_parameters(small_gpt());
  Formula f;
  AdamState s;
  std::vector<NodeId> gradients;
  for (const Parameter& p : parameters) {
    s.parameters.push_back(f.input(p.shape)), s.first.push_back(f.input(p.shape)), s.second.push_back(f.input(p.shape));
    gradients.push_back(f.input(p.shape));
  }
  s.applied = f.input({}, DType::i64);
  NodeId rate = f.input({}), scale = f.input({}), good = f.input({}, DType::boolean);
  for (NodeId& g : gradients) g = f.b.mul(g, scale);  // clipping goes along
  AdamState next = adamw(f.b, s, gradients, rate, decay_values(parameters, 0.1), {}, good);
  std::vector<NodeId> outputs;
  for (auto* list : {&next.parameters, &next.first, &next.second}) outputs.insert(outputs.end(), list->begin(), list->end());
  outputs.push_back(next.applied);
  Executable e(f.graph, f.inputs, outputs);
  // Bias corrections and the count are single numbers; everything that touches tensors is one kernel.
  size_t large = 0;
  for (const KernelReport& k : e.report().kernels) large += k.bytes > 256;
  EXPECT_EQ(large, 1u) << e.dump();
  EXPECT_LE(e.report().kernels.size(), 3u) << e.dump();
}

TEST(KernelLaws, GlobalNormIsOneLaunchAndOneNumber) {
  std::vector<Parameter> parameters = gpt_parameters(small_gpt());
  Formula f;
  std::vector<NodeId> gradients;
  for (const Parameter& p : parameters) gradients.push_back(f.input(p.shape));
  expect_at_most(f, {global_norm(f.b, gradients)}, 2);
}

TEST(KernelLaws, ARefusedFusionSaysWhy) {
  Formula f;
  NodeId a = f.input({33, 65}), b = f.input({65, 31});
  int64_t last = -1;
  Executable e(f.graph, f.inputs, {f.b.sum(f.b.matmul(a, b), {&last, 1})});
  ASSERT_EQ(e.report().kernels.size(), 2u);
  ASSERT_FALSE(e.report().refusals.empty());
  EXPECT_NE(e.dump().find(e.report().refusals[0]), std::string::npos);
}

}  // namespace
}  // namespace ridge::engine
