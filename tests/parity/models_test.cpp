// Whole models against PyTorch: logits, loss, every gradient, and a training run.
#include <gtest/gtest.h>

#include "autograd/gradients.h"
#include "nn/gpt.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "parity/parity.h"
#include "step/train_step.h"

namespace ridge::parity {
namespace {

struct GptCase {
  std::string fixture;
  GptConfig config;
};

GptConfig small_gpt() {
  GptConfig c;
  c.vocab = 37, c.block = 16, c.layers = 2, c.heads = 4, c.width = 32;
  return c;
}

GptConfig with_bias() {
  GptConfig c = small_gpt();
  c.bias = true;
  return c;
}

GptConfig modern() {
  GptConfig c = small_gpt();
  c.norm = GptConfig::Norm::rms, c.position = GptConfig::Position::rope, c.mlp = GptConfig::Mlp::swiglu, c.kv_heads = 2, c.tied = false;
  return c;
}

std::vector<Shape> shapes_of(const std::vector<Parameter>& parameters) {
  std::vector<Shape> out;
  for (const Parameter& p : parameters) out.push_back(p.shape);
  return out;
}

NodeId mean_loss(Builder& b, NodeId logits, NodeId targets) {
  auto [sum, count] = b.cross_entropy(logits, targets);
  return b.div(sum, count);
}

class Models : public testing::TestWithParam<Path> {
 protected:
  void check_gradients(const GptCase& c) {
    Fixture f(c.fixture);
    std::vector<Parameter> parameters = gpt_parameters(c.config);
    Problem p;
    std::vector<NodeId> nodes = p.input(unpack(f("parameters"), shapes_of(parameters)));
    NodeId tokens = p.input(slice_first(f("tokens"), 0)), targets = p.input(slice_first(f("targets"), 0));
    NodeId logits = gpt_forward(p.b, c.config, nodes, tokens), loss = mean_loss(p.b, logits, targets);
    std::vector<NodeId> outputs = {logits, loss};
    for (NodeId g : gradients(p.graph, loss, nodes)) outputs.push_back(g);
    std::vector<Array> got = compute(GetParam(), p, outputs), want = unpack(f("gradients"), shapes_of(parameters));
    expect_close(got[0], f("logits"), tolerance(GetParam(), Depth::model), "logits");
    expect_close(got[1], f("loss"), tolerance(GetParam(), Depth::model), "loss");
    for (size_t i = 0; i < want.size(); ++i) expect_close(got[i + 2], want[i], tolerance(GetParam(), Depth::model), "gradient of " + parameters[i].name);
  }

  // Ten steps of one program: forward, backward, clip and AdamW, with the rate and the applied count as inputs.
  void check_training(const GptCase& c) {
    Fixture f(c.fixture);
    std::vector<Parameter> parameters = gpt_parameters(c.config);
    std::vector<Shape> shapes = shapes_of(parameters);
    size_t n = shapes.size();
    std::vector<Array> start = unpack(f("parameters"), shapes), zeros;
    for (const Array& a : start) zeros.push_back(reference::zeros(a.type));
    Array all_tokens = f("tokens"), all_targets = f("targets"), rates = f("rates"), losses = f("losses"), norms = f("norms");

    Problem p;
    NodeId tokens = p.input(slice_first(all_tokens, 0)), targets = p.input(slice_first(all_targets, 0)), rate = p.input(slice_first(rates, 0));
    AdamState state;
    state.parameters = p.input(start), state.first = p.input(zeros), state.second = p.input(zeros), state.applied = p.input(scalar(DType::i64, 0));
    NodeId loss = mean_loss(p.b, gpt_forward(p.b, c.config, state.parameters, tokens), targets);
    Clipped clipped = clip_global_norm(p.b, gradients(p.graph, loss, state.parameters), 1.0);
    AdamState next = adamw(p.b, state, clipped.gradients, rate, decay_values(parameters, 0.1), {.beta1 = 0.9, .beta2 = 0.95});
    std::vector<NodeId> outputs = {loss, clipped.norm};
    for (auto* list : {&next.parameters, &next.first, &next.second}) outputs.insert(outputs.end(), list->begin(), list->end());
    outputs.push_back(next.applied);
    std::vector<std::pair<int, int>> in_place;
    for (size_t i = 2; i < outputs.size(); ++i) in_place.push_back({int(i) + 1, int(i)});

    Program program(GetParam(), p, outputs, in_place);
    std::vector<Array> values = p.values;
    for (int64_t i = 0; i < losses.size(); ++i) {
      values[0] = slice_first(all_tokens, i), values[1] = slice_first(all_targets, i), values[2] = slice_first(rates, i);
      std::vector<Array> got = program.run(values);
      expect_close(got[0], slice_first(losses, i), tolerance(GetParam(), Depth::model), "loss of step " + std::to_string(i));
      expect_close(got[1], slice_first(norms, i), tolerance(GetParam(), Depth::model), "norm of step " + std::to_string(i));
      std::copy(got.begin() + 2, got.end(), values.begin() + 3);
    }
    EXPECT_EQ(values.back().i, std::vector<int64_t>{10});
    std::vector<Array> want = unpack(f("parameters_end"), shapes);
    for (size_t i = 0; i < n; ++i) {
      Array got = values[3 + i];
      // Softmax is invariant to a shift of all keys, so the gradient of the keys' bias is zero up to rounding; Adam divides that noise by its own magnitude.
      // Its effect on the bias is arbitrary, within the sum of the rates, and does not reach the loss.
      if (parameters[i].name.ends_with("c_attn.bias"))
        std::copy(want[i].f.begin() + c.config.width, want[i].f.begin() + 2 * c.config.width, got.f.begin() + c.config.width);
      expect_close(got, want[i], tolerance(GetParam(), Depth::model), parameters[i].name + " after ten steps");
    }
  }
};

TEST_P(Models, GptGradients) { check_gradients({"gpt", small_gpt()}); }
TEST_P(Models, GptWithBiasGradients) { check_gradients({"gpt_bias", with_bias()}); }
TEST_P(Models, ModernGptGradients) { check_gradients({"gpt_modern", modern()}); }
TEST_P(Models, GptTraining) { check_training({"gpt", small_gpt()}); }
TEST_P(Models, GptWithBiasTraining) { check_training({"gpt_bias", with_bias()}); }

// The step that trainers run, whole and split: micro-batches add up to PyTorch's batch.
TEST(TrainStep, GptTraining) {
  Fixture f("gpt_bias");
  GptConfig c = with_bias();
  StepModel model;
  model.parameters = gpt_parameters(c);
  Array tokens = f("tokens"), targets = f("targets"), rates = f("rates"), losses = f("losses"), norms = f("norms");
  std::vector<Array> first = unpack(f("parameters"), shapes_of(model.parameters));
  model.batch = {slice_first(tokens, 0).type, slice_first(targets, 0).type};
  model.loss = [c](Builder& b, std::span<const NodeId> parameters, std::span<const NodeId> batch, const RandomOperands&) {
    return b.cross_entropy(gpt_forward(b, c, parameters, batch[0]), batch[1]);
  };
  StepOptions options;
  options.optimizer.beta2 = 0.95, options.optimizer.decay = 0.1, options.clip = 1;
  for (int64_t micro : {0, 2, 1}) {
    options.micro = micro;
    TrainStep step(model, options);
    for (size_t i = 0; i < first.size(); ++i) std::copy(first[i].f.begin(), first[i].f.end(), step.parameter(i).begin());
    for (int64_t i = 0; i < losses.size(); ++i) {
      std::vector<int64_t> in = slice_first(tokens, i).i, out = slice_first(targets, i).i;
      const void* batch[] = {in.data(), out.data()};
      StepMetrics m = step.run(batch, rates.at(i));
      EXPECT_TRUE(m.applied);
      EXPECT_NEAR(m.loss, losses.at(i), tolerance(Path::cpu, Depth::model) * losses.at(i)) << "step " << i << ", micro-batches of " << micro;
      EXPECT_NEAR(m.gradient_norm, norms.at(i), tolerance(Path::cpu, Depth::model) * norms.at(i)) << "step " << i << ", micro-batches of " << micro;
    }
  }
}

TEST_P(Models, ConvNet) {
  Fixture f("conv_net");
  std::vector<Shape> shapes = {{8, 3, 3, 3}, {8}, {12, 4, 3, 3}, {12}, {5, 72}, {5}};
  Problem p;
  Builder& b = p.b;
  NodeId x = p.input(f("x")), target = p.input(f("target"));
  std::vector<NodeId> w = p.input(unpack(f("parameters"), shapes));
  int64_t three[] = {3, 3}, two[] = {2, 2}, one[] = {1, 1};
  ConvOptions first, second;
  first.stride = {2, 1}, first.padding_low = first.padding_high = {1, 1};
  second.padding_low = second.padding_high = {1, 1}, second.groups = 2;
  NodeId h = b.unary(Op::relu, b.add(b.conv(x, w[0], first), b.reshape(w[1], {8, 1, 1})));
  h = b.max_pool(h, three, two, one);
  h = b.unary(Op::relu, b.add(b.conv(h, w[2], second), b.reshape(w[3], {12, 1, 1})));
  h = b.avg_pool(h, three, two, one);
  NodeId logits = b.linear(b.reshape(h, {4, -1}), w[4], w[5]), loss = mean_loss(b, logits, target);
  std::vector<NodeId> outputs = {logits, loss};
  for (NodeId g : gradients(p.graph, loss, w)) outputs.push_back(g);
  std::vector<Array> got = compute(GetParam(), p, outputs), want = unpack(f("gradients"), shapes);
  expect_close(got[0], f("logits"), tolerance(GetParam(), Depth::model), "logits");
  expect_close(got[1], f("loss"), tolerance(GetParam(), Depth::model), "loss");
  for (size_t i = 0; i < want.size(); ++i) expect_close(got[i + 2], want[i], tolerance(GetParam(), Depth::model), "gradient " + std::to_string(i));
}

INSTANTIATE_TEST_SUITE_P(Paths, Models, testing::ValuesIn(host_paths()), [](const auto& info) { return name(info.param); });
INSTANTIATE_TEST_SUITE_P(Gpu, Models, testing::ValuesIn(gpu_paths()), [](const auto& info) { return name(info.param); });

}  // namespace
}  // namespace ridge::parity
