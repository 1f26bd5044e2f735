// Every row and sample of the op table: the gradient rule against central differences, and second derivatives.
#include "autograd/gradient_check.h"

namespace ridge::test {
namespace {

class OpGradients : public ::testing::TestWithParam<int> {};

std::string op_name(const ::testing::TestParamInfo<int>& info) { return std::string(name(Op(info.param))); }

// All ops except sources: inputs, literals, projections, user-defined.
std::vector<int> ops_with_samples() {
  std::vector<int> ops;
  for (int i = 0; i < int(Op::count); ++i)
    if (row(Op(i)).samples) ops.push_back(i);
  return ops;
}

// Floating operands that the sample differentiates, and floating results.
std::vector<NodeId> differentiable_inputs(const SampleGraph& s, const Sample& sample) {
  std::vector<NodeId> wrt;
  for (size_t i = 0; i < s.inputs.size(); ++i)
    if (is_float(s.graph.dtype(s.inputs[i])) && sample.in[i].differentiable) wrt.push_back(s.inputs[i]);
  return wrt;
}

std::vector<NodeId> differentiable_outputs(const SampleGraph& s) {
  std::vector<NodeId> out;
  for (NodeId o : s.outputs)
    if (is_float(s.graph.dtype(o))) out.push_back(o);
  return out;
}

TEST_P(OpGradients, MatchCentralDifferences) {
  Op op = Op(GetParam());
  int seed = 0, checked = 0;
  row(op).samples([&](Sample sample) {
    Random random(uint64_t(GetParam()) * 1000 + uint64_t(++seed));
    SampleGraph s = sample_graph(op, sample, random);
    std::vector<NodeId> wrt = differentiable_inputs(s, sample), outputs = differentiable_outputs(s);
    if (wrt.empty() || outputs.empty()) return;
    if (row(op).traits & OpRow::no_gradient) {  // must pass nothing on
      std::vector<NodeId> ones;
      for (NodeId o : outputs) ones.push_back(s.graph.add(Op::stop_gradient, {o}));
      for (const reference::Array& g : reference::evaluate(s.graph, vector_jacobian(s.graph, outputs, ones, wrt), s.values))
        for (double v : g.f) EXPECT_EQ(v, 0) << describe(op, sample);
    } else {
      expect_gradients(s.graph, outputs, wrt, s.values, describe(op, sample), uint64_t(seed));
      ++checked;
    }
  });
  bool expected = !(row(op).traits & OpRow::no_gradient);
  EXPECT_EQ(checked > 0, expected) << "a differentiable op needs a sample with a floating operand and result";
}

TEST_P(OpGradients, AreDifferentiableAgain) {
  Op op = Op(GetParam());
  if (row(op).traits & OpRow::no_gradient) return;
  bool done = false;
  row(op).samples([&](Sample sample) {
    if (done) return;
    Random random(uint64_t(GetParam()) + 77);
    SampleGraph s = sample_graph(op, sample, random);
    std::vector<NodeId> wrt = differentiable_inputs(s, sample), outputs = differentiable_outputs(s);
    int64_t elements = 0;
    for (NodeId w : wrt) elements += s.graph.shape(w).numel();
    if (outputs.empty() || elements < 3 || elements > 400) return;  // a small sample, but not empty or a single element
    expect_second_gradients(s.graph, outputs, wrt, s.values, describe(op, sample));
    done = true;
  });
  EXPECT_TRUE(done) << "no sample is small enough";
}

INSTANTIATE_TEST_SUITE_P(AllOps, OpGradients, ::testing::ValuesIn(ops_with_samples()), op_name);

}  // namespace
}  // namespace ridge::test
