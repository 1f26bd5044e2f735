// Every kernel of the op table that uses shared memory, once each: the input for a race checker, which is slow.
#include <unordered_set>

#include "autograd/gradients.h"
#include "backend/cuda/make.h"
#include "compile/pipeline.h"
#include "ops/op_cases.h"
#include "support/gpu_runner.h"

namespace ridge::test {
namespace {

// A program's texts that use shared memory.
std::vector<std::string> shared_texts(const Graph& graph, const std::vector<NodeId>& inputs, const std::vector<NodeId>& outputs) {
  const cuda::Chip& chip = Gpu::the().backend().chip();
  Target target;
  target.runs = [&](const Graph& g, NodeId node) { return cuda::has_kernel(g, node, chip); };
  target.convolutions = true;
  std::vector<std::string> found;
  const cuda::CompiledProgram program(compile_graph(graph, inputs, outputs, {}, target), cuda::CudaMaker(chip));
  for (const cuda::KernelText& text : program.texts())
    if (text.body.find("__shared__") != std::string::npos) found.push_back(text.entry + text.body);
  return found;
}

std::vector<int> selected_kernels() {
  if (tests_real_gpu()) return ops_with_samples();
  return {int(Op::reduce_sum), int(Op::sort)};
}

class GpuSharedMemory : public OnGpu<::testing::TestWithParam<int>> {};

TEST_P(GpuSharedMemory, IsReadOnlyAfterItIsWritten) {
  const Op op = Op(GetParam());
  std::unordered_set<std::string> seen;
  int most = tests_real_gpu() ? 1 << 30 : 2;
  for_each_case(op, false, [&](const Sample& sample, Layout layout, uint64_t seed, bool) {
    const OpCase c = make_case(op, sample, layout, seed);
    bool fresh = false;
    for (std::string& text : shared_texts(c.graph, c.inputs, c.outputs)) fresh |= seen.insert(std::move(text)).second;
    if (fresh && --most >= 0) check_case(op, sample, layout, seed, false, false);
  });
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuSharedMemory, ::testing::ValuesIn(selected_kernels()),
                         [](const ::testing::TestParamInfo<int>& info) { return std::string(name(Op(info.param))); });

// Kernels used only for larger arrays: values and gradients, against the reference.
class GpuLargeShared : public OnGpu<::testing::Test> {
 protected:
  template <class Make>
  static void check(const std::vector<Type>& types, const Make& make, bool gradients = true) {
    Graph graph;
    Builder b(graph);
    std::vector<NodeId> inputs, wrt;
    Values values;
    Random random(3);
    for (const Type& t : types) {
      const NodeId x = inputs.emplace_back(graph.input(t, "x" + std::to_string(inputs.size())));
      values[x] = is_float(t.dtype) ? draw(t, random, -1, 1) : draw(t, random, 0, 49);
      for (double& v : values[x].f) v = reference::round_to(t.dtype, v);
      if (is_float(t.dtype)) wrt.push_back(x);
    }
    std::vector<NodeId> outputs = {make(b, inputs)};
    if (gradients)
      for (NodeId d : ridge::gradients(graph, b.cast(b.sum(b.mul(outputs[0], outputs[0])), DType::f32), wrt)) outputs.push_back(d);
    EXPECT_FALSE(shared_texts(graph, inputs, outputs).empty());
    const std::vector<reference::Array> want = reference::evaluate(graph, outputs, values, reference::Rounding::stored);
    const std::vector<Bytes> got = run_compiled(graph, inputs, outputs, values, "", 1);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const double part = spacing(want[i].type.dtype) > 1e-4 ? 0.05 : 1e-4;
      EXPECT_TRUE(close(reference::from_bytes(want[i].type, got[i].data()), want[i], {part, part * (largest(want[i]) + 1)})) << "result " << i;
    }
  }
};

TEST_F(GpuLargeShared, Sort) {
  check({{DType::f32, {5000}}}, [](Builder& b, auto& x) { return b.sort(x[0], 0).first; });
}
TEST_F(GpuLargeShared, Cumsum) {
  check({{DType::f32, {2, 5000}}}, [](Builder& b, auto& x) { return b.cumsum(x[0], 1); });
}
TEST_F(GpuLargeShared, LongRows) {
  check({{DType::bf16, {3, 20000}}}, [](Builder& b, auto& x) { return b.softmax(x[0]); });
}
TEST_F(GpuLargeShared, Norms) {
  check({{DType::f32, {200, 768}}, {DType::f32, {768}}, {DType::f32, {768}}}, [](Builder& b, auto& x) { return b.layer_norm(x[0], x[1], x[2]); });
}
TEST_F(GpuLargeShared, Losses) {
  check({{DType::bf16, {40, 5000}}, {DType::i64, {40}}}, [](Builder& b, auto& x) { return b.cross_entropy(x[0], x[1]).sum; });
}
TEST_F(GpuLargeShared, Rows) {
  check({{DType::f32, {50, 64}}, {DType::i64, {3000}}}, [](Builder& b, auto& x) { return b.take(x[0], x[1], 0); });
}
TEST_F(GpuLargeShared, Attention) {
  for (int64_t dim : {64, 128}) {
    const Type t{DType::bf16, {1, 2, 136, dim}};
    check({t, t, t}, [](Builder& b, auto& x) { return b.attention(x[0], x[1], x[2], {.causal = true}); });
  }
}

}  // namespace
}  // namespace ridge::test
