// Loops over time that run as one kernel: values and gradients against the reference, and what is refused.
#include <gtest/gtest.h>

#include "backend/gpu/compiled.h"
#include "circuits/fixture.h"
#include "compile/autocast.h"
#include "cuda_loops/loop_cases.h"
#include "ridge/ridge.h"
#include "step/compiled_step.h"
#include "support/gpu_runner.h"
#include "support/plan_backend.h"
#include "support/variable.h"

namespace ridge::test {
namespace {

// How the loops of a program run on an H200: one line each.
std::vector<std::string> loop_notes(const Loop& loop, Precision products = Precision::fp32) {
  PlanBackend backend(cuda::chip_for(9, 0));
  backend.use_f32_products(products);
  CompileOptions options(backend);
  const std::string dump = Executable(loop.graph, loop.inputs, loop.results, options).dump();
  std::vector<std::string> notes;
  for (size_t at = 0; (at = dump.find(": loop of ", at)) != std::string::npos; ++at) notes.push_back(dump.substr(at + 2, dump.find('\n', at) - at - 2));
  return notes;
}

void expect_resident(const Loop& loop, size_t loops, const std::string& name) {
  const std::vector<std::string> notes = loop_notes(loop);
  EXPECT_EQ(notes.size(), loops) << name;
  for (const std::string& note : notes) EXPECT_NE(note.find("resident: "), std::string::npos) << name << ": " << note;
}

class GpuLoops : public OnGpu<::testing::Test> {
 protected:
  static void check(const Loop& loop, int64_t steps, const std::string& name, double unit = 0x1p-23) {
    const std::vector<reference::Array> want = reference::evaluate(loop.graph, loop.results, loop.values);
    const std::vector<Bytes> got = run_compiled(loop.graph, loop.inputs, loop.results, loop.values, "", 1);
    for (size_t k = 0; k < want.size(); ++k) {
      double largest = 1;
      for (double v : want[k].f) largest = std::max(largest, std::fabs(v));
      const double tolerance = unit * 32 * double(2 + steps);
      EXPECT_TRUE(close(reference::from_bytes(want[k].type, got[k].data()), want[k], {tolerance, tolerance * largest})) << name << ", result " << k;
    }
  }
};

TEST_F(GpuLoops, WithoutProductsAreOneKernelEach) {
  for (const LoopCase& c : product_free_cases()) {
    const Loop both = make_case_loop(c, true);
    expect_resident(make_case_loop(c, false), 1, c.name);
    expect_resident(both, 2, c.name);
    check(both, c.steps, c.name);
  }
}

TEST_F(GpuLoops, WithProductsAreOneKernelEach) {
  for (const LoopCase& c : product_cases()) {
    const Loop both = make_case_loop(c, true);
    expect_resident(make_case_loop(c, false), 1, c.name);
    expect_resident(both, 2, c.name);
    check(both, c.steps, c.name);
  }
}

// Factors with fewer bits are multiplied on matrix units, whose fragments no step fills: f32 numbers where the program allows it, and 16-bit ones. The first
// candidate is chosen here, which has all weights in registers except those of the last case.
TEST_F(GpuLoops, WithProductsOnMatrixUnits) {
  struct Format {
    Precision products;
    DType cast;
    double unit;
  };
  std::vector<LoopCase> cases = product_cases(5, 13);
  cases.resize(3);
  cases.push_back(product_cases(9, 96)[0]);
  cases.back().steps = 2;
  for (const Format& f : {Format{Precision::tf32, DType::f32, 0x1p-13},
                          {Precision::bf16, DType::f32, 0x1p-10},
                          {Precision::fp32, DType::bf16, 0x1p-9},
                          {Precision::fp32, DType::f16, 0x1p-12}}) {
    for (const LoopCase& c : cases) {
      const bool large = &c == &cases.back();
      if (large && f.cast != DType::f32) continue;
      Loop loop = make_case_loop(c, !large);
      if (f.cast != DType::f32) loop.results = autocast(loop.graph, loop.results, f.cast);
      const std::vector<std::string> notes = loop_notes(loop, f.products);
      ASSERT_EQ(notes.size(), large ? 1u : 2u) << c.name;
      for (const std::string& note : notes) EXPECT_NE(note.find("on matrix units"), std::string::npos) << c.name << ": " << note;
      Gpu::the().backend().use_f32_products(f.products);
      check(loop, c.steps, c.name + fmt::format(", {} by {}", name(f.cast), name(f.products)), f.unit);
      Gpu::the().backend().use_f32_products(Precision::fp32);
    }
  }
}

// Two layers, then four over their result that are blended: 393,216 weights, and whole rows of 256 are exchanged.
LoopCase blended_heads(int64_t rows, int64_t steps) {
  using Nodes = LoopCase::Nodes;
  const Type row = floats({rows, 256}), square = floats({256, 256});
  return {"heads",
          {row},
          {row},
          {square, square, square, square, square, square},
          [](Builder& b, const Nodes& c, const Nodes& x, const Nodes& w) {
            auto layer = [&](NodeId from, int i) { return b.mul(b.matmul(from, w[size_t(i)]), 0.1); };
            const NodeId z = b.unary(Op::tanh, layer(b.unary(Op::tanh, b.add(layer(c[0], 0), x[0])), 1));
            const NodeId gate = b.unary(Op::sigmoid, b.sub(layer(z, 4), layer(z, 5)));
            const NodeId low = b.unary(Op::tanh, layer(z, 2)), high = b.unary(Op::tanh, layer(z, 3));
            const NodeId h = b.add(b.mul(low, b.binary(Op::sub, 1.0, gate)), b.mul(high, gate));
            return LoopCase::Next{{h}, {h}};
          },
          steps,
          true,
          true};
}

// Weights that one multiprocessor does not hold: several blocks have some columns each, and store what they compute in all of them.
TEST_F(GpuLoops, WithWeightsInSeveralBlocks) {
  using Nodes = LoopCase::Nodes;
  const Type row = floats({9, 400});
  LoopCase c{"wide layer",
             {row},
             {row},
             {floats({400, 400})},
             [](Builder& b, const Nodes& c, const Nodes& x, const Nodes& w) {
               const NodeId h = b.unary(Op::tanh, b.add(b.mul(b.matmul(c[0], w[0]), 0.05), x[0]));
               return LoopCase::Next{{h}, {h}};
             },
             tests_real_gpu() ? 40 : 2,  // so many that it is faster than step by step
             true,
             true};
  for (const LoopCase& body : {c, blended_heads(9, c.steps)}) {
    const Loop loop = make_case_loop(body, true);
    const std::vector<std::string> notes = loop_notes(loop, Precision::tf32);
    ASSERT_EQ(notes.size(), 2u);
    for (const std::string& note : notes) EXPECT_NE(note.find("on matrix units of "), std::string::npos) << note;
    Gpu::the().backend().use_f32_products(Precision::tf32);
    check(loop, body.steps, body.name, 0x1p-13);
    Gpu::the().backend().use_f32_products(Precision::fp32);
  }
}

// More rows than blocks of 8 that run at the same time: a block takes two or more such tiles, and with an even number of them and threads to spare, half of its
// threads multiplies half of the depth for all. Forward and reverse, on a simulated device with so few multiprocessors that few rows are enough.
TEST_F(GpuLoops, WithSeveralTilesOfRows) {
  if (tests_real_gpu()) GTEST_SKIP() << "choices of small devices";
  using Nodes = LoopCase::Nodes;
  auto layer = [](int64_t rows, int64_t width, bool reverse) {
    return LoopCase{"wide layer",
                    {floats({rows, width})},
                    {floats({rows, width})},
                    {floats({width, width})},
                    [](Builder& b, const Nodes& c, const Nodes& x, const Nodes& w) {
                      const NodeId h = b.unary(Op::tanh, b.add(b.mul(b.matmul(c[0], w[0]), 4.0 / double(b.shape(c[0])[1])), x[0]));
                      return LoopCase::Next{{h}, {h}};
                    },
                    2,
                    reverse};
  };
  struct Case {
    LoopCase loop;
    int processors;
    Precision products;
    const char *forward, *backward;
  };
  const Case cases[] = {
      {layer(17, 400, false), 4, Precision::tf32, "4 blocks of 224 threads, 32 rows each, 1 stages", "4 blocks of 224 threads, 32 rows each, 2 stages"},
      {layer(20, 21, true), 2, Precision::tf32, "2 blocks of 192 threads, 16 rows each", "2 blocks of 192 threads, 16 rows each"},
      {product_cases(40, 13)[0], 2, Precision::bf16, "2 blocks of 128 threads, 32 rows each, 1 stages", "2 blocks of 128 threads, 32 rows each, 2 stages"},
      {blended_heads(15, 2), 8, Precision::tf32, "8 blocks of 256 threads, 16 rows each, 3 stages, 6 products on matrix units of 8 blocks that send",
       "16 rows each, 4 stages, 6 products on matrix units of 8 blocks that send"}};
  for (const Case& c : cases) {
    const Loop loop = make_case_loop(c.loop, true);
    Gpu gpu({.capability = "9.0", .processors = c.processors});
    gpu.backend().use_f32_products(c.products);
    CompileOptions options(gpu.backend());
    const std::string dump = Executable(loop.graph, loop.inputs, loop.results, options).dump();
    for (const char* note : {c.forward, c.backward}) EXPECT_NE(dump.find(note), std::string::npos) << c.loop.name << ": " << note << " in " << dump;
    other_device() = [&](const Graph& graph, const std::vector<NodeId>& inputs, const std::vector<NodeId>& outputs, const Values& values,
                         const std::string& passes) { return gpu.run(graph, inputs, outputs, values, passes); };
    check(loop, c.loop.steps, c.loop.name, c.products == Precision::bf16 ? 0x1p-10 : 0x1p-13);
  }
}

// The loop is one launch, however many steps it has.
TEST_F(GpuLoops, AreOneLaunch) {
  if (tests_real_gpu()) GTEST_SKIP() << "counts calls of the simulated driver";
  const DynamicLibrary& library = Gpu::the().backend().device().driver().library();
  int (*calls)(const char*) = nullptr;
  ASSERT_TRUE(library.bind(calls, "simulatorCalls"));
  for (LoopCase c : {product_free_cases()[1], product_cases()[0]}) {
    c.steps = 20;
    const Loop loop = make_case_loop(c, false);
    CompileOptions options(Gpu::the().backend());
    Executable exe(loop.graph, loop.inputs, {loop.results[0]}, options);
    exe.prepare();
    std::vector<std::byte*> memory;
    std::vector<const void*> in;
    for (const Type& t : exe.input_types()) in.push_back(memory.emplace_back(Gpu::the().backend().allocate(t.bytes())));
    std::byte* out = memory.emplace_back(Gpu::the().backend().allocate(exe.output_types()[0].bytes()));
    void* outputs[] = {out};
    const int before = calls("cuLaunchKernel");
    exe.run(in, outputs);
    Gpu::the().backend().wait();
    EXPECT_EQ(calls("cuLaunchKernel") - before, int(exe.report().kernels.size())) << c.name;
    for (size_t i = 0; i < memory.size(); ++i)
      Gpu::the().backend().release(memory[i], i < in.size() ? exe.input_types()[i].bytes() : exe.output_types()[0].bytes());
  }
}

// Fifty steps: errors of single steps do not grow.
TEST_F(GpuLoops, OfManySteps) {
  LoopCase c = product_cases(3, 9)[1];
  c.steps = 50;
  check(make_case_loop(c, true), c.steps, c.name);
}

// The cells of circuits and all their gradients through fifty steps, against double precision (tests/fixtures/circuits/make.py).
TEST_F(GpuLoops, OfCellsHaveTheRightGradients) {
  const CircuitFixture fixture;
  for (const std::string name : {"cfc", "ltc_lists"}) {
    SCOPED_TRACE(name);
    Circuit circuit = fixture.circuit(name);
    const Tensor x = fixture(name + ".x"), timespans = fixture(name + ".timespans");
    const std::vector<NamedTensor> weights = parameters(circuit);
    const StepModel model = step_model(Step(weights, sgd({}),
                                            [&](const std::vector<Tensor>& b) {
                                              const Tensor y = circuit(b[0], {.timespans = b[1]}).output;
                                              return ridge::Loss{sum(y * cos(reshape(iota({y.size()}, 0, DType::f32), y.shape()))), 1.0};
                                            }),
                                       {{x.shape()}, {timespans.shape()}});
    Loop loop;
    Builder b(loop.graph);
    auto input = [&](const Tensor& t, const std::string& what) {
      const NodeId id = loop.inputs.emplace_back(loop.graph.input({DType::f32, t.shape()}, what));
      loop.values[id] = reference::from_bytes({DType::f32, t.shape()}, static_cast<const std::byte*>(t.data()));
      return id;
    };
    std::vector<NodeId> all, batch = {input(x, "x"), input(timespans, "timespans")};
    for (const NamedTensor& w : weights) {
      all.push_back(input(*w.tensor, w.name));
      if (w.rule == ParameterRule::constant)
        all.back() = b.stop_gradient(all.back());
      else
        loop.wrt.push_back(all.back());
    }
    const NodeId zero = b.literal(DType::i64, 0);
    const NodeId sum = model.loss(b, all, batch, {zero, zero, zero, 1}).sum;
    loop.results = gradients(loop.graph, sum, loop.wrt);
    expect_resident(loop, 2, name);
    const std::vector<Bytes> got = run_compiled(loop.graph, loop.inputs, loop.results, loop.values, "", 1);
    size_t at = 0;
    for (const NamedTensor& w : weights) {
      if (w.rule == ParameterRule::constant) continue;
      const Tensor gradient = Tensor::from_bytes(w.tensor->shape(), DType::f32, got[at++].data());
      EXPECT_LT(distance(gradient, fixture(name + ".gradient." + w.name)), 2e-4) << w.name;
    }
  }
}

// A kernel's bits do not depend on the order in which threads and blocks run.
TEST_F(GpuLoops, GiveTheSameBitsInAnyOrder) {
  std::vector<LoopCase> cases = product_cases();
  cases.push_back(product_free_cases()[2]);
  for (const LoopCase& c : cases) {
    const Loop loop = make_case_loop(c, true);
    std::vector<Bytes> first;
    for (const char* order : {"forward", "backward", "random1"}) {
      const Variable ordered("SIMULATED_GPU_ORDER", order);  // a real GPU has an order of its own, which differs from run to run
      const std::vector<Bytes> got = run_compiled(loop.graph, loop.inputs, loop.results, loop.values, "", 1);
      if (first.empty()) first = got;
      EXPECT_TRUE(got == first) << c.name << ", " << order;
    }
  }
}

// One row, more rows than a block takes, no step, one step; with gradients.
TEST_F(GpuLoops, OfAnySize) {
  for (const auto& [batch, steps] : {std::pair<int64_t, int64_t>{1, 0}, {1, 1}, {1057, 2}}) {
    for (LoopCase c : {product_free_cases(batch)[1], product_cases(std::min<int64_t>(batch, 33))[1]}) {
      c.steps = steps, c.entered = true;
      check(make_case_loop(c, true), steps, c.name);
    }
  }
}

// Numbers drawn inside a loop depend on the time index and the element, so they are those of the reference, bit for bit.
TEST_F(GpuLoops, DrawTheSameNumbers) {
  const Type count{DType::i64, {}};
  LoopCase c{"draws",
             {floats({5, 4})},
             {floats({5, 4})},
             {count, count},
             [](Builder& b, const auto& carry, const auto& x, const auto& w) {
               const NodeId words = b.graph().add(Op::random_bits, {w[0], w[1], w[1]}, {{11, 5, 4}, {}, nullptr});
               const NodeId h = b.add(b.mul(carry[0], 0.5), b.dropout(x[0], 0.4, {w[0], w[1], w[1], 3}));
               return LoopCase::Next{{h}, {words, h}};
             },
             6,
             true};
  const Loop loop = make_case_loop(c, false);
  expect_resident(loop, 1, c.name);
  check(loop, c.steps, c.name);
}

// Stands in for a device: measurements and spills are given.
class GivenMeasurements final : public gpu::Loader {
 public:
  gpu::KernelFunction loaded(const gpu::KernelText&) override { return this; }
  std::string choice(const std::string& key) override { return kept.contains(key) ? kept.at(key) : std::string(); }
  void keep_choice(const std::string& key, const std::string& value) override { kept[key] = value; }
  void record_choice(const std::string& key, const std::string& value) override { recorded[key] = value; }
  int spilled_bytes(gpu::KernelFunction) override { return spilled; }
  double recorded_ms(int64_t, const std::function<void(gpu::LaunchSink&, gpu::Address)>&) override { return ms.at(measured++); }

  std::map<std::string, std::string> kept, recorded;
  std::vector<double> ms = std::vector<double>(20, 1.0);
  size_t measured = 0;
  int spilled = 0;
};

TEST(CudaLoops, AreChosenByMeasurementForTheirLength) {
  GivenMeasurements device;
  auto note = [&](int64_t steps) {
    PlanBackend backend(cuda::chip_for(9, 0));
    backend.loader = &device, device.measured = 0;
    LoopCase c = product_free_cases()[1];
    c.steps = steps;
    const Loop loop = make_case_loop(c, false);
    CompileOptions options(backend);
    const std::string dump = Executable(loop.graph, loop.inputs, loop.results, options).dump();
    const size_t at = dump.find(": loop of ");
    return dump.substr(at + 2, dump.find('\n', at) - at - 2);
  };
  device.ms = {0.0153, 0.0121};
  EXPECT_EQ(note(2), "loop of 2 steps, unrolled: measured: resident 0.0153 ms, unrolled 0.0121 ms");
  device.ms = {0.5, 7};
  EXPECT_NE(note(1000).find("loop of 1000 steps, resident: "), std::string::npos) << "a choice of two steps is not one of a thousand";
  EXPECT_EQ(device.kept.size(), 2u);
  device.ms.clear();  // lengths that are nearly the same share a measurement
  EXPECT_NE(note(2).find("measured: resident 0.0153 ms"), std::string::npos);
  EXPECT_NE(note(900).find("loop of 900 steps, resident: "), std::string::npos);
  EXPECT_EQ(device.measured, 0u);
  EXPECT_TRUE(device.recorded.empty());
}

TEST(CudaLoops, ThatSpillAreRefused) {
  GivenMeasurements device;
  device.spilled = 48;
  PlanBackend backend(cuda::chip_for(9, 0));
  backend.loader = &device;
  const Loop loop = make_case_loop(product_free_cases()[1], false);
  CompileOptions options(backend);
  const std::string dump = Executable(loop.graph, loop.inputs, loop.results, options).dump();
  EXPECT_NE(dump.find("unrolled: the kernel for all steps needs 48 bytes of memory per thread that its registers do not hold"), std::string::npos) << dump;
  EXPECT_EQ(device.measured, 0u) << "there is nothing to compare";
  EXPECT_TRUE(device.kept.empty() && device.recorded.size() == 1) << "another compiler may do better";
}

// Whatever one kernel cannot do runs step by step, and the dump says why.
TEST(CudaLoops, RefusalsHaveReasons) {
  using Nodes = LoopCase::Nodes;
  const Type row = floats({6, 8}), square = floats({8, 8});
  const std::pair<LoopCase, const char*> cases[] = {
      {{"batch norm",
        {row},
        {row},
        {},
        [](Builder& b, const Nodes& c, const Nodes& x, const Nodes&) {
          const int64_t rows[] = {0};
          const NodeId h = b.sub(b.add(c[0], x[0]), b.mean(c[0], rows, true));
          return LoopCase::Next{{h}, {}};
        }},
       "does not begin with 6 rows"},
      {{"two changing operands",
        {row},
        {square},
        {},
        [](Builder& b, const Nodes& c, const Nodes& x, const Nodes&) {
          return LoopCase::Next{{b.unary(Op::tanh, b.matmul(c[0], x[0]))}, {}};
        }},
       "a product of two values that differ from step to step"},
      {{"sort",
        {row},
        {row},
        {},
        [](Builder& b, const Nodes& c, const Nodes& x, const Nodes&) {
          return LoopCase::Next{{b.sort(b.add(c[0], x[0]), 1).first}, {}};
        }},
       "sort has no form inside a resident loop"},
      {{"wide",
        {floats({2, 2000})},
        {},
        {floats({2000, 2000})},
        [](Builder& b, const Nodes& c, const Nodes&, const Nodes& w) {
          return LoopCase::Next{{b.unary(Op::tanh, b.matmul(c[0], w[0]))}, {}};
        }},
       "a product over 2000 elements"},
      {{"large weights",
        {floats({2, 400})},
        {},
        {floats({400, 400})},
        [](Builder& b, const Nodes& c, const Nodes&, const Nodes& w) {
          return LoopCase::Next{{b.unary(Op::tanh, b.matmul(c[0], w[0]))}, {}};
        }},
       "of a block's shared memory"},
      {{"no rows",
        {floats({})},
        {floats({})},
        {},
        [](Builder& b, const Nodes& c, const Nodes& x, const Nodes&) {
          return LoopCase::Next{{b.add(b.mul(c[0], c[0]), x[0])}, {}};
        }},
       "a carry has no rows"},
  };
  for (const auto& [c, why] : cases) {
    const std::vector<std::string> notes = loop_notes(make_case_loop(c, false));
    ASSERT_EQ(notes.size(), 1u) << c.name;
    EXPECT_NE(notes[0].find("unrolled: "), std::string::npos) << c.name << ": " << notes[0];
    EXPECT_NE(notes[0].find(why), std::string::npos) << c.name << ": " << notes[0];
  }
}

}  // namespace
}  // namespace ridge::test
