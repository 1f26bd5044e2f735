// The op table, random programs and special values on a GPU. The simulated one runs a small sample of each.
#include "autograd/gradients.h"
#include "ops/macro_fuzz.h"
#include "ops/op_cases.h"
#include "ops/random_programs.h"
#include "ops/special_values.h"
#include "support/gpu_runner.h"

namespace ridge::test {
namespace {

// For the simulated GPU: one op of every kind of kernel.
bool is_sample(Op op) {
  switch (op) {
    case Op::add:
    case Op::gelu_tanh:
    case Op::cast:
    case Op::reduce_sum:
    case Op::arg_max:
    case Op::matmul:
    case Op::take:
    case Op::concat:
    case Op::sort:
    case Op::attention:
    case Op::scan: return true;
    default: return false;
  }
}

std::vector<int> chosen(const std::vector<int>& ops) {
  std::vector<int> out;
  for (int op : ops)
    if (tests_real_gpu() || is_set("RIDGE_FULL") || is_sample(Op(op))) out.push_back(op);
  return out;
}
int count(int real, int simulated) { return tests_real_gpu() ? real : simulated; }

class GpuOpCases : public OnGpu<::testing::TestWithParam<int>> {};

TEST_P(GpuOpCases, MatchTheReference) { check_op(Op(GetParam()), tests_real_gpu() && full_product(), count(1 << 30, is_set("RIDGE_FULL") ? 40 : 2)); }

INSTANTIATE_TEST_SUITE_P(Gpu, GpuOpCases, ::testing::ValuesIn(chosen(ops_with_samples())),
                         [](const ::testing::TestParamInfo<int>& info) { return std::string(name(Op(info.param))); });

class GpuSpecialValues : public OnGpu<::testing::TestWithParam<int>> {};

TEST_P(GpuSpecialValues, FollowTheReference) { check_special(Op(GetParam())); }

INSTANTIATE_TEST_SUITE_P(Gpu, GpuSpecialValues, ::testing::ValuesIn(chosen(elementwise_ops())),
                         [](const ::testing::TestParamInfo<int>& info) { return std::string(name(Op(info.param))); });

// The result of the op's gradient rule for a cotangent, on the device and from the reference.
void check_gradients(Op op, int most) {
  uint64_t seed = uint64_t(op) * 1000;
  row(op).samples([&](const Sample& sample) {
    Random random(++seed);
    SampleGraph s = sample_graph(op, sample, random);
    for (auto& [id, value] : s.values)
      for (double& x : value.f) x = reference::round_to(s.graph.dtype(id), x);
    std::vector<NodeId> wrt, outputs, cotangents, inputs = s.inputs;
    for (size_t i = 0; i < s.inputs.size(); ++i)
      if (is_float(s.graph.dtype(s.inputs[i])) && sample.in[i].differentiable) wrt.push_back(s.inputs[i]);
    for (NodeId o : s.outputs)
      if (is_float(s.graph.dtype(o))) outputs.push_back(o);
    if (wrt.empty() || outputs.empty() || --most < 0) return;
    for (NodeId o : outputs) {
      cotangents.push_back(s.graph.input(s.graph.type(o), "cotangent"));
      s.values[cotangents.back()] = draw(s.graph.type(o), random, -1, 1);
      for (double& x : s.values[cotangents.back()].f) x = reference::round_to(s.graph.dtype(o), x);
    }
    inputs.insert(inputs.end(), cotangents.begin(), cotangents.end());
    const std::vector<NodeId> grads = vector_jacobian(s.graph, outputs, cotangents, wrt);
    const std::vector<reference::Array> want = reference::evaluate(s.graph, grads, s.values, reference::Rounding::stored);
    const std::vector<Bytes> got = run_compiled(s.graph, inputs, grads, s.values, "", 1);
    for (size_t i = 0; i < grads.size(); ++i) {
      const double narrow = spacing(want[i].type.dtype), part = std::max(3e-5, narrow > 1e-4 ? 4 * narrow : 0);
      EXPECT_TRUE(close(reference::from_bytes(want[i].type, got[i].data()), want[i], {part, part * (largest(want[i]) + 1)}))
          << describe(op, sample) << ", gradient " << i;
    }
  });
}

std::vector<int> differentiable(std::vector<int> ops) {
  std::erase_if(ops, [](int op) { return row(Op(op)).traits & OpRow::no_gradient; });
  return ops;
}

class GpuGradients : public OnGpu<::testing::TestWithParam<int>> {};

TEST_P(GpuGradients, MatchTheReference) { check_gradients(Op(GetParam()), count(12, 1)); }

INSTANTIATE_TEST_SUITE_P(Gpu, GpuGradients, ::testing::ValuesIn(differentiable(chosen(ops_with_samples()))),
                         [](const ::testing::TestParamInfo<int>& info) { return std::string(name(Op(info.param))); });

class GpuReductions : public OnGpu<::testing::Test> {};

TEST_F(GpuReductions, FollowTheReferenceForSpecialValues) {
  if (tests_real_gpu()) check_special_reductions();
}
TEST_F(GpuReductions, SumOverNothing) { check_sums_over_nothing(); }
TEST_F(GpuReductions, StayFinite) { check_special_chains(); }
TEST_F(GpuReductions, SumExponentials) { check_summed_exponentials(); }

// In parts, so that several processes can share them.
class GpuPrograms : public OnGpu<::testing::TestWithParam<int>> {};

TEST_P(GpuPrograms, MatchTheReference) {
  const uint64_t part = uint64_t(GetParam());
  for (uint64_t seed = part * 30; seed < part * 30 + uint64_t(count(30, part == 0 ? 3 : 0)); ++seed) {
    RandomProgram p(seed);
    const std::string wrong = trouble(seed, p);
    if (!wrong.empty()) ADD_FAILURE() << wrong << "\n" << to_string(p.graph(), p.outputs());
    if (HasFailure()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuPrograms, ::testing::Range(0, tests_real_gpu() ? 10 : 1));

class GpuMacros : public OnGpu<::testing::TestWithParam<int>> {};

TEST_P(GpuMacros, Attention) { fuzz_attention(GetParam() * 6, count(6, 1)); }
TEST_P(GpuMacros, Convolution) { fuzz_convolution(GetParam() * 4, count(4, 1)); }
TEST_P(GpuMacros, Products) { fuzz_products(GetParam() * 10, count(10, 2)); }

INSTANTIATE_TEST_SUITE_P(Gpu, GpuMacros, ::testing::Range(0, tests_real_gpu() ? 10 : 1));

}  // namespace
}  // namespace ridge::test
