// Kernels that share a launch with later ones of the same arithmetic: how many launches are left, and that every result is what it is alone.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "backend/cuda/backend.h"
#include "backend/kernel_log.h"
#include "graph/builder.h"
#include "runtime/executable.h"
#include "support/cuda_device.h"
#include "support/plan_backend.h"
#include "support/samples.h"

namespace ridge::cuda {
namespace {

// Gradients of small layers: of the weights, sums of products over many rows, and of the biases, sums of rows.
struct SmallGradients {
  SmallGradients() {
    Builder b(graph);
    const int64_t rows_axis = 0;
    for (const auto& [outputs_of, inputs_of] : {std::pair<int64_t, int64_t>{32, 32}, {32, 32}, {32, 20}, {32, 1}, {1, 32}}) {
      const NodeId given = graph.input({DType::f32, {kRows, outputs_of}}, ""), x = graph.input({DType::f32, {kRows, inputs_of}}, "");
      inputs.insert(inputs.end(), {given, x});
      const NodeId gradient = b.cumsum(given, 1);
      outputs.push_back(b.matmul(b.transpose(gradient), x)), outputs.push_back(b.sum(gradient, {&rows_axis, 1}));
    }
  }
  static constexpr int64_t kRows = 512;  // few enough for the cache of the simulated GPU
  Graph graph;
  std::vector<NodeId> inputs, outputs;
};

int64_t launches_on(const Chip& chip) {
  const SmallGradients g;
  test::PlanBackend backend(chip);
  Executable(g.graph, g.inputs, g.outputs, CompileOptions(backend));
  return backend.launches().back();
}

TEST(LaunchLists, SmallGradientsShareLaunches) {
  Chip chip, without_cache;
  without_cache.l2_bytes = 0;
  // Alone, each gradient takes two launches, for parts and their sums. Together, all products take two, and the sums over four equal matrices two.
  EXPECT_EQ(launches_on(without_cache) - launches_on(chip), 4 * 2 + 3 * 2);
  Chip small = chip;  // whose cache does not hold the rows of all layers until the last gradient
  small.l2_bytes = 512 << 10;
  EXPECT_GT(launches_on(small), launches_on(chip));
  EXPECT_LT(launches_on(small), launches_on(without_cache));
}

class LaunchListsOnGpu : public test::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    if (!test::tests_real_gpu()) simulator_.emplace();
    cache_.emplace("RIDGE_CACHE", folder_.path());
    CudaOptions options;
    if (!test::tests_real_gpu()) options.cubins.folder.clear();
    backend_ = std::make_unique<CudaBackend>(options);
  }

  // The outputs of a program with these inputs; state as in PipelineOptions.
  std::vector<std::vector<float>> run(const Graph& graph, const std::vector<NodeId>& inputs, const std::vector<NodeId>& outputs,
                                      const std::vector<std::vector<float>>& values, std::vector<std::pair<int, int>> state = {}) {
    CompileOptions options(*backend_);
    options.state = state;
    Executable executable(graph, inputs, outputs, options);
    std::vector<std::byte*> memory;
    std::vector<int64_t> bytes;
    auto allocate = [&](const Type& t) { return bytes.push_back(t.bytes()), memory.emplace_back(backend_->allocate(t.bytes())); };
    std::vector<const void*> in;
    std::vector<void*> out;
    for (size_t i = 0; i < inputs.size(); ++i) {
      in.push_back(allocate(graph.type(inputs[i])));
      backend_->upload(memory.back(), values[i].data(), bytes.back());
    }
    for (NodeId o : outputs) out.push_back(allocate(graph.type(o)));
    for (auto [from, to] : state) out[size_t(to)] = const_cast<void*>(in[size_t(from)]);
    executable.run(in, out);
    launches_ = executable.launches();
    std::vector<std::vector<float>> results;
    for (size_t o = 0; o < outputs.size(); ++o) {
      results.emplace_back(size_t(graph.shape(outputs[o]).numel()));
      backend_->download(results.back().data(), out[o], graph.type(outputs[o]).bytes());
    }
    for (size_t i = 0; i < memory.size(); ++i) backend_->release(memory[i], bytes[i]);
    return results;
  }

  static std::vector<std::vector<float>> drawn(const Graph& graph, const std::vector<NodeId>& inputs) {
    test::Random random(3);
    std::vector<std::vector<float>> values;
    for (NodeId i : inputs) {
      values.emplace_back(size_t(graph.shape(i).numel()));
      for (float& v : values.back()) v = float(random.uniform(-0.5, 0.5));
    }
    return values;
  }

  int64_t launches_ = 0;  // of the last run
  test::TempFolder folder_;
  std::optional<test::Simulator> simulator_;
  std::optional<test::Variable> cache_;
  std::unique_ptr<CudaBackend> backend_;
};

TEST_F(LaunchListsOnGpu, EveryGradientHasTheBitsThatItHasAlone) {
  const SmallGradients g;
  const auto values = drawn(g.graph, g.inputs);
  const auto together = run(g.graph, g.inputs, g.outputs, values);
  for (size_t o = 0; o < g.outputs.size(); ++o) EXPECT_EQ(run(g.graph, g.inputs, {g.outputs[o]}, values)[0], together[o]) << o;
}

// The seconds that a log receives, by program and kernel.
class KernelTimes final : public KernelLog {
 public:
  KernelTimes() { kernel_log = this; }
  ~KernelTimes() override { kernel_log = nullptr; }
  void add(const LoggedRun& run) override {
    for (size_t k = 0; k < run.kernels.size(); ++k) of_kind[run.program->kernels[k].group.kind].push_back(run.kernels[k].end - run.kernels[k].begin);
  }
  std::map<Group::Kind, std::vector<double>> of_kind;
};

// Else a profile would show the first ones at more than any roof, and the last one far below it.
TEST_F(LaunchListsOnGpu, KernelsOfALaunchShareItsTime) {
  Graph graph;
  Builder b(graph);
  std::vector<NodeId> inputs, outputs;
  for (int i = 0; i < 3; ++i) {
    inputs.push_back(graph.input({DType::f32, {512, 32}}, "")), inputs.push_back(graph.input({DType::f32, {512, 32}}, ""));
    outputs.push_back(b.matmul(b.transpose(inputs[size_t(2 * i)]), inputs.back()));
  }
  const auto values = drawn(graph, inputs);
  run(graph, inputs, outputs, values);
  KernelTimes times;
  run(graph, inputs, outputs, values);
  const std::vector<double>& products = times.of_kind[Group::Kind::matmul];
  ASSERT_EQ(products.size(), 3u);
  EXPECT_GT(products[0], 0);
  for (double seconds : products) EXPECT_NEAR(seconds, products[0], 1e-3 * products[0]);
}

// The first sum may not wait for the second one: what it reads is overwritten in between.
TEST_F(LaunchListsOnGpu, ASumIsNotMovedPastANewState) {
  constexpr int64_t kRows = 512;
  Graph graph;
  Builder b(graph);
  const NodeId state = graph.input({DType::f32, {kRows, 32}}, ""), factor = graph.input({DType::f32, {kRows, 32}}, "");
  const NodeId next = b.mul(state, factor);
  const int64_t rows_axis = 0;
  const NodeId before = b.sum(state, {&rows_axis, 1}), after = b.sum(b.cumsum(next, 1), {&rows_axis, 1});
  const std::vector<NodeId> inputs = {state, factor};
  const auto values = drawn(graph, inputs);
  const auto in_place = run(graph, inputs, {next, before, after}, values, {{0, 0}});
  const auto apart = run(graph, inputs, {next, before, after}, values);
  EXPECT_EQ(in_place, apart);
  double first = 0;
  for (int64_t r = 0; r < kRows; ++r) first += double(values[0][size_t(32 * r)]);
  EXPECT_NEAR(in_place[1][0], first, 1e-3);
}

// Nor if its result is read in between.
TEST_F(LaunchListsOnGpu, ASumIsNotMovedPastItsReader) {
  constexpr int64_t kRows = 512, kColumns = 32;
  Graph graph;
  Builder b(graph);
  const NodeId x = graph.input({DType::f32, {kRows, kColumns}}, "");
  const int64_t rows_axis = 0;
  const NodeId first = b.sum(b.cumsum(x, 1), {&rows_axis, 1}), second = b.sum(b.cumsum(b.add(x, b.cumsum(first, 0)), 1), {&rows_axis, 1});
  const auto values = drawn(graph, {x});
  const auto results = run(graph, {x}, {first, second}, values);
  std::vector<double> sums(kColumns, 0), again(kColumns, 0);
  for (int64_t r = 0; r < kRows; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < kColumns; ++c) sums[size_t(c)] += sum += double(values[0][size_t(kColumns * r + c)]);
  }
  double sum = 0, total = 0;
  for (size_t c = 0; c < size_t(kColumns); ++c) {
    again[c] = sums[c] + double(kRows) * (total += sum += sums[c]);
    EXPECT_NEAR(results[0][c], sums[c], 1e-3) << c;
    EXPECT_NEAR(results[1][c], again[c], 1e-3 * (1 + std::abs(again[c]))) << c;
  }
}

// A norm runs inside of the product that reads it, unless what the norm reads is overwritten by the product or in front of it, or somebody else reads the norm.
TEST_F(LaunchListsOnGpu, ANormRunsInsideOfAProductOnlyIfNothingItReadsChanges) {
  constexpr int64_t kWidth = 64;
  for (const bool in_front : {false, true}) {
    SCOPED_TRACE(in_front);
    Graph graph;
    Builder b(graph);
    const Type row{DType::f32, {1, kWidth}};
    const NodeId state = graph.input(row, ""), factor = graph.input(row, ""), scale = graph.input({DType::f32, {kWidth}}, "");
    const NodeId weight = graph.input({DType::f32, {kWidth, kWidth}}, "");
    const NodeId norm = b.rms_norm(state, scale, 1e-5), next = b.mul(state, factor),
                 out = b.add(b.linear(norm, weight, kNone), in_front ? b.cumsum(next, 1) : next);
    const std::vector<NodeId> inputs = {state, factor, scale, weight};
    const auto values = drawn(graph, inputs);
    const auto apart = run(graph, inputs, {next, out}, values);
    const int64_t together = launches_;
    EXPECT_EQ(run(graph, inputs, {next, out}, values, {{0, 0}}), apart);
    EXPECT_EQ(launches_, together + 1);
    EXPECT_EQ(run(graph, inputs, {next, out, norm}, values)[1], apart[1]);
    EXPECT_EQ(launches_, together + 1);
    double squares = 0, sum = 0;
    for (float x : values[0]) squares += double(x) * double(x);
    for (size_t k = 0; k < size_t(kWidth); ++k) sum += double(values[0][k]) * double(values[2][k]) * double(values[3][k]);
    EXPECT_NEAR(apart[1][0], sum / std::sqrt(squares / kWidth + 1e-5) + double(apart[0][0]), 1e-4);
  }
}

}  // namespace
}  // namespace ridge::cuda
