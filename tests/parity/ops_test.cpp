// Single operations and their gradients against PyTorch.
#include <gtest/gtest.h>

#include "autograd/gradients.h"
#include "parity/parity.h"

namespace ridge::parity {
namespace {

class Ops : public testing::TestWithParam<Path> {
 protected:
  // Compares the result and its gradients with fixture arrays: `d` weights the result, the names are those of the gradients.
  void check(Problem& p, NodeId y, NodeId d, const std::vector<NodeId>& wrt, const Fixture& f, const std::vector<std::string>& names) {
    std::vector<NodeId> outputs = {y};
    for (NodeId g : vector_jacobian(p.graph, {&y, 1}, {&d, 1}, wrt)) outputs.push_back(g);
    std::vector<Array> got = compute(GetParam(), p, outputs);
    ASSERT_EQ(got.size(), names.size());
    for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], f(names[i]), tolerance(GetParam()), names[i]);
  }
};

TEST_P(Ops, LayerNormAndRmsNorm) {
  Fixture f("norms");
  for (std::string tag : {"5x7x33.", "3x1.", "4x131.", "6x3."}) {
    {
      Problem p;
      NodeId x = p.input(f(tag + "x")), w = p.input(f(tag + "w")), b = p.input(f(tag + "b")), d = p.input(f(tag + "d"));
      check(p, p.b.layer_norm(x, w, b), d, {x, w, b}, f, {tag + "layer", tag + "layer_dx", tag + "layer_dw", tag + "layer_db"});
    }
    if (tag == "3x1.") continue;  // x / |x|: its derivative depends on eps after full cancellation, which f32 cannot represent
    Problem p;
    NodeId x = p.input(f(tag + "x")), w = p.input(f(tag + "w")), d = p.input(f(tag + "d"));
    check(p, p.b.rms_norm(x, w), d, {x, w}, f, {tag + "rms", tag + "rms_dx", tag + "rms_dw"});
  }
}

TEST_P(Ops, Attention) {
  Fixture f("attention");
  struct Case {
    std::string tag;
    bool causal;
    std::optional<DType> mask;
  };
  for (const Case& c : {Case{"plain.", false, {}},
                        {"causal.", true, {}},
                        {"causal_end.", true, {}},
                        {"longer_keys.", false, {}},
                        {"shared_heads.", true, {}},
                        {"boolean.", false, DType::boolean},
                        {"additive.", false, DType::f32},
                        {"causal_boolean.", true, DType::boolean}}) {
    Problem p;
    NodeId q = p.input(f(c.tag + "q")), k = p.input(f(c.tag + "k")), v = p.input(f(c.tag + "v")), d = p.input(f(c.tag + "d"));
    AttentionOptions o;
    o.causal = c.causal;
    std::vector<NodeId> wrt = {q, k, v};
    std::vector<std::string> names = {c.tag + "y", c.tag + "dq", c.tag + "dk", c.tag + "dv"};
    if (c.mask) o.mask = p.input(f(c.tag + "mask", c.mask));
    if (c.mask == DType::f32) wrt.push_back(o.mask), names.push_back(c.tag + "dmask");  // a learnt bias, shared by the whole batch
    check(p, p.b.attention(q, k, v, o), d, wrt, f, names);
  }
}

TEST_P(Ops, CrossEntropy) {
  Fixture f("cross_entropy");
  struct Case {
    std::string tag;
    std::optional<int64_t> ignore;
  };
  for (const Case& c : {Case{"plain.", {}}, {"ignore.", 3}, {"ignore_negative.", -100}, {"steep.", {}}}) {
    Problem p;
    NodeId x = p.input(f(c.tag + "x")), target = p.input(f(c.tag + "target"));
    auto [sum, count] = p.b.cross_entropy(x, target, c.ignore);
    NodeId loss = p.b.div(sum, count);
    check(p, loss, p.b.like(loss, 1), {x}, f, {c.tag + "loss", c.tag + "dx"});
  }
}

TEST_P(Ops, Activations) {
  Fixture f("activations");
  for (Op op : {Op::gelu_erf, Op::gelu_tanh, Op::silu, Op::softplus, Op::sigmoid, Op::tanh}) {
    Problem p;
    NodeId x = p.input(f("x")), y = p.b.unary(op, x);
    check(p, y, p.b.like(y, 1), {x}, f, {std::string(name(op)), std::string(name(op)) + "_grad"});
  }
}

TEST_P(Ops, ConvOneDimension) {
  Fixture f("conv1d");
  Problem p;
  NodeId x = p.input(f("x")), w = p.input(f("w")), d = p.input(f("d"));
  ConvOptions o;
  o.stride = {2}, o.padding_low = o.padding_high = {3}, o.dilation = {3}, o.groups = 2;
  check(p, p.b.conv(x, w, o), d, {x, w}, f, {"y", "dx", "dw"});
}

INSTANTIATE_TEST_SUITE_P(Paths, Ops, testing::ValuesIn(host_paths()), [](const auto& info) { return name(info.param); });
INSTANTIATE_TEST_SUITE_P(Gpu, Ops, testing::ValuesIn(gpu_paths()), [](const auto& info) { return name(info.param); });

}  // namespace
}  // namespace ridge::parity
