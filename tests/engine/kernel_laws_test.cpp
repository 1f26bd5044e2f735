// How many kernels small formulas compile to. One more kernel is one more pass over memory; if there is one fewer, tighten the law.
#include <gtest/gtest.h>

#include <algorithm>

#include "autograd/gradients.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/sgd.h"
#include "support/rounds.h"
#include "support/steps.h"

namespace ridge::engine {
namespace {

struct Formula {
  Graph graph;
  Builder b{graph};
  std::vector<NodeId> inputs;
  NodeId input(Shape shape, DType dtype = DType::f32) { return inputs.emplace_back(graph.input({dtype, shape}, "x" + std::to_string(inputs.size()))); }
  // The number of kernels, and a list of them for the message.
  std::pair<size_t, std::string> kernels(const std::vector<NodeId>& outputs) {
    Executable e(graph, inputs, outputs, default_backend());
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

TEST(KernelLaws, SelectByALiteralIsThatSide) {
  for (bool first : {true, false}) {
    Formula f;
    const NodeId a = f.input({}), b = f.input({});
    Executable e(f.graph, f.inputs, {f.b.select(f.b.literal(DType::boolean, first), a, b)}, default_backend());
    const float x = 3, y = 5;
    float out = 0;
    e.run(std::vector<const void*>{&x, &y}, std::vector<void*>{&out});
    EXPECT_EQ(out, first ? x : y);
  }
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

// Over any axes, including a leading one: one kernel reads the columns, once for each value that must be known first.
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
  // Backward: the gradient of y and one kernel that writes dq, dk and dv directly into their places in dqkv.
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
  for (NodeId& g : gradients) g = f.b.mul(g, scale);  // clipping is fused in
  AdamState next = adamw(f.b, s, gradients, rate, decay_values(parameters, 0.1), {}, good);
  std::vector<NodeId> outputs;
  for (auto* list : {&next.parameters, &next.first, &next.second}) outputs.insert(outputs.end(), list->begin(), list->end());
  outputs.push_back(next.applied);
  Executable e(f.graph, f.inputs, outputs, default_backend());
  // Bias corrections and the count are scalars; everything that touches tensors is one kernel.
  size_t large = 0;
  for (const KernelReport& k : e.report().kernels) large += k.bytes > 256;
  EXPECT_EQ(large, 1u) << e.dump();
  EXPECT_LE(e.report().kernels.size(), 3u) << e.dump();
}

// Gradients and update in one program, as in functional style: a model of the given widths, its loss, its optimizer.
struct OneProgram {
  Formula f;
  std::vector<NodeId> parameters, gradients, outputs;
  std::vector<std::pair<int, int>> state;
  NodeId loss = kNone, rate = kNone;

  OneProgram(int64_t batch, const std::vector<int64_t>& widths) {
    NodeId x = f.input({batch, widths[0]}), t = f.input({batch}, DType::i64);
    rate = f.input({});
    for (size_t i = 0; i + 1 < widths.size(); ++i) {
      NodeId w = parameters.emplace_back(f.input({widths[i + 1], widths[i]})), bias = parameters.emplace_back(f.input({widths[i + 1]}));
      x = f.b.linear(x, w, bias);
      if (i + 2 < widths.size()) x = f.b.unary(Op::gelu_tanh, x);
    }
    loss = f.b.cross_entropy(x, t).sum;
    gradients = ridge::gradients(f.graph, loss, parameters);
    outputs = {loss};
  }

  std::vector<NodeId> alike() {
    std::vector<NodeId> list;
    for (NodeId p : parameters) list.push_back(f.input(f.graph.shape(p)));
    return list;
  }
  void carry(NodeId before, NodeId after) {
    int in = int(std::find(f.inputs.begin(), f.inputs.end(), before) - f.inputs.begin());
    state.push_back({in, int(outputs.size())});
    outputs.push_back(after);
  }
  void carry(const std::vector<NodeId>& before, const std::vector<NodeId>& after) {
    for (size_t i = 0; i < before.size(); ++i) carry(before[i], after[i]);
  }

  Executable compile(const std::vector<NodeId>& results, bool with_state) const {
    CompileOptions options(default_backend());
    if (with_state) options.state = state;
    options.forward = {loss};
    return Executable(f.graph, f.inputs, results, options);
  }
  // The number of tensor kernels in addition to those of a program that only computes the gradients.
  void expect_update_launches(size_t count, size_t together, const std::string& label) const {
    std::vector<NodeId> alone = {loss};
    alone.insert(alone.end(), gradients.begin(), gradients.end());
    Executable step = compile(outputs, true), plain = compile(alone, false);
    auto large = [](const Executable& e) {
      size_t n = 0;
      for (const KernelReport& k : e.report().kernels) n += k.bytes > 256;
      return n;
    };
    EXPECT_EQ(large(step), large(plain) + count) << label << "\n" << step.dump();
    size_t found = 0;
    for (const KernelReport& k : step.report().kernels) found += k.name.ends_with("x" + std::to_string(together));
    EXPECT_EQ(found, together ? 1u : 0u) << label << "\n" << step.dump();
    EXPECT_LE(double(step.report().arena_bytes), 1.02 * double(std::max(step.report().max_live_bytes, plain.report().arena_bytes))) << label;
  }
};

TEST(KernelLaws, OptimizersAreOneLaunchInOneProgram) {
  for (bool clip : {false, true})
    for (int kind = 0; kind < 5; ++kind) {
      OneProgram p(256, {64, 96, 96, 80, 80, 10});
      const size_t parameters = p.parameters.size();
      std::vector<NodeId> g = p.gradients;
      NodeId good = kNone;
      if (clip) {
        Clipped c = clip_global_norm(p.f.b, g, 1);
        g = c.gradients, good = p.f.b.unary(Op::is_finite, c.norm);
      }
      double decay = 0.1;
      if (kind < 2) {
        AdamState s{p.parameters, p.alike(), p.alike(), p.f.input({}, DType::i64)};
        AdamState next = kind == 0 ? adamw(p.f.b, s, g, p.rate, {&decay, 1}, {}, good) : adam(p.f.b, s, g, p.rate, {&decay, 1}, {}, good);
        p.carry(s.parameters, next.parameters), p.carry(s.first, next.first), p.carry(s.second, next.second), p.carry(s.applied, next.applied);
      } else {
        SgdState s{p.parameters, kind == 2 ? std::vector<NodeId>{} : p.alike()};
        SgdState next = sgd(p.f.b, s, g, p.rate, {&decay, 1}, {.momentum = kind == 2 ? 0 : 0.9, .nesterov = kind == 4}, good);
        p.carry(s.parameters, next.parameters), p.carry(s.momentum, next.momentum);
      }
      // Unclipped, an update is fused into the gradient's kernel if that pays, and the rest is one launch. Clipped, all updates are one launch after the norm:
      // sums over matrices, sums over vectors, and the final sum with the values derived from it.
      p.expect_update_launches(clip ? 4 : kind == 0 ? 1 : 0, clip ? parameters : 0, "optimizer " + std::to_string(kind) + (clip ? ", clipped" : ""));
    }
}

TEST(KernelLaws, GlobalNormIsOneLaunchAndOneNumber) {
  std::vector<Parameter> parameters = gpt_parameters(small_gpt());
  Formula f;
  std::vector<NodeId> gradients;
  for (const Parameter& p : parameters) gradients.push_back(f.input(p.shape));
  expect_at_most(f, {global_norm(f.b, gradients)}, 2);
}

// Fused kernels must never depend on something that depends on them.
TEST(KernelLaws, NoGroupDependsOnItself) {
  Formula f;
  NodeId x = f.input({64}), y = f.input({64});
  NodeId a = f.b.unary(Op::tanh, x), m = f.b.unary(Op::tanh, y), end = f.b.add(a, m);
  for (int i = 0; i < 6; ++i) end = f.b.sort(f.b.unary(Op::tanh, end), 0).first;
  expect_exactly(f, {f.b.add(f.b.sort(a, 0).first, m), end}, 14);
  for (uint32_t seed = 0; seed < uint32_t(test::rounds(1500)); ++seed) {
    auto random = [state = seed]() mutable { return (state = state * 1664525 + 1013904223) >> 8; };
    Formula any;
    std::vector<NodeId> values = {any.input({8, 8}), any.input({8, 8})};
    const auto pick = [&] { return values[random() % 3 ? values.size() - 1 - random() % std::min<size_t>(values.size(), 8) : random() % values.size()]; };
    for (uint32_t nodes = 6 + random() % 50; nodes > 0; --nodes) {
      const NodeId v = pick();
      switch (random() % 6) {
        case 0: values.push_back(any.b.sort(v, 1).first); break;
        case 1: values.push_back(any.b.matmul(v, pick())); break;
        case 2: values.push_back(any.b.unary(Op::tanh, v)); break;
        default: values.push_back(any.b.add(v, pick()));
      }
    }
    EXPECT_NO_THROW(any.kernels({values.back(), pick(), pick()})) << seed;
  }
}

TEST(KernelLaws, RejectedFusionsHaveReasons) {
  Formula f;
  NodeId a = f.input({33, 65}), b = f.input({65, 31});
  int64_t last = -1;
  Executable e(f.graph, f.inputs, {f.b.sum(f.b.matmul(a, b), {&last, 1})}, default_backend());
  ASSERT_EQ(e.report().kernels.size(), 2u);
  ASSERT_FALSE(e.report().refusals.empty());
  EXPECT_NE(e.dump().find(e.report().refusals[0]), std::string::npos);
}

}  // namespace
}  // namespace ridge::engine
