// Loops that run in blocks of rows, and loops that put out what backward needs: the same values as step by step and computed again.
#include <gtest/gtest.h>

#include "scan/random_body.h"

namespace ridge::test {
namespace {

bool has(const std::vector<std::string>& notes, std::string_view text) {
  return std::any_of(notes.begin(), notes.end(), [&](const std::string& n) { return n.find(text) != std::string::npos; });
}

std::vector<std::string> notes_of(const Graph& graph, const std::vector<NodeId>& inputs, const std::vector<NodeId>& roots, const std::string& passes = "",
                                  Recompute level = Recompute::free) {
  CompileOptions options(cpu_of(1));
  options.passes = passes, options.recompute = level;
  return Executable(graph, inputs, roots, options).report().scans;
}

void expect_near(const std::vector<Bytes>& got, const std::vector<reference::Array>& want, double tolerance, const std::string& label) {
  for (size_t k = 0; k < want.size(); ++k) {
    double largest = 1;
    for (double v : want[k].f) largest = std::max(largest, std::fabs(v));
    EXPECT_TRUE(close(reference::from_bytes(want[k].type, got[k].data()), want[k], {tolerance, tolerance * largest})) << label << ", result " << k;
  }
}

class RowBlocks : public ::testing::TestWithParam<int> {};

TEST_P(RowBlocks, ComputeWhatStepsCompute) {
  int in_blocks = 0, loops = 0;
  for (int i = 0; i < 6; ++i) {
    const uint64_t seed = uint64_t(GetParam() * 6 + i) + 1;
    const int64_t steps = std::array<int64_t, 4>{3, 0, 1, 5}[seed % 4], batch = std::array<int64_t, 5>{17, 1, 64, 33, 5}[seed % 5];
    const std::string label = fmt::format("seed {}, {} steps, batch {}", seed, steps, batch);
    RandomBody r(seed, steps, batch, true);
    std::vector<NodeId> results = r.make(), roots = results;
    Builder b(r.graph);
    std::vector<NodeId> grads = gradients(r.graph, mixed_loss(b, results), r.wrt);
    roots.insert(roots.end(), grads.begin(), grads.end());
    const double tolerance = 0x1p-23 * 64 * double(1 + steps) * std::sqrt(double(batch));
    const std::vector<Bytes> got = run_compiled(r.graph, r.inputs, roots, r.values, "", 1);
    expect_near(got, reference::evaluate(r.graph, roots, r.values), tolerance, label);
    EXPECT_EQ(got, run_compiled(r.graph, r.inputs, roots, r.values, "", 3)) << label << ": bits depend on the threads";
    for (const char* passes : {"-row_blocks", "-scan_saved"}) {
      std::vector<reference::Array> other;
      const std::vector<Bytes> bytes = run_compiled(r.graph, r.inputs, roots, r.values, passes, 2);
      for (size_t k = 0; k < roots.size(); ++k) other.push_back(reference::from_bytes(r.graph.type(roots[k]), bytes[k].data()));
      expect_near(got, other, tolerance, label + " against " + passes);
    }
    for (const std::string& n : notes_of(r.graph, r.inputs, roots))
      loops += n.find("step by step") != std::string::npos, in_blocks += n.find("all steps at a time") != std::string::npos;
  }
  EXPECT_GE(in_blocks, 3 * loops) << "most of these loops can be split into rows";
}
INSTANTIATE_TEST_SUITE_P(Seeds, RowBlocks, ::testing::Range(0, 6));

TEST(RowBlocks, HaveRowsForFourThreads) {
  for (auto [batch, blocks] : {std::pair(64, "4 blocks of up to 16 rows"), {32, "4 blocks of up to 8 rows"}, {1, "1 block of up to 1 row"}}) {
    Loop loop = make_loop(cells()[1], {.steps = 4, .batch = batch, .inputs = 8, .width = 128});
    EXPECT_TRUE(has(notes_of(loop.graph, loop.inputs, loop.results), blocks)) << notes_of(loop.graph, loop.inputs, loop.results).back();
  }
}

TEST(RowBlocks, CutAnOddBatchEvenly) {
  for (const Cell& cell : {cells()[1], cells()[2]}) {
    Loop loop = make_loop(cell, {.steps = 3, .batch = 1057, .inputs = 5, .width = 8, .reverse = true, .reset = true});
    EXPECT_TRUE(has(notes_of(loop.graph, loop.inputs, loop.results), "67 blocks of up to 16 rows")) << cell.name;
    expect_near(run_compiled(loop.graph, loop.inputs, loop.results, loop.values, "", 2), reference::evaluate(loop.graph, loop.results, loop.values), 1e-5,
                cell.name);
  }
}

// Three sums over all sources one after another, whose values stay in the loop by columns, next to the elementwise kernels of backward.
TEST(RowBlocks, KeepWhatPanelsReadByColumns) {
  const Cell sums = {"sums over sources",
                     [](const LoopSize& s) {
                       return std::vector<Shape>{{s.width, s.width}, {s.width, s.width}, {s.width, s.width}};
                     },
                     1,
                     [](Builder& b, const std::vector<NodeId>& c, NodeId x, const std::vector<NodeId>& w) {
                       NodeId h = c[0];
                       const int64_t sources[] = {1};
                       for (int i = 0; i < 3; ++i) {
                         const NodeId wide = b.reshape(h, {b.shape(h)[0], b.shape(h)[1], 1});
                         const NodeId active = b.unary(Op::sigmoid, b.mul(w[0], b.sub(wide, w[1])));
                         h = b.div(b.add(b.add(h, b.sum(b.mul(active, w[2]), sources)), x), b.add(b.square(h), 2.0));
                       }
                       return Cell::Next{{h}, h};
                     }};
  for (int64_t batch : {16, 24, 20, 9}) {
    Loop loop = make_loop(sums, {.steps = 4, .batch = batch, .inputs = 13, .width = 13});
    Builder b(loop.graph);
    std::vector<NodeId> roots = loop.results, grads = gradients(loop.graph, mixed_loss(b, loop.results), loop.wrt);
    roots.insert(roots.end(), grads.begin(), grads.end());
    EXPECT_TRUE(has(notes_of(loop.graph, loop.inputs, roots), "all steps at a time"));
    const std::vector<Bytes> got = run_compiled(loop.graph, loop.inputs, roots, loop.values, "", 1);
    expect_near(got, reference::evaluate(loop.graph, roots, loop.values), 2e-5, fmt::format("batch {}", batch));
    EXPECT_EQ(got, run_compiled(loop.graph, loop.inputs, roots, loop.values, "", 3)) << "bits depend on the threads";
  }
}

// The gradient of every cell, with values of the loop kept or computed again.
TEST(SavedLoops, GiveTheSameGradients) {
  for (const Cell& cell : cells())
    for (bool reset : {false, true}) {
      Loop loop = make_loop(cell, {.steps = 6, .batch = 19, .reverse = reset, .reset = reset});
      Builder b(loop.graph);
      const std::vector<NodeId> grads = gradients(loop.graph, mixed_loss(b, loop.results), loop.wrt);
      const std::vector<Bytes> kept = run_compiled(loop.graph, loop.inputs, grads, loop.values, "", 2);
      const std::vector<Bytes> again = run_compiled(loop.graph, loop.inputs, grads, loop.values, "-scan_saved", 2);
      std::vector<reference::Array> want;
      for (size_t k = 0; k < grads.size(); ++k) want.push_back(reference::from_bytes(loop.graph.type(grads[k]), again[k].data()));
      expect_near(kept, want, 1e-5, cell.name);
    }
}

// An LSTM keeps its four gates, whatever else backward reads is cheap to compute from them; a CfC its layer, two candidates and the gate between them.
TEST(SavedLoops, KeepActivationsOnly) {
  const LoopSize size{.steps = 10, .batch = 16, .inputs = 5, .width = 32};
  for (size_t cell : {1, 2}) {
    Loop loop = make_loop(cells()[cell], size);
    Builder b(loop.graph);
    const std::vector<NodeId> grads = gradients(loop.graph, mixed_loss(b, loop.results), loop.wrt);
    const std::string bytes = cell == 1 ? "80 KiB" : "63.8 KiB";
    const std::vector<std::string> kept = notes_of(loop.graph, loop.inputs, grads), again = notes_of(loop.graph, loop.inputs, grads, "", Recompute::attention);
    EXPECT_TRUE(has(kept, "scan of 10 steps: 4 values for backward kept, " + bytes)) << kept[0];
    EXPECT_TRUE(has(again, "scan of 10 steps: 4 values for backward computed again instead of kept, " + bytes)) << again[0];
    if (cell != 1) continue;
    EXPECT_TRUE(has(kept, "1 product in the loop, 0 before it")) << "the gradient computes nothing again";
    EXPECT_FALSE(has(again, "1 product in the loop, 0 before it"));
  }
}

TEST(RowBlocks, SayWhyNot) {
  auto notes = [](auto&& next, const Shape& state) {
    auto body = std::make_shared<ScanBody>();
    Builder s(body->graph);
    body->carry_in = {body->graph.input({DType::f32, state}, "h")}, body->sequence_in = {body->graph.input({DType::f32, state}, "x")};
    body->carry_out = {next(s, body->carry_in[0], body->sequence_in[0])};
    Graph g;
    Shape all = state;
    all.insert(0, 5);
    const std::vector<NodeId> inputs = {g.input({DType::f32, state}, "h"), g.input({DType::f32, all}, "x")};
    return notes_of(g, inputs, scan(g, body, {&inputs[0], 1}, {&inputs[1], 1}, {}, 5).carry);
  };
  const int64_t first[] = {0};
  auto centred = [&](Builder& s, NodeId h, NodeId x) { return s.add(s.sub(h, s.mean(h, first, true)), x); };
  auto powers = [](Builder& s, NodeId h, NodeId x) { return s.add(s.matmul(h, x), h); };
  auto turned = [](Builder& s, NodeId h, NodeId x) { return s.add(s.transpose(h), x); };
  auto sorted = [](Builder& s, NodeId h, NodeId x) { return s.add(s.sort(h, 1).first, x); };
  auto plain = [](Builder& s, NodeId h, NodeId x) { return s.unary(Op::tanh, s.add(h, x)); };
  EXPECT_TRUE(has(notes(centred, {6, 6}), "all rows, step by step")) << notes(centred, {6, 6}).back();
  EXPECT_TRUE(has(notes(powers, {6, 6}), "multiplies by a value that changes with the step")) << notes(powers, {6, 6}).back();
  EXPECT_TRUE(has(notes(turned, {6, 6}), "mixes rows")) << notes(turned, {6, 6}).back();
  EXPECT_TRUE(has(notes(sorted, {6, 6}), "(sort) runs for all rows at once")) << notes(sorted, {6, 6}).back();
  EXPECT_TRUE(has(notes(plain, {}), "has no axis")) << notes(plain, {}).back();
  auto weighted = [](Builder& s, NodeId h, NodeId x) { return s.add(s.mul(s.unary(Op::exp, h), 0.5), x); };
  EXPECT_TRUE(has(notes(weighted, {1, 1 << 20}), "too few rows for blocks")) << notes(weighted, {1, 1 << 20}).back();
  EXPECT_TRUE(has(notes(plain, {1, 6}), "1 block of up to 1 row, all steps at a time")) << notes(plain, {1, 6}).back();
  EXPECT_TRUE(has(notes(plain, {6, 6}), "1 block of up to 6 rows, all steps at a time")) << notes(plain, {6, 6}).back();
}

}  // namespace
}  // namespace ridge::test
