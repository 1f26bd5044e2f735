// Muon in a training step: which parameters it updates, what it keeps, and that splitting, clipping, 16 bits and resuming work as with other optimizers.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "graph/scan.h"
#include "step/hidden_matrices.h"
#include "train/device_like_backend.h"
#include "train/small_run.h"

namespace ridge {
namespace {

using test::expect_same;
using test::SmallRun;
using test::TempFolder;
using test::Trace;

StepOptions muon_options() {
  StepOptions o;
  o.optimizer = {Optimizer::Kind::muon, 0.02, 0.9, 0.99, 1e-8, 0.1, 0.95, true};
  o.seed = 5;
  return o;
}

// Names the parameters that Muon updates.
struct Network {
  Graph g;
  Builder b{g};
  std::vector<NodeId> parameters;
  std::vector<std::string> names;
  NodeId x = g.input({DType::f32, {5, 4}}, "x");
  NodeId parameter(const std::string& name, Shape shape) {
    names.push_back(name), parameters.push_back(g.input({DType::f32, std::move(shape)}, name));
    return parameters.back();
  }
  std::set<std::string> matrices(NodeId y) {
    const std::vector<char> hidden = hidden_matrices(g, b.sum(b.square(y)), parameters);
    std::set<std::string> found;
    for (size_t i = 0; i < hidden.size(); ++i)
      if (hidden[i]) found.insert(names[i]);
    return found;
  }
};
using Names = std::set<std::string>;

TEST(HiddenMatrices, AreNeitherHeadsNorVectors) {
  Network n;
  NodeId h = n.b.unary(Op::tanh, n.b.linear(n.x, n.parameter("in", {6, 4}), n.parameter("in bias", {6})));
  h = n.b.unary(Op::relu, n.b.matmul(h, n.parameter("middle", {6, 7})));
  const NodeId actor = n.b.linear(h, n.parameter("actor", {3, 7})), critic = n.b.matmul(h, n.parameter("critic", {7}));
  EXPECT_EQ(n.matrices(n.b.concat(std::vector{actor, n.b.reshape(critic, {5, 1})}, 1)), (Names{"in", "middle"}));
}

TEST(HiddenMatrices, AreNotMaskedWeightsOrTables) {
  Network n;
  const NodeId tokens = n.g.input({DType::i64, {5}}, "tokens"), tied = n.parameter("tied", {11, 4});
  NodeId h = n.b.add(n.b.take(tied, tokens, 0), n.parameter("positions", {5, 4}));
  h = n.b.matmul(h, n.b.mul(n.parameter("masked", {4, 4}), n.b.stop_gradient(n.parameter("mask", {4, 4}))));
  h = n.b.linear(h, n.parameter("hidden", {4, 4}));
  EXPECT_EQ(n.matrices(n.b.matmul(h, n.b.transpose(tied))), (Names{"hidden"}));
}

TEST(HiddenMatrices, IncludeKernelsAndPartsOfWeights) {
  Network n;
  const NodeId image = n.b.reshape(n.x, {5, 1, 2, 2});
  NodeId h = n.b.reshape(n.b.conv(image, n.parameter("kernel", {3, 1, 2, 2})), {5, 3});
  const NodeId wide = n.parameter("sliced", {3, 8}), stacked[] = {n.parameter("top", {2, 4}), n.parameter("bottom", {2, 4})};
  h = n.b.add(n.b.matmul(h, n.b.slice(wide, 1, 0, 4)), n.b.matmul(h, n.b.slice(wide, 1, 4, 8)));
  h = n.b.matmul(h, n.b.concat(stacked, 0));
  EXPECT_EQ(n.matrices(n.b.matmul(h, n.parameter("head", {4, 1}))), (Names{"kernel", "sliced", "top", "bottom"}));
}

// In a loop, what the next step reads is reached; a readout that nothing reads is a head, inside the loop as after it.
TEST(HiddenMatrices, IncludeRecurrentWeights) {
  Network n;
  auto body = std::make_shared<ScanBody>();
  Builder in(body->graph);
  auto input = [&](const char* name, Shape shape) { return body->graph.input({DType::f32, std::move(shape)}, name); };
  const NodeId h = input("h", {5, 6}), x = input("x", {5, 4}), recurrent = input("recurrent", {6, 6}), drive = input("drive", {4, 6}),
               readout = input("readout", {6, 2});
  const NodeId next = in.unary(Op::tanh, in.add(in.matmul(h, recurrent), in.matmul(x, drive)));
  body->carry_in = {h}, body->sequence_in = {x}, body->constant_in = {recurrent, drive, readout};
  body->carry_out = {next}, body->step_out = {in.matmul(next, readout)};
  const NodeId start = n.b.full({5, 6}, DType::f32, 0), inputs = n.b.expand(n.x, {3, 5, 4});
  const NodeId weights[] = {n.parameter("recurrent", {6, 6}), n.parameter("drive", {4, 6}), n.parameter("readout", {6, 2})};
  EXPECT_EQ(n.matrices(scan(n.g, body, {&start, 1}, {&inputs, 1}, weights, 3).outputs[0]), (Names{"recurrent", "drive"}));
}

TEST(Muon, KeepsOneMomentPerMatrixAndThePlanCountsIt) {
  const StepModel model = gpt_step_model(tiny_gpt(), 8);
  StepOptions o;
  const StepPlan both = TrainStep(model, o).plan();
  const TrainStep step(model, muon_options());
  int64_t saved = 0;
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const Parameter& p = model.parameters[i];
    const bool matrix = p.shape.rank() == 2 && p.name.find(".h.") != p.name.npos;
    EXPECT_EQ(step.moments(i), matrix ? 1 : 2) << p.name;
    if (matrix) saved += p.shape.numel() * 4;
  }
  EXPECT_EQ(saved, 2 * 12 * 16 * 16 * 4);  // twelve matrices of 16 x 16 in each of two layers
  EXPECT_EQ(both.optimizer_bytes - step.plan().optimizer_bytes, saved);
  EXPECT_NE(step.report().find("8 matrices of hidden layers with 6,144 of"), std::string::npos) << step.report();
}

std::vector<std::vector<float>> trained(const StepOptions& o, int steps = 3) {
  const StepModel model = gpt_step_model(tiny_gpt(), 8);
  TrainStep step(model, o);
  start(step, model);
  for (int i = 0; i < steps; ++i) EXPECT_TRUE(step.run(TokenBatch(8, 8, 19, uint64_t(i)).data).applied);
  std::vector<std::vector<float>> all;
  for (size_t i = 0; i < model.parameters.size(); ++i) all.emplace_back(step.parameter(i).begin(), step.parameter(i).end());
  return all;
}

double largest_difference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b, size_t parameter) {
  double most = 0;
  for (size_t k = 0; k < a[parameter].size(); ++k) most = std::max(most, double(std::abs(a[parameter][k] - b[parameter][k])));
  return most;
}

// An element moves by at most about rate · scale · √64 per step, here 0.03.
TEST(Muon, WorksWithMicroBatchesClippingAnd16Bits) {
  const StepModel model = gpt_step_model(tiny_gpt(), 8);
  StepOptions o = muon_options();
  const auto whole = trained(o);
  o.micro = 3;
  const auto split = trained(o);
  o.micro = 0, o.clip = 1e-4;
  const auto clipped = trained(o, 1), unclipped = trained(muon_options(), 1);
  o = muon_options(), o.precision = Precision::bf16;
  const auto narrow = trained(o);
  const TrainStep step(model, muon_options());
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const std::string& name = model.parameters[i].name;
    if (step.moments(i) == 2) continue;
    EXPECT_LT(largest_difference(whole, split, i), 1e-3) << name;
    EXPECT_LT(largest_difference(clipped, unclipped, i), 1e-3) << name << ": the size of a gradient has no effect on its direction";
    EXPECT_LT(largest_difference(whole, narrow, i), 3e-2) << name;
    EXPECT_NE(whole[i], narrow[i]);
  }
}

// Three parts, each with parameters of either kind.
TEST(Muon, OffloadsMomentsWithTheSameBits) {
  StepModel model;
  for (const char* name : {"a", "b", "c"}) {
    model.parameters.push_back({std::string(name) + " large", {int64_t(1) << 20}, 0, 0.1, false});
    model.parameters.push_back({std::string(name) + " matrix", {8, 8}, 0, 0.3, true});
  }
  model.batch = {{DType::f32, {2, 8}}};
  model.loss = [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) -> Builder::SumCount {
    NodeId x = in[0];
    for (size_t i = 0; i < p.size(); i += 2) x = b.add(b.unary(Op::tanh, b.matmul(x, p[i + 1])), b.slice(p[i], 0, 0, 8));
    return {b.sum(b.square(x)), b.literal(DType::f32, double(b.shape(x)[0]))};
  };
  const std::vector<float> x(16, 0.5f);
  const void* batch[] = {x.data()};
  DeviceLikeBackend device, other;
  StepOptions o = muon_options();
  o.backend = &device;
  TrainStep held(model, o);
  o.backend = &other, o.offload = true;
  TrainStep offloaded(model, o);
  EXPECT_EQ(offloaded.plan().host_bytes, held.plan().optimizer_bytes);
  EXPECT_EQ(held.plan().optimizer_bytes, 2 * (3 * (int64_t(4) << 20) + 8 * 8 * 4) + 2 * 8 * 8 * 4);  // the last matrix is a head
  start(held, model), start(offloaded, model);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(held.run(batch).loss, offloaded.run(batch).loss);
  EXPECT_TRUE(contents(held, model) == contents(offloaded, model));
}

TEST(Muon, ResumesWithTheSameBits) {
  TempFolder folder;
  SmallRun whole{.folder = folder / "whole", .optimizer = Optimizer::Kind::muon}, cut = whole;
  whole();
  cut.folder = folder / "cut";
  cut.before = [](Phase phase, int64_t step) {
    if (phase == Phase::step && step == 17) throw step;
  };
  EXPECT_THROW(cut(), int64_t);
  cut.before = {}, cut.resume = true;
  const Outcome out = cut();
  EXPECT_TRUE(out.resumed && out.bit_exact) << testing::PrintToString(cut.notices);
  expect_same(Trace(folder / "cut"), Trace(folder / "whole"));

  std::vector<std::string> damage;
  const auto stored = CheckpointStore(folder / "whole/checkpoints").newest(damage);
  Names moments;
  for (const SafetensorView& t : stored->tensors.at("optimizer.safetensors").tensors()) moments.insert(t.name);
  const std::string matrix = "transformer.h.0.attn.c_attn.weight", table = "transformer.wte.weight";
  EXPECT_TRUE(moments.contains("first." + matrix) && moments.contains("first." + table) && moments.contains("second." + table));
  EXPECT_FALSE(moments.contains("second." + matrix));

  cut.optimizer = Optimizer::Kind::adamw;
  try {
    cut();
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(std::string(error.what()).find("optimizer muon, but optimizer adamw was requested"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ridge
