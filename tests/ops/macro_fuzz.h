// Attention, convolution and matrix products with random shapes and settings, forward and backward, against the reference.
#pragma once
#include <cstdlib>

#include "autograd/gradients.h"
#include "base/error.h"
#include "graph/builder.h"
#include "ops/tolerance.h"
#include "support/rounds.h"

namespace ridge::test {

inline int cases(int usual) {
  const char* full = std::getenv("RIDGE_FULL");
  return full && std::string(full) == "1" ? usual * 20 : rounds(usual);
}

struct Scratch {
  explicit Scratch(uint64_t seed) : random(seed) {}
  Random random;
  Graph graph;
  Builder b{graph};
  Values values;
  std::vector<NodeId> inputs;

  int64_t from(std::initializer_list<int64_t> sizes) { return sizes.begin()[random.below(int64_t(sizes.size()))]; }
  bool coin() { return random.below(2) == 0; }
  NodeId bind(Type type, double low = -1, double high = 1) {
    NodeId id = graph.input(type, "x" + std::to_string(inputs.size()));
    reference::Array v = draw(type, random, low, high);
    for (double& x : v.f) x = reference::round_to(type.dtype, x);
    values[id] = std::move(v);
    inputs.push_back(id);
    return id;
  }

  // y and its gradients, from one seeded cotangent.
  void check(NodeId y, const std::vector<NodeId>& wrt, double tolerance, const std::string& label) {
    NodeId cotangent = bind(graph.type(y));
    std::vector<NodeId> out = vector_jacobian(graph, {&y, 1}, {&cotangent, 1}, wrt);
    out.push_back(y);
    std::vector<reference::Array> want = reference::evaluate(graph, out, values, reference::Rounding::stored);
    std::vector<Bytes> got = run_compiled(graph, inputs, out, values, "", 1);
    EXPECT_TRUE(run_compiled(graph, inputs, out, values, "", 3) == got) << label << ": 3 threads";
    for (size_t i = 0; i < out.size(); ++i) {
      // Operands are of magnitude 1: where terms cancel, as with a single key, their rounding errors remain.
      double narrow = spacing(want[i].type.dtype);
      Tolerance t{0, std::max(tolerance, narrow > 1e-4 ? 2 * narrow : 0) * (largest(want[i]) + 1)};
      EXPECT_TRUE(close(reference::from_bytes(want[i].type, got[i].data()), want[i], t)) << label << ", result " << i;
    }
  }
};

inline void fuzz_attention(int first, int count) {
  for (int n = first; n < first + count; ++n) {
    Scratch s(uint64_t(n) + 1);
    int64_t batch = s.from({1, 2, 3}), kv = s.from({1, 2}), heads = kv * s.from({1, 2, 3}), dim = s.from({1, 3, 8, 16, 20, 32, 33});
    int64_t queries = s.from({1, 2, 5, 16, 17, 31, 33, 47}), keys = s.from({1, 3, 8, 15, 16, 33, 64, 65});
    DType type = s.random.below(4) == 0 ? DType::bf16 : DType::f32;
    AttentionOptions o;
    o.causal = s.coin();
    o.scale = s.coin() ? 0 : 0.7;
    bool strided = s.coin(), boolean = false;
    auto operand = [&](int64_t h, int64_t t) {  // heads split from the features, as models do
      if (!strided) return s.bind({type, {batch, h, t, dim}});
      return s.b.permute(s.b.reshape(s.bind({type, {batch, t, h * dim}}), {batch, t, h, dim}), {0, 2, 1, 3});
    };
    NodeId q = operand(heads, queries), k = operand(kv, keys), v = operand(kv, keys);
    std::vector<NodeId> wrt(s.inputs.begin(), s.inputs.begin() + 3);
    if (s.random.below(3) == 0) {
      boolean = s.coin();
      Shape mask = {s.coin() ? batch : 1, s.coin() ? heads : 1, s.coin() ? queries : 1, keys};
      o.mask = boolean ? s.bind({DType::boolean, mask}, 0, 2) : s.bind({DType::f32, mask});
    }
    if (s.random.below(3) == 0) o.length = s.bind({DType::i64, {}}, 1, double(keys) + 0.9);
    if (s.random.below(3) == 0) {
      o.dropout = 0.25;
      NodeId seed = s.bind({DType::i64, {}}, 0, 1000), step = s.bind({DType::i64, {}}, 0, 10), base = s.bind({DType::i64, {}}, 0, 100);
      o.random = RandomOperands{seed, step, base, 3};
    }
    std::string label = fmt::format("case {}: q [{}, {}, {}, {}], kv heads {}, keys {}, {}{}{}{}{}{}", n, batch, heads, queries, dim, kv, keys, name(type),
                                    o.causal ? ", causal" : "", o.mask ? boolean ? ", boolean mask" : ", additive mask" : "", o.length ? ", length" : "",
                                    o.dropout > 0 ? ", dropout" : "", strided ? ", strided" : "");
    s.check(s.b.attention(q, k, v, o), wrt, 2e-5, label);
    if (::testing::Test::HasFailure()) return;
  }
}

inline void fuzz_convolution(int first, int count) {
  for (int n = first; n < first + count; ++n) {
    Scratch s(uint64_t(n) + 100);
    int spatial = 1 + int(s.random.below(2));
    int64_t groups = s.from({1, 1, 2, 3});
    Shape x = {s.from({1, 2, 3}), groups * s.from({1, 2, 5})}, w = {groups * s.from({1, 2, 4, 17}), x[1] / groups};
    ConvOptions o;
    o.groups = groups;
    for (int i = 0; i < spatial; ++i) {
      int64_t window = s.from({1, 2, 3, 4}), dilation = s.from({1, 1, 2}), low = s.random.below(3), high = s.random.below(3);
      x.push_back((window - 1) * dilation + 1 + s.random.below(9)), w.push_back(window);
      o.stride.push_back(s.from({1, 1, 2, 3})), o.padding_low.push_back(low), o.padding_high.push_back(high);
      o.dilation.push_back(dilation), o.input_dilation.push_back(s.from({1, 1, 1, 2}));
    }
    std::string label = fmt::format("case {}: conv of {} with {} in {} groups, stride {}, dilation {}, input dilation {}", n, to_string(x), to_string(w),
                                    groups, to_string(Shape(o.stride)), to_string(Shape(o.dilation)), to_string(Shape(o.input_dilation)));
    NodeId a = s.bind({DType::f32, x}), b = s.bind({DType::f32, w});
    s.check(s.b.conv(a, b, o), {a, b}, 2e-5, label);
    if (::testing::Test::HasFailure()) return;
  }
}

inline void fuzz_products(int first, int count) {
  for (int n = first; n < first + count; ++n) {
    Scratch s(uint64_t(n) + 200);
    auto size = [&] { return s.from({1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 47, 48, 49, 65, 100, 129}); };
    int64_t m = size(), k = size(), c = size(), batch = s.from({1, 1, 2, 3});
    DType type = s.random.below(4) == 0 ? (s.coin() ? DType::bf16 : DType::f16) : DType::f32;
    bool ta = s.coin(), tb = s.coin(), shared = s.coin(), epilogue = s.coin();
    NodeId a = s.bind({type, ta ? Shape{batch, k, m} : Shape{batch, m, k}}),
           b = shared ? s.bind({type, tb ? Shape{c, k} : Shape{k, c}}) : s.bind({type, tb ? Shape{batch, c, k} : Shape{batch, k, c}});
    std::vector<NodeId> wrt = {a, b};
    NodeId y = s.b.matmul(ta ? s.b.transpose(a) : a, tb ? s.b.transpose(b) : b);
    if (epilogue) {
      NodeId bias = s.bind({type, {c}}), residual = s.bind({type, {batch, m, c}});
      wrt.push_back(bias);
      y = s.b.add(s.b.unary(Op::gelu_tanh, s.b.add(y, bias)), residual);
    }
    std::string label = fmt::format("case {}: {} x {} x {}, batch {}, {}{}{}{}{}", n, m, c, k, batch, name(type), ta ? ", a transposed" : "",
                                    tb ? ", b transposed" : "", shared ? ", one b" : "", epilogue ? ", epilogue" : "");
    s.check(y, wrt, 2e-5, label);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace ridge::test
