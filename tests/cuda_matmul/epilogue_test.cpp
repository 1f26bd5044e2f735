// Matmul epilogues: which are recognised, and that every implementation matches the reference.
#include "product.h"

#include "autograd/gradients.h"
#include "backend/cuda/make.h"
#include "backend/gpu/matmul_epilogue.h"
#include "backend/reference/evaluate.h"
#include "compile/autocast.h"
#include "compile/pipeline.h"
#include "compile/program.h"
#include "graph/builder.h"
#include "nn/gpt.h"
#include "support/samples.h"

namespace ridge::cuda {
namespace {

// A graph with values for its inputs, as a program.
struct Model {
  Graph graph;
  std::vector<NodeId> inputs, outputs;
  test::Values values;
  test::Random random{7};

  NodeId input(DType dtype, const Shape& shape, double size = 1) {
    const NodeId id = graph.input({dtype, shape}, "x" + std::to_string(inputs.size()));
    inputs.push_back(id);
    const reference::Array drawn = test::draw({dtype, shape}, random, -size, size);
    std::vector<std::byte> bytes(size_t(drawn.type.bytes()) + 8);
    reference::to_bytes(drawn, bytes.data());
    values[id] = reference::from_bytes(drawn.type, bytes.data());
    return id;
  }
};

class CudaEpilogue : public test::CudaTest {
 protected:
  // Runs the program's only product with its epilogue, and compares the results with the reference. Returns how it was done.
  std::string run(Model& m, bool library, const std::vector<std::pair<int, int>>& state = {}) {
    PipelineOptions options;
    options.state = state;
    const Program program = compile_graph(m.graph, m.inputs, m.outputs, options);
    const ProgramKernel* product = nullptr;
    for (const ProgramKernel& k : program.kernels)
      if (k.group.kind == Group::Kind::matmul) product = &k;
    if (!product) return ADD_FAILURE() << to_string(program), "";
    Products products(library);
    Memory memory;
    std::map<NodeId, Place> where;
    std::vector<Place> places;
    for (const ProgramOperand& o : product->operands) {
      if (!where.count(o.owner)) {
        const Type& type = program.graph.type(o.owner);
        std::vector<std::byte> bytes(size_t(type.bytes()), std::byte{0xFF});
        if (!o.written) {
          const NodeId roots[] = {o.owner};
          reference::to_bytes(reference::evaluate(program.graph, roots, values(m, program), reference::Rounding::stored)[0], bytes.data());
        }
        // A value updated in place starts as the old value.
        for (auto [in, out] : state)
          if (program.outputs[size_t(out)] == o.owner) where[o.owner] = where.at(program.inputs[size_t(in)]);
        if (!where.count(o.owner)) where[o.owner] = memory.add(bytes);
      }
      places.push_back({where[o.owner].base, o.offset});
    }
    const std::unique_ptr<Kernel> kernel = make_matmul_kernel(program, *product, products.chip());
    cuda::matmul_test::run(*kernel, products, memory, places);
    for (const ProgramOperand& o : product->operands) {
      if (!o.written) continue;
      const NodeId roots[] = {o.owner};
      const reference::Array want = reference::evaluate(program.graph, roots, values(m, program))[0];
      const reference::Array got = reference::from_bytes(want.type, memory.read(where[o.owner]).data());
      const double unit = want.type.dtype == DType::f32 && !narrow_ ? 1e-5 : 0.02;
      int bad = 0;
      for (int64_t i = 0; i < want.size(); ++i)
        if (!(std::abs(got.at(i) - want.at(i)) <= unit * (1 + std::abs(want.at(i)))) && ++bad <= 3)
          ADD_FAILURE() << kernel->note() << ": element " << i << " of %" << o.owner << " is " << got.at(i) << ", expected " << want.at(i);
    }
    return kernel->note();
  }

  // Runs our own kernel, which must do it as `how` says, and the library; returns how the library did it.
  std::string check(Model m, const std::string& how, const std::vector<std::pair<int, int>>& state = {}) {
    Model again = m;
    EXPECT_EQ(run(m, false, state), how);
    const std::string note = run(again, true, state);
    EXPECT_NE(note.find("cublasLt"), std::string::npos) << note;
    return note;
  }

  bool narrow_ = true;  // values are rounded to 16 bits

 private:
  static test::Values values(const Model& m, const Program& program) {
    test::Values v;
    for (size_t i = 0; i < m.inputs.size(); ++i) v[program.inputs[i]] = m.values.at(m.inputs[i]);
    return v;
  }
};

constexpr int64_t kRows = 40, kColumns = 72, kDepth = 48;

struct Product : Model {
  NodeId x, w, sums;
  explicit Product(DType type = DType::bf16, int64_t rows = kRows) {
    x = input(type, {rows, kDepth}), w = input(type, {kDepth, kColumns});
    sums = graph.add(Op::matmul, std::vector{x, w}, {{int64_t(DType::f32)}, {}, nullptr});
  }
  NodeId narrowed(NodeId id) { return Builder(graph).cast(id, DType::bf16); }
  NodeId widened(NodeId id) { return Builder(graph).cast(id, DType::f32); }
};

TEST_F(CudaEpilogue, Bias) {
  Product m;
  m.outputs = {m.narrowed(Builder(m.graph).add(m.sums, m.input(DType::f32, {kColumns})))};
  check(m, "own bias");
}

TEST_F(CudaEpilogue, BiasOfFloats) {
  Product m(DType::f32);
  narrow_ = false;
  Builder b(m.graph);
  m.outputs = {b.unary(Op::relu, b.add(m.sums, m.input(DType::f32, {kColumns})))};
  check(m, "own bias+relu");
}

TEST_F(CudaEpilogue, ScaleAndAddend) {
  Product m(DType::f32);
  narrow_ = false;
  Builder b(m.graph);
  m.outputs = {b.add(m.input(DType::f32, {kRows, kColumns}), b.mul(m.sums, 0.125))};
  check(m, "own scale+add");
}

TEST_F(CudaEpilogue, GeluKeepsItsInput) {
  Product m;
  Builder b(m.graph);
  const NodeId h = m.narrowed(b.add(m.sums, m.input(DType::f32, {kColumns})));
  m.outputs = {h, m.narrowed(b.unary(Op::gelu_tanh, m.widened(h)))};
  check(m, "own bias+gelu+aux");
}

TEST_F(CudaEpilogue, GeluGradient) {
  Product m;
  Builder b(m.graph);
  const NodeId h = m.input(DType::bf16, {kRows, kColumns}, 3);
  m.outputs = {m.narrowed(b.mul(m.widened(m.narrowed(m.sums)), b.unary(Op::gelu_tanh_grad, m.widened(h))))};
  check(m, "own gelu_grad");
}

// The library's gelu is slow in f32, so a separate kernel follows the product.
TEST_F(CudaEpilogue, GeluOfFloats) {
  Product m(DType::f32);
  narrow_ = false;
  Builder b(m.graph);
  const NodeId h = b.add(m.sums, m.input(DType::f32, {kColumns}));
  m.outputs = {h, b.unary(Op::gelu_tanh, h)};
  EXPECT_NE(check(m, "own bias+gelu+aux").find(" bias, then the rest"), std::string::npos);
  Product g(DType::f32);
  Builder c(g.graph);
  g.outputs = {c.mul(g.sums, c.unary(Op::gelu_tanh_grad, g.input(DType::f32, {kRows, kColumns}, 3)))};
  EXPECT_NE(check(g, "own gelu_grad").find(", then the rest"), std::string::npos);
}

// If the library supports an epilogue only with an older chip's algorithms, a separate kernel does it after the product.
TEST_F(CudaEpilogue, PrefersNewerAlgorithms) {
  if (test::tests_real_gpu()) GTEST_SKIP() << "needs the simulated GPU, whose library can be told what it has";
  const test::Variable older("SIMULATED_LT_FUSED_STAGES", "15");
  Product m;
  Builder b(m.graph);
  const NodeId h = m.input(DType::bf16, {kRows, kColumns}, 3);
  m.outputs = {m.narrowed(b.mul(m.widened(m.narrowed(m.sums)), b.unary(Op::gelu_tanh_grad, m.widened(h))))};
  EXPECT_NE(check(m, "own gelu_grad").find(", then the rest"), std::string::npos);
}

TEST_F(CudaEpilogue, ResidualWithBias) {
  Product m;
  Builder b(m.graph);
  const NodeId y = m.widened(m.narrowed(b.add(m.sums, m.input(DType::f32, {kColumns}))));
  m.outputs = {b.add(m.input(DType::f32, {kRows, kColumns}), y)};
  check(m, "own bias+add");
}

// The branch is also kept for backward: the product stores it, and a kernel after it adds it.
TEST_F(CudaEpilogue, ResidualThatAlsoStoresItsBranch) {
  Product m;
  Builder b(m.graph);
  const NodeId branch = m.narrowed(b.add(m.sums, m.input(DType::f32, {kColumns})));
  m.outputs = {branch, b.add(m.input(DType::f32, {kRows, kColumns}), m.widened(branch))};
  check(m, "own bias, then the rest");
}

TEST_F(CudaEpilogue, GradientsAccumulateInPlace) {
  Product m;
  Builder b(m.graph);
  narrow_ = false;
  m.outputs = {b.add(m.input(DType::f32, {kRows, kColumns}), m.sums)};
  check(m, "own add", {{2, 0}});
}

// A single row looks like a bias, but here it is the accumulator.
TEST_F(CudaEpilogue, OneRowAccumulatesInPlace) {
  Product m(DType::f32, 1);
  Builder b(m.graph);
  narrow_ = false;
  m.outputs = {b.add(m.input(DType::f32, {1, kColumns}), m.sums)};
  check(m, "own add", {{2, 0}});
}

TEST_F(CudaEpilogue, ReadsOldStateBeforeOverwritingIt) {
  for (bool library : {false, true}) {
    Product m(DType::f32);
    Builder b(m.graph);
    narrow_ = false;
    const NodeId before = m.input(DType::f32, {kRows, kColumns}), after = b.add(before, m.sums);
    m.outputs = {after, b.sub(after, before)};
    run(m, library, {{2, 0}});
  }
}

TEST_F(CudaEpilogue, OtherEpiloguesReadSumsFromMemory) {
  Product m;
  Builder b(m.graph);
  const NodeId scale = m.input(DType::f32, {kRows, 1});
  m.outputs = {m.narrowed(b.mul(b.unary(Op::tanh, m.sums), b.expand(scale, {kRows, kColumns})))};
  check(m, "own, sums to memory, then the epilogue");
}

// One epilogue of each kind as the matcher sees it, with its terms in any order.
TEST(MatmulEpilogues, AreRecognizedByStructure) {
  auto matched = [](Model& m) {
    const Program program = compile_graph(m.graph, m.inputs, m.outputs);
    for (const ProgramKernel& k : program.kernels)
      if (k.group.kind == Group::Kind::matmul && !k.tiles.empty()) {
        const auto e = match_epilogue(k.tiles[0]);
        return e ? e->name() : std::string("none");
      }
    return std::string("no epilogue");
  };
  for (bool first : {false, true}) {
    Product m;
    Builder b(m.graph);
    const NodeId bias = m.input(DType::f32, {kColumns}), rest = m.input(DType::f32, {kRows, kColumns});
    m.outputs = {first ? b.add(bias, b.add(rest, m.sums)) : b.add(b.add(m.sums, bias), rest)};
    EXPECT_EQ(matched(m), "bias+add");
  }
  {
    Product m;  // a bias per row does not match
    m.outputs = {Builder(m.graph).add(m.sums, m.input(DType::f32, {kRows, 1}))};
    EXPECT_EQ(matched(m), "none");
  }
  {
    Product m;  // a scale after the bias does not match
    Builder b(m.graph);
    m.outputs = {b.mul(b.add(m.sums, m.input(DType::f32, {kColumns})), 2.0)};
    EXPECT_EQ(matched(m), "none");
  }
  {
    Product m;  // two addends are one too many
    Builder b(m.graph);
    m.outputs = {b.add(b.add(m.sums, m.input(DType::f32, {kRows, kColumns})), m.input(DType::f32, {kRows, kColumns}))};
    EXPECT_EQ(matched(m), "none");
  }
  {
    Product m;  // the other form of gelu
    m.outputs = {Builder(m.graph).unary(Op::gelu_erf, m.sums)};
    EXPECT_EQ(matched(m), "none");
  }
}

// All products of a bf16 GPT step with accumulating gradients: which epilogues the library does completely, partly, or not at all.
TEST(MatmulEpilogues, OfAGptStep) {
  GptConfig c;
  c.vocab = 512, c.block = 64, c.layers = 2, c.heads = 4, c.width = 128, c.bias = true;
  Graph g;
  std::vector<NodeId> params, inputs, outputs;
  for (const Parameter& p : gpt_parameters(c)) params.push_back(g.input({DType::f32, p.shape}, p.name));
  inputs = params;
  for (const char* what : {"tokens", "targets"}) inputs.push_back(g.input({DType::i64, {8, 64}}, what));
  Builder b(g);
  const Builder::SumCount loss = gpt_losses(b, c, params, inputs[params.size()], inputs[params.size() + 1]);
  const NodeId losses[] = {loss.sum, loss.count};
  const std::vector<NodeId> narrow = autocast(g, losses, DType::bf16);
  PipelineOptions options;
  for (NodeId d : gradients(g, narrow[0], params)) {
    d = keep_wide(g, d);
    const NodeId so_far = g.input(g.type(d), "so far");
    options.state.push_back({int(inputs.size()), int(outputs.size())});
    inputs.push_back(so_far);
    outputs.push_back(b.add(so_far, d));
  }
  outputs.push_back(b.cast(narrow[0], DType::f32));
  options.forward = narrow;
  const Program program = compile_graph(g, inputs, outputs, options);
  std::map<std::string, int> count;
  for (const ProgramKernel& k : program.kernels) {
    if (k.group.kind != Group::Kind::matmul) continue;
    if (k.tiles.empty())
      ++count["plain"];
    else if (const auto whole = match_epilogue(k.tiles[0]))
      ++count[whole->name()];
    else if (const auto split = split_epilogue(k.tiles[0]))
      ++count[split->first.name() + ", rest"];
    else
      ++count["sums"];
  }
  std::string text;
  for (const auto& [name, n] : count) text += name + " " + std::to_string(n) + "; ";
  EXPECT_EQ(text, "add 8; bias 3; bias+add 2; bias+gelu+aux 2; bias, rest 1; gelu_grad 2; plain 8; sums 1; ");
}

}  // namespace
}  // namespace ridge::cuda
