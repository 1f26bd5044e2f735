#include "support/steps.h"

#include <cstring>

#include <fmt/core.h>

#include "autograd/gradients.h"
#include "base/rng.h"
#include "optim/adamw.h"
#include "optim/clip.h"

namespace ridge::engine {

Step make_step(const StepModel& model) {
  Step s;
  s.parameters = model.parameters;
  Builder b(s.graph);
  AdamState state;
  for (const Parameter& p : s.parameters) {
    state.parameters.push_back(s.graph.input({DType::f32, p.shape}, p.name));
    state.first.push_back(s.graph.input({DType::f32, p.shape}, p.name + ".first"));
    state.second.push_back(s.graph.input({DType::f32, p.shape}, p.name + ".second"));
  }
  state.applied = s.graph.input({DType::i64, {}}, "applied");
  for (size_t i = 0; i < model.batch.size(); ++i) s.inputs.push_back(s.graph.input(model.batch[i], "batch " + std::to_string(i)));
  NodeId zero = b.literal(DType::i64, 0);
  const Builder::SumCount sums = model.loss(b, state.parameters, s.inputs, {zero, zero, zero, 1});
  NodeId loss = b.div(sums.sum, sums.count);
  s.loss = loss, s.data = int(s.inputs.size());
  NodeId rate = s.inputs.emplace_back(s.graph.input({DType::f32, {}}, "rate"));
  Clipped clipped = clip_global_norm(b, gradients(s.graph, loss, state.parameters), 1.0);
  NodeId good = b.unary(Op::is_finite, clipped.norm);
  AdamState next = adamw(b, state, clipped.gradients, rate, decay_values(s.parameters, 0.1), {.beta1 = 0.9, .beta2 = 0.95}, good);
  s.outputs = {loss, clipped.norm};
  auto carry = [&](NodeId before, NodeId after) {
    s.state.push_back({int(s.inputs.size()), int(s.outputs.size())});
    s.inputs.push_back(before), s.outputs.push_back(after);
  };
  for (auto list : {&AdamState::parameters, &AdamState::first, &AdamState::second})
    for (size_t i = 0; i < s.parameters.size(); ++i) carry((state.*list)[i], (next.*list)[i]);
  carry(state.applied, next.applied);
  return s;
}

GptConfig small_gpt() {
  GptConfig c;
  c.vocab = 65, c.block = 64, c.layers = 4, c.heads = 4, c.width = 128;
  return c;
}

StepModel gpt_model(const GptConfig& config, int64_t batch, int64_t time) {
  Type ids{DType::i64, {batch, time}};
  auto loss = [config](Builder& b, std::span<const NodeId> parameters, std::span<const NodeId> in, const RandomOperands& random) {
    return b.cross_entropy(gpt_forward(b, config, parameters, in[0], random), in[1]);
  };
  return {gpt_parameters(config), {ids, ids}, loss};
}

StepModel mlp_model(int64_t batch) {
  std::vector<Parameter> p;
  int64_t sizes[] = {64, 128, 128, 10};
  for (int i = 0; i < 3; ++i) {
    p.push_back({"w" + std::to_string(i), {sizes[i + 1], sizes[i]}, 0, 0.1, true});
    p.push_back({"b" + std::to_string(i), {sizes[i + 1]}, 0, 0, false});
  }
  auto loss = [](Builder& b, std::span<const NodeId> w, std::span<const NodeId> in, const RandomOperands&) {
    NodeId x = b.unary(Op::relu, b.linear(in[0], w[0], w[1]));
    x = b.unary(Op::gelu_tanh, b.linear(x, w[2], w[3]));
    return b.cross_entropy(b.linear(x, w[4], w[5]), in[1]);
  };
  return {p, {{DType::f32, {batch, 64}}, {DType::i64, {batch}}}, loss};
}

StepModel conv_model(int64_t batch) {
  std::vector<Parameter> p = {{"w0", {8, 3, 3, 3}, 0, 0.2, true}, {"b0", {8}, 0, 0, false},        {"w1", {16, 8, 3, 3}, 0, 0.1, true},
                              {"b1", {16}, 0, 0, false},          {"w2", {10, 256}, 0, 0.1, true}, {"b2", {10}, 0, 0, false}};
  auto loss = [](Builder& b, std::span<const NodeId> w, std::span<const NodeId> in, const RandomOperands&) {
    ConvOptions same;
    same.padding_low = same.padding_high = {1, 1};
    int64_t two[] = {2, 2};
    NodeId x = b.unary(Op::relu, b.add(b.conv(in[0], w[0], same), b.reshape(w[1], {8, 1, 1})));
    x = b.max_pool(x, two, two, {});
    x = b.unary(Op::relu, b.add(b.conv(x, w[2], same), b.reshape(w[3], {16, 1, 1})));
    x = b.avg_pool(x, two, two, {});
    return b.cross_entropy(b.linear(b.reshape(x, {b.shape(x)[0], 256}), w[4], w[5]), in[1]);
  };
  return {p, {{DType::f32, {batch, 3, 16, 16}}, {DType::i64, {batch}}}, loss};
}

namespace {

CompileOptions with_state(CompileOptions options, const Step& step) {
  options.state = step.state, options.forward = {step.loss};
  return options;
}

}  // namespace

std::string planned_bytes(const StepPlan& plan) {
  return fmt::format("{} parameters, {} gradients, {} optimizer, {} activations, {} in all", plan.parameter_bytes, plan.gradient_bytes, plan.optimizer_bytes,
                     plan.activation_bytes, plan.planned_bytes - plan.scratch_bytes);
}

Training::Training(const Step& step, int64_t classes, CompileOptions options)
    : step_(step),
      device_(options.backend->host_memory() ? nullptr : options.backend),
      executable_(step.graph, step.inputs, step.outputs, with_state(std::move(options), step)) {
  for (const Type& t : executable_.input_types()) inputs_.emplace_back(size_t(t.bytes()));
  for (int i = 0; i < step.data; ++i) {
    const Type& t = executable_.input_types()[size_t(i)];
    RandomKey key{17, 0, uint32_t(i)};
    for (int64_t k = 0; k < t.shape.numel(); ++k) {
      float u = uniform_from(random_word(key, uint64_t(k)));
      float value = 2 * u - 1;
      int64_t integer = int64_t(u * float(classes));
      std::memcpy(inputs_[size_t(i)].data() + k * size_of(t.dtype), t.dtype == DType::f32 ? static_cast<void*>(&value) : &integer, size_t(size_of(t.dtype)));
    }
  }
  for (size_t i = 0; i < step.parameters.size(); ++i) initialize(step.parameters[i], 1, uint32_t(i), parameter(i));
  if (device_) {
    for (auto& bytes : inputs_) there_.push_back(device_->allocate(int64_t(bytes.size())));
    for (int i = 0; i < 2; ++i) there_.push_back(device_->allocate(4));
    in_.assign(there_.begin(), there_.end() - 2);
    out_.assign(there_.end() - 2, there_.end());
  } else {
    for (auto& bytes : inputs_) in_.push_back(bytes.data());
    out_ = {&loss_, &norm_};
  }
  for (auto [in, out] : step.state) out_.push_back(const_cast<void*>(in_[size_t(in)]));
}

Training::~Training() {
  for (size_t i = 0; i < there_.size(); ++i) device_->release(there_[i], i < inputs_.size() ? int64_t(inputs_[i].size()) : 4);
}

float Training::run(float rate) {
  std::memcpy(inputs_[size_t(step_.data)].data(), &rate, sizeof rate);
  if (!device_) {
    executable_.run(in_, out_);
    return loss_;
  }
  for (size_t i = 0; i < inputs_.size(); ++i) device_->upload(there_[i], inputs_[i].data(), int64_t(inputs_[i].size()));
  executable_.run(in_, out_);
  for (size_t i = size_t(step_.data) + 1; i < inputs_.size(); ++i) device_->download(inputs_[i].data(), there_[i], int64_t(inputs_[i].size()));
  device_->download(&loss_, out_[0], 4), device_->download(&norm_, out_[1], 4);
  return loss_;
}

float Training::norm() const { return norm_; }

std::span<float> Training::parameter(size_t index) { return data(size_t(step_.data) + 1 + index); }

std::span<float> Training::data(size_t index) { return {reinterpret_cast<float*>(inputs_[index].data()), inputs_[index].size() / 4}; }

int64_t Training::applied() const {
  int64_t n;
  std::memcpy(&n, inputs_.back().data(), sizeof n);
  return n;
}

std::vector<std::vector<std::byte>> Training::state() const { return {inputs_.begin() + step_.data + 1, inputs_.end()}; }

}  // namespace ridge::engine
