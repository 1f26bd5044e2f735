// The work counted for kernels, against figures computed by hand.
#include <gtest/gtest.h>

#include "autograd/gradients.h"
#include "graph/builder.h"
#include "graph/scan.h"
#include "runtime/executable.h"
#include "support/steps.h"

namespace ridge::engine {
namespace {

// The sum over a program's kernels.
KernelReport all_kernels(const Graph& g, std::vector<NodeId> inputs, std::vector<NodeId> outputs, CompileOptions options = default_backend()) {
  KernelReport sum;
  const Executable program(g, std::move(inputs), std::move(outputs), std::move(options));
  for (const KernelReport& k : program.report().kernels) {
    sum.name += k.name + " ";
    sum.flops += k.flops, sum.bytes += k.bytes;
    sum.algorithmic_flops += k.algorithmic_flops, sum.unavoidable_bytes += k.unavoidable_bytes;
  }
  return sum;
}

TEST(KernelWork, ViewsOfOneTensorAreOneOperand) {
  constexpr int64_t kBatch = 2, kTime = 16, kHeads = 3, kDim = 8, kWidth = kHeads * kDim;
  Graph g;
  Builder b(g);
  const NodeId qkv = g.input({DType::f32, {kBatch, kTime, 3 * kWidth}}, "qkv");
  auto part = [&](int64_t i) { return b.permute(b.reshape(b.slice(qkv, 2, i * kWidth, (i + 1) * kWidth), {kBatch, kTime, kHeads, kDim}), {0, 2, 1, 3}); };
  const NodeId y = b.permute(b.attention(part(0), part(1), part(2), {.causal = true}), {0, 2, 1, 3});  // in its stored layout
  const KernelReport k = all_kernels(g, {qkv}, {y});
  // Queries times keys and probabilities times values, halved by the mask.
  EXPECT_EQ(k.algorithmic_flops, 2 * 2.0 * kBatch * kHeads * kTime * kTime * kDim / 2) << k.name;
  // qkv once, the result, and one number per row for backward.
  EXPECT_EQ(k.unavoidable_bytes, 4.0 * kBatch * kTime * (3 * kWidth + kWidth + kHeads)) << k.name;
  EXPECT_EQ(k.bytes, k.unavoidable_bytes);
}

TEST(KernelWork, CountsOnlyTheReadPartOfATensor) {
  Graph g;
  Builder b(g);
  const NodeId x = g.input({DType::f32, {10, 30}}, "x");
  const KernelReport k = all_kernels(g, {x}, {b.neg(b.slice(x, 1, 10, 20))});
  EXPECT_EQ(k.unavoidable_bytes, 4.0 * (100 + 100));
}

TEST(KernelWork, SharedElementsCountOnce) {
  Graph g;
  Builder b(g);
  const NodeId x = g.input({DType::f32, {100}}, "x"), m = g.input({DType::f32, {6, 6}}, "m");
  const KernelReport shifted = all_kernels(g, {x}, {b.add(b.slice(x, 0, 0, 8), b.slice(x, 0, 1, 9))});
  EXPECT_EQ(shifted.unavoidable_bytes, 4.0 * (9 + 8)) << "elements 0 to 8";
  const KernelReport square = all_kernels(g, {m}, {b.matmul(m, b.transpose(m))});
  EXPECT_EQ(square.unavoidable_bytes, 4.0 * (36 + 36));
  EXPECT_EQ(square.algorithmic_flops, 2.0 * 6 * 6 * 6);
  const KernelReport broadcast = all_kernels(g, {x}, {b.add(b.expand(x, {5, 100}), b.expand(x, {5, 100}))});
  EXPECT_EQ(broadcast.unavoidable_bytes, 4.0 * (100 + 500)) << "a row that every row reads";
}

TEST(KernelWork, TakeReadsRowsAndNotTheTable) {
  Graph g;
  Builder b(g);
  const NodeId table = g.input({DType::f32, {1000, 16}}, "table");
  auto work = [&](int64_t rows) {
    const NodeId index = g.input({DType::i64, {rows}}, "index");
    return all_kernels(g, {table, index}, {b.take(table, index, 0)});
  };
  EXPECT_EQ(work(5).unavoidable_bytes, 5 * (8 + 2 * 16 * 4.0));
  EXPECT_EQ(work(3000).unavoidable_bytes, 3000 * (8 + 16 * 4.0) + 1000 * 16 * 4) << "no more than there is";
}

TEST(KernelWork, InPlaceUpdatesMoveOnlyTheReplacedPart) {
  Graph g;
  Builder b(g);
  const NodeId cache = g.input({DType::f32, {64, 8}}, "cache"), row = g.input({DType::f32, {1, 8}}, "row"), at = g.input({DType::i64, {}}, "at");
  const NodeId zero = g.literal(DType::i64, 0);
  const NodeId next = g.add(Op::dynamic_update_slice, {cache, row, at, zero});
  CompileOptions options(default_backend());
  options.state = {{0, 0}};
  const double copies = all_kernels(g, {cache, row, at}, {next}).unavoidable_bytes,
               replaces = all_kernels(g, {cache, row, at}, {next}, options).unavoidable_bytes;
  EXPECT_GE(copies, 2 * 64 * 8 * 4.0);
  EXPECT_GE(replaces, 2 * 8 * 4.0);
  EXPECT_LE(replaces, 2 * 8 * 4.0 + 32) << "the row, and where it goes";
}

// A plain recurrence, h' = tanh(h · W).
struct Recurrence {
  static constexpr int64_t kSteps = 6, kBatch = 3, kWidth = 4;
  static constexpr double kProduct = 2.0 * kSteps * kBatch * kWidth * kWidth, kTanh = kSteps * kBatch * kWidth;
  Graph g;
  NodeId h, w, last;
  Recurrence() {
    Builder b(g);
    h = g.input({DType::f32, {kBatch, kWidth}}, "h"), w = g.input({DType::f32, {kWidth, kWidth}}, "w");
    auto body = std::make_shared<ScanBody>();
    Builder s(body->graph);
    const NodeId in = body->graph.input({DType::f32, {kBatch, kWidth}}, "h"), weight = body->graph.input({DType::f32, {kWidth, kWidth}}, "w");
    body->carry_in = {in}, body->constant_in = {weight}, body->carry_out = {s.unary(Op::tanh, s.matmul(in, weight))};
    last = scan(g, body, {&h, 1}, {}, {&w, 1}, kSteps).carry[0];
  }
};

TEST(KernelWork, ScansCountStepsAndOperandsOnce) {
  Recurrence r;
  const KernelReport k = all_kernels(r.g, {r.h, r.w}, {r.last});
  EXPECT_EQ(k.algorithmic_flops, Recurrence::kProduct + Recurrence::kTanh);
  EXPECT_EQ(k.flops, k.algorithmic_flops);
  EXPECT_EQ(k.unavoidable_bytes, 4.0 * (2 * r.kBatch * r.kWidth + r.kWidth * r.kWidth));
}

TEST(KernelWork, RerunningALoopForItsGradientIsNotCounted) {
  for (const char* passes : {"", "-scan_saved", "-scan_saved,-scan_hoist"}) {
    Recurrence r;
    Builder b(r.g);
    const NodeId loss = b.sum(r.last), wanted[] = {r.w};
    CompileOptions options(default_backend());
    options.passes = passes;
    const KernelReport forward = all_kernels(r.g, {r.h, r.w}, {loss}, options);
    const KernelReport k = all_kernels(r.g, {r.h, r.w}, gradients(r.g, loss, wanted), options);
    EXPECT_EQ(k.flops - k.algorithmic_flops, *passes ? Recurrence::kProduct + Recurrence::kTanh : 0) << passes << k.name;
    EXPECT_EQ(forward.flops, forward.algorithmic_flops);
    // h · W, and in the gradient the same twice: with respect to h and to W. Elementwise work is extra.
    EXPECT_GE(k.algorithmic_flops, 3 * Recurrence::kProduct) << passes << k.name;
    EXPECT_LE(k.algorithmic_flops, 3 * Recurrence::kProduct + 8 * Recurrence::kTanh) << passes << k.name;
  }
}

TEST(KernelWork, RecomputationChangesNeitherFlopsNorBytesOfAStep) {
  GptConfig c = small_gpt();
  c.layers = 2;
  constexpr int64_t kBatch = 4, kTime = 32;
  // Forward: qkv, its projection, and up and down; the logits; attention halved by the mask. Backward: each product twice, attention 2.5 times.
  const double rows = double(kBatch * kTime), width = double(c.width), layers = double(c.layers);
  const double products = 3 * 2 * rows * (layers * 12 * width * width + width * double(c.padded_vocab ? c.padded_vocab : c.vocab));
  const double attention = 3.5 * 2 * rows * kTime * width * layers;
  double least = 0, bytes = 0;
  for (Recompute level : {Recompute::free, Recompute::elementwise, Recompute::attention, Recompute::layers}) {
    StepOptions options;
    options.recompute = level, options.evaluation = false;
    TrainStep step(gpt_model(c, kBatch, kTime), options);
    double runs = 0, counted = 0, unavoidable = 0;
    for (const auto& [k, times] : step.kernels()) runs += k.flops, counted += k.algorithmic_flops, unavoidable += k.unavoidable_bytes;
    const std::string what(name(level));
    EXPECT_GE(counted, products + attention) << what;
    EXPECT_LE(counted, 1.1 * (products + attention)) << what << ": elementwise work and the update are a small part";
    EXPECT_NEAR(step.plan().flops, counted, 1e-9 * counted) << what;
    if (level == Recompute::free) least = counted, bytes = unavoidable;
    EXPECT_NEAR(counted, least, 0.003 * least) << what;
    EXPECT_NEAR(unavoidable, bytes, 0.1 * bytes) << what;
    EXPECT_NEAR(step.min_seconds(1, 1e30), least, 0.003 * least) << what;
    if (level == Recompute::layers) {
      EXPECT_GT(runs, 1.15 * counted) << "the layers' products are run again";
    }
  }
}

}  // namespace
}  // namespace ridge::engine
