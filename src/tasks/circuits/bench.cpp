// Whole training steps of recurrent models as benchmark rows, the models of the rival's script: MSE against random targets, AdamW.
#include <fmt/format.h>

#include <array>
#include <cstring>

#include "base/rng.h"
#include "ridge/step.h"
#include "step/compiled_step.h"
#include "tasks/circuits/task.h"

namespace ridge {
namespace {

constexpr int64_t kBenchOutputs = 4;

struct BenchSizes {
  const char* model;
  int64_t batch, time, inputs, hidden, units, layers;
};
constexpr BenchSizes kBenchSizes[] = {{"cfc", 64, 16, 8, 64, 64, 2},
                                      {"cfc", 64, 32, 8, 64, 128, 1},
                                      {"cfc", 256, 64, 32, 256, 256, 2},
                                      {"lstm", 64, 128, 8, 128, 0, 0},
                                      {"ltc", 16, 300, 8, 66, 0, 0}};

std::string bench_name(const BenchSizes& s) {
  const std::string name = fmt::format("{}/{}-{}-{}-{}", s.model, s.batch, s.time, s.inputs, s.hidden);
  return s.units > 0 ? fmt::format("{}-{}x{}", name, s.units, s.layers) : name;
}

// All take inputs [B, T, I] and return [B, T, 4].
struct BenchNet {
  virtual ~BenchNet() = default;
  virtual Tensor operator()(const Tensor& x) const = 0;
  virtual void visit(Visitor& v) = 0;
};

Tensor by_time(const Tensor& x) { return transpose(x, 0, 1); }

struct BenchCfC final : BenchNet {
  explicit BenchCfC(const BenchSizes& s)
      : hidden(s.hidden), ff1(s.units, s.hidden), ff2(s.units, s.hidden), ta(s.units, s.hidden), tb(s.units, s.hidden), out(s.hidden, kBenchOutputs) {
    for (int64_t i = 0; i < s.layers; ++i) backbone.emplace_back(i ? s.units : s.inputs + s.hidden, s.units);
  }
  Tensor operator()(const Tensor& x) const override {
    auto body = [&](const std::vector<Tensor>& carry, const std::vector<Tensor>& in) -> ScanOutput {
      Tensor z = concat({in[0], carry[0]}, 1);
      for (const Linear& layer : backbone) z = tanh(layer(z));
      const Tensor t = sigmoid(-ta(z) + tb(z));
      const Tensor h = tanh(ff1(z)) * (1 - t) + t * tanh(ff2(z));
      return {{h}, {h}};
    };
    return out(by_time(scan(body, {expand(Tensor(0.0), {x.shape()[0], hidden})}, {by_time(x)}).outputs[0]));
  }
  void visit(Visitor& v) override { v("backbone", backbone)("ff1", ff1)("ff2", ff2)("ta", ta)("tb", tb)("out", out); }
  int64_t hidden;
  std::vector<Linear> backbone;
  Linear ff1, ff2, ta, tb, out;
};

struct BenchLstm final : BenchNet {
  explicit BenchLstm(const BenchSizes& s) : hidden(s.hidden), input(s.inputs, 4 * s.hidden), recurrent(s.hidden, 4 * s.hidden), out(s.hidden, kBenchOutputs) {}
  Tensor operator()(const Tensor& x) const override {
    auto body = [&](const std::vector<Tensor>& carry, const std::vector<Tensor>& in) -> ScanOutput {
      const std::vector<Tensor> gates = split(input(in[0]) + recurrent(carry[0]), {hidden, hidden, hidden, hidden}, 1);
      const Tensor c = sigmoid(gates[1]) * carry[1] + sigmoid(gates[0]) * tanh(gates[2]);
      const Tensor h = sigmoid(gates[3]) * tanh(c);
      return {{h, c}, {h}};
    };
    const Tensor zero = expand(Tensor(0.0), {x.shape()[0], hidden});
    return out(by_time(scan(body, {zero, zero}, {by_time(x)}).outputs[0]));
  }
  void visit(Visitor& v) override { v("input", input)("recurrent", recurrent)("out", out); }
  int64_t hidden;
  Linear input, recurrent, out;
};

// 66 neurons with a quarter of all synapses and half of the sensory ones, six unfolds, positive by softplus.
struct BenchLtc final : BenchNet {
  explicit BenchLtc(const BenchSizes& s) : hidden(s.hidden) {
    const int64_t n = s.hidden, in = s.inputs;
    auto drawn = [](const Shape& shape, double low, double high) {
      Tensor t = low + (high - low) * uniform(shape);
      t.eval();
      return t;
    };
    gleak = drawn({n}, 0.001, 1), vleak = drawn({n}, -0.2, 0.2), cm = drawn({n}, 0.4, 0.6);
    w = drawn({n, n}, 0.001, 1), sigma = drawn({n, n}, 3, 8), mu = drawn({n, n}, 0.3, 0.8);
    sensory_w = drawn({in, n}, 0.001, 1), sensory_sigma = drawn({in, n}, 3, 8), sensory_mu = drawn({in, n}, 0.3, 0.8);
    mask = cast(bernoulli({n, n}, 0.25), DType::f32), sensory_mask = cast(bernoulli({in, n}, 0.5), DType::f32);
    erev = mask * (2 * cast(bernoulli({n, n}, 0.5), DType::f32) - 1), sensory_erev = sensory_mask * (2 * cast(bernoulli({in, n}, 0.5), DType::f32) - 1);
    for (Tensor* t : {&mask, &sensory_mask, &erev, &sensory_erev}) t->eval();
  }
  Tensor operator()(const Tensor& x) const override {
    constexpr int kUnfolds = 6;
    const Tensor capacity = softplus(cm) * kUnfolds, leak = softplus(gleak), weight = softplus(w);
    auto body = [&](const std::vector<Tensor>& carry, const std::vector<Tensor>& in) -> ScanOutput {
      const Shape wide = {in[0].shape()[0], in[0].shape()[1], 1};
      const Tensor sensory = softplus(sensory_w) * sigmoid(sensory_sigma * (reshape(in[0], wide) - sensory_mu)) * fixed(sensory_mask);
      const Tensor rest = leak * vleak + sum(sensory * fixed(sensory_erev), {1}), below = sum(sensory, {1}) + leak + 1e-8;
      Tensor v = carry[0];
      for (int i = 0; i < kUnfolds; ++i) {
        const Tensor a = weight * sigmoid(sigma * (reshape(v, {v.shape()[0], hidden, 1}) - mu)) * fixed(mask);
        v = (capacity * v + rest + sum(a * fixed(erev), {1})) / (capacity + below + sum(a, {1}));
      }
      return {{v}, {slice(v, 1, 0, kBenchOutputs)}};
    };
    return by_time(scan(body, {expand(Tensor(0.0), {x.shape()[0], hidden})}, {by_time(x)}).outputs[0]);
  }
  void visit(Visitor& v) override {
    v("gleak", gleak)("vleak", vleak)("cm", cm)("w", w)("sigma", sigma)("mu", mu)("sensory_w", sensory_w)("sensory_sigma", sensory_sigma)("sensory_mu",
                                                                                                                                          sensory_mu);
    v("mask", mask)("erev", erev)("sensory_mask", sensory_mask)("sensory_erev", sensory_erev);
  }
  static Tensor fixed(const Tensor& t) { return stop_gradient(t); }
  int64_t hidden;
  Tensor gleak, vleak, cm, w, sigma, mu, sensory_w, sensory_sigma, sensory_mu, mask, erev, sensory_mask, sensory_erev;
};

}  // namespace

std::vector<BenchRow> circuit_bench_rows(bool gpu) {
  std::vector<BenchRow> rows;
  for (const BenchSizes& s : kBenchSizes)
    rows.push_back(
        {bench_name(s), {}, fmt::format("torch_cfc.py --only {} {}", s.model, gpu ? "--device cuda --modes graphs capture" : "--modes eager cell compile")});
  return rows;
}

BenchStep circuit_bench_step(const BenchRow& row, const config::Resolved&) {
  const BenchSizes* sizes = std::begin(kBenchSizes);
  while (bench_name(*sizes) != row.name) ++sizes;
  const BenchSizes& s = *sizes;
  seed(1);
  std::shared_ptr<BenchNet> net;
  if (s.model == std::string_view("cfc")) net = std::make_shared<BenchCfC>(s);
  if (s.model == std::string_view("lstm")) net = std::make_shared<BenchLstm>(s);
  if (s.model == std::string_view("ltc")) net = std::make_shared<BenchLtc>(s);
  std::vector<NamedTensor> weights = parameters(*net);
  for (NamedTensor& p : weights)
    if (p.name.ends_with("mask") || p.name.ends_with("erev")) p.decay = false;  // constant: without gradient and decay they keep their values
  const Step step(weights, adamw({.lr = 1e-3, .decay = 0.01}), loss_function([net](const Tensor& x, const Tensor& y) { return mse((*net)(x), y); }));
  BenchStep bench;
  bench.model = step_model(step, {{{s.batch, s.time, s.inputs}}, {{s.batch, s.time, kBenchOutputs}}});
  bench.options.optimizer = step.optimizer(), bench.units = s.batch * s.time, bench.time_steps = s.time;
  bench.fill = [net, weights](size_t i, std::span<float> values) { std::memcpy(values.data(), weights[i].tensor->data(), values.size_bytes()); };
  for (uint32_t stream : {1, 2}) {  // inputs and targets
    const Type& type = bench.model.batch[stream - 1];
    const std::vector<float> values = normal(type.shape).to_floats();
    std::memcpy(bench.batch.emplace_back(values.size() * sizeof(float)).data(), values.data(), values.size() * sizeof(float));
  }
  return bench;
}

}  // namespace ridge
