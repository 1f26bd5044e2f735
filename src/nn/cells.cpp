// The cells of circuits. Each writes one time step with tensor operations; halves of a product that read x and the state are separate, so that the part that
// does not depend on the state leaves the loop.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/nearest.h"
#include "ridge/circuits.h"

namespace ridge {
namespace {

using States = std::vector<Tensor>;

Tensor uniform_between(const Shape& shape, double low, double high) {
  Tensor t = uniform(shape) * (high - low) + low;
  t.eval();
  return t;
}

Linear xavier(int64_t in, int64_t out, bool with_bias = true) {
  Linear l(in, out, with_bias);
  const double bound = std::sqrt(6.0 / double(in + out));
  l.weight = uniform_between({out, in}, -bound, bound);
  return l;
}

// Orthonormal columns, as for a recurrent matrix that should keep the norm of the state.
Tensor orthogonal(int64_t rows, int64_t columns) {
  const std::vector<float> drawn = normal({columns, rows}).to_floats();
  std::vector<double> q(drawn.begin(), drawn.end());  // [columns, rows]
  auto row = [&](int64_t i) { return std::span(q).subspan(size_t(i * rows), size_t(rows)); };
  for (int64_t i = 0; i < columns; ++i)
    for (int pass = 0; pass < 2; ++pass) {  // twice: once leaves rounding errors
      for (int64_t j = 0; j < i && j < rows; ++j) {
        double dot = 0;
        for (int64_t k = 0; k < rows; ++k) dot += row(i)[size_t(k)] * row(j)[size_t(k)];
        for (int64_t k = 0; k < rows; ++k) row(i)[size_t(k)] -= dot * row(j)[size_t(k)];
      }
      double norm = 0;
      for (double v : row(i)) norm += v * v;
      for (double& v : row(i)) v /= std::sqrt(norm);
    }
  std::vector<float> values(q.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) values[size_t(r * columns + c)] = float(q[size_t(c * rows + r)]);
  return Tensor({rows, columns}, values);
}

// [x, h] · weightᵀ + bias as two products; without h: x · weightᵀ + bias.
Tensor joined(const Tensor& x, const Tensor& h, const Tensor& weight, const Tensor& bias) {
  if (!h.defined()) return linear(x, weight, bias);
  const int64_t split = x.shape()[1], end = weight.shape()[1];
  return linear(x, slice(weight, 1, 0, split), bias) + linear(h, slice(weight, 1, split, end));
}
Tensor joined(const Tensor& x, const Tensor& h, const Linear& l) { return joined(x, h, l.weight, l.bias); }

// The i-th of n parts of the last axis.
Tensor part(const Tensor& x, int64_t i, int64_t n) {
  const int64_t width = x.shape()[1] / n;
  return slice(x, 1, i * width, (i + 1) * width);
}

Tensor or_one(const Tensor& timespan) { return timespan.defined() ? timespan : Tensor(1.0); }

void keep_present(Tensor& weight, const Tensor& mask) {
  if (!mask.defined()) return;
  weight = where(mask > 0, weight, full(weight.shape(), 0));  // not a product: -0 and NaN become 0 too
  weight.eval();
}

Tensor float_tensor(const Shape& shape, const std::vector<int8_t>& values, bool magnitude) {
  std::vector<float> floats;
  for (int8_t v : values) floats.push_back(float(magnitude ? std::abs(v) : v));
  return Tensor(shape, floats);
}

Tensor activate(const std::string& name, const Tensor& x) {
  if (name == "lecun_tanh") return tanh(x * 0.666) * 1.7159;
  if (name == "tanh") return tanh(x);
  if (name == "relu") return relu(x);
  if (name == "silu") return silu(x);
  return gelu(x, true);
}

struct CfcCell : Cell {
  CfcCell(const CircuitArgs& args, int64_t inputs, int64_t units, int64_t layers, const Tensor& mask = {})
      : Cell(inputs, units, {units}, true), mode(args.mode), activation(args.activation), dropout_rate(args.backbone_dropout.value_or(0)), sparsity_mask(mask) {
    int64_t width = inputs + units;
    for (int64_t i = 0; i < layers; ++i) backbone.push_back(xavier(width, args.backbone_units.value_or(128))), width = args.backbone_units.value_or(128);
    ff1 = xavier(width, units);
    if (mode == "pure") {
      w_tau = Tensor::zeros({1, units});
      A = full({1, units}, 1), A.eval();
    } else {
      for (std::optional<Linear>* head : {&ff2, &time_a, &time_b}) *head = xavier(width, units);
    }
    CfcCell::prune();
  }

  States step(const Tensor& x, const States& state, const Tensor& timespan, bool training) const override {
    Tensor z = x, h = state[0];
    for (size_t i = 0; i < backbone.size(); ++i, h = {}) {
      z = activate(activation, joined(z, h, backbone[i]));
      if (training && i > 0 && dropout_rate > 0) z = dropout(z, dropout_rate);
    }
    auto masked = [&](const Tensor& weight) { return sparsity_mask.defined() ? weight * sparsity_mask : weight; };
    if (mode == "pure") {
      const Tensor f = joined(z, h, masked(ff1->weight), ff1->bias);
      return {A - A * exp(-(or_one(timespan) * (abs(w_tau) + abs(f)))) * f};
    }
    // All heads in one product. For a timespan of 1 the two products of the gate are one.
    States weights = {masked(ff1->weight), masked(ff2->weight), time_b->weight}, biases = {ff1->bias, ff2->bias, time_b->bias};
    if (timespan.defined())
      weights.push_back(time_a->weight), biases.push_back(time_a->bias);
    else
      weights[2] = weights[2] + time_a->weight, biases[2] = biases[2] + time_a->bias;
    const int64_t n = int64_t(weights.size());
    const Tensor heads = joined(z, h, concat(weights), concat(biases));
    const Tensor a = tanh(part(heads, 0, n)), b = tanh(part(heads, 1, n));
    const Tensor gate = sigmoid(timespan.defined() ? part(heads, 3, n) * timespan + part(heads, 2, n) : part(heads, 2, n));
    return {mode == "no_gate" ? a + gate * b : a * (1 - gate) + gate * b};
  }
  void visit(Visitor& v) override {
    v("sparsity_mask", sparsity_mask, ParameterRule::constant)("w_tau", w_tau)("A", A);
    // The positions that the layers have among activations and dropout.
    for (size_t i = 0; i < backbone.size(); ++i) v("backbone." + std::to_string(i == 0 ? 0 : dropout_rate > 0 ? 3 * i - 1 : 2 * i), backbone[i]);
    v("ff1", *ff1);
    if (ff2) v("ff2", *ff2)("time_a", *time_a)("time_b", *time_b);
  }
  void prune() override {
    keep_present(ff1->weight, sparsity_mask);
    if (ff2) keep_present(ff2->weight, sparsity_mask);
  }

  std::string mode, activation;
  double dropout_rate;
  std::vector<Linear> backbone;
  std::optional<Linear> ff1, ff2, time_a, time_b;  // pure has only the first
  Tensor w_tau, A, sparsity_mask;                  // the mask is [units, inputs + units]
};

// One CfC cell per layer of the wiring, each reading the layer before it. Synapses inside a layer are dense, as in ncps.
struct WiredCfcCell : Cell {
  WiredCfcCell(const CircuitArgs& args, const Wiring& w) : Cell(w.inputs(), w.outputs(), {w.units()}, true) {
    const int64_t units = w.units();
    for (int64_t l = 0; l < w.layers(); ++l) {
      const std::vector<int64_t>& to = w.layer(l);
      const int64_t hidden = int64_t(to.size()), sources = l ? int64_t(w.layer(l - 1).size()) : w.inputs();
      std::vector<int8_t> mask(size_t(hidden * (sources + hidden)), 1);
      for (int64_t i = 0; i < hidden; ++i)
        for (int64_t k = 0; k < sources; ++k)
          mask[size_t(i * (sources + hidden) + k)] =
              l ? w.synapses()[size_t(w.layer(l - 1)[size_t(k)] * units + to[size_t(i)])] : w.sensory()[size_t(k * units + to[size_t(i)])];
      cells.push_back(std::make_unique<CfcCell>(args, sources, hidden, 0, float_tensor({hidden, sources + hidden}, mask, true)));
    }
  }
  States step(const Tensor& x, const States& state, const Tensor& timespan, bool training) const override {
    States next;
    int64_t at = 0;
    for (const auto& cell : cells) {
      const int64_t size = cell->outputs();
      next.push_back(cell->step(next.empty() ? x : next.back(), {slice(state[0], 1, at, at + size)}, timespan, training)[0]);
      at += size;
    }
    return {concat(next, 1)};
  }
  Tensor output(const Tensor& state) const override {  // the outputs are the first neurons of the last layer
    const int64_t start = states()[0] - cells.back()->outputs();
    return slice(state, -1, start, start + outputs());
  }
  void visit(Visitor& v) override {
    for (size_t i = 0; i < cells.size(); ++i) v("layer_" + std::to_string(i), *cells[i]);
  }
  void prune() override {
    for (const auto& cell : cells) cell->prune();
  }
  std::vector<std::unique_ptr<CfcCell>> cells;
};

struct LtcCell : Cell {
  LtcCell(const CircuitArgs& a, const Wiring& wiring)
      : Cell(wiring.inputs(), wiring.outputs(), {wiring.units()}, true),
        unfolds(a.ode_unfolds ? a.ode_unfolds : 6),
        epsilon(a.epsilon),
        implicit(a.implicit_constraints) {
    const int64_t n = wiring.units(), m = wiring.inputs(), out = wiring.outputs();
    gleak = uniform_between({n}, 0.001, 1), vleak = uniform_between({n}, -0.2, 0.2), cm = uniform_between({n}, 0.4, 0.6);
    neurons = Synapses({n, n}, wiring.synapses()), sensory = Synapses({m, n}, wiring.sensory());
    auto constant = [](int64_t size, double value) {
      Tensor t = full({size}, value);
      t.eval();
      return t;
    };
    if (a.input_mapping != "none") input_w = constant(m, 1);
    if (a.input_mapping == "affine") input_b = constant(m, 0);
    if (a.output_mapping != "none") output_w = constant(out, 1);
    if (a.output_mapping == "affine") output_b = constant(out, 0);
    LtcCell::prune();
  }

  // Semi-implicit steps, in a form that leaves v exactly unchanged when no time has passed.
  States step(const Tensor& x, const States& state, const Tensor& timespan, bool) const override {
    Tensor v = state[0], in = x;
    if (input_w.defined()) in = in * input_w;
    if (input_b.defined()) in = in + input_b;
    const Tensor dt = or_one(timespan) / double(unfolds), g = positive(gleak), c = maximum(positive(cm), 1e-12);
    const auto [sensory_current, sensory_conductance] = currents(sensory, in);
    const Tensor current = g * vleak + sensory_current, conductance = g + sensory_conductance + epsilon;
    for (int64_t i = 0; i < unfolds; ++i) {
      const auto [from, conducted] = currents(neurons, v);
      const Tensor total = conductance + conducted;
      v = v + dt * (current + from - v * total) / (c + dt * total);
    }
    return {v};
  }
  Tensor output(const Tensor& state) const override {
    Tensor y = slice(state, -1, 0, outputs());
    if (output_w.defined()) y = y * output_w;
    return output_b.defined() ? y + output_b : y;
  }
  void visit(Visitor& v) override {
    const ParameterRule rule = implicit ? ParameterRule::trained : ParameterRule::nonnegative;
    v("gleak", gleak, rule)("vleak", vleak)("cm", cm, rule);
    neurons.visit(v, "", rule), sensory.visit(v, "sensory_", rule);
    v("input_w", input_w)("input_b", input_b)("output_w", output_w)("output_b", output_b);
  }
  void prune() override { neurons.prune(), sensory.prune(); }

 private:
  struct Synapses {  // [sources, targets] each
    Synapses() = default;
    Synapses(const Shape& shape, const std::vector<int8_t>& signs)
        : w(uniform_between(shape, 0.001, 1)),
          sigma(uniform_between(shape, 3, 8)),
          mu(uniform_between(shape, 0.3, 0.8)),
          erev(float_tensor(shape, signs, false)),
          mask(float_tensor(shape, signs, true)) {}
    void visit(Visitor& v, const std::string& prefix, ParameterRule rule) {
      v(prefix + "sigma", sigma)(prefix + "mu", mu)(prefix + "w", w, rule)(prefix + "erev", erev)(prefix + "sparsity_mask", mask, ParameterRule::constant);
    }
    void prune() {
      for (Tensor* t : {&w, &sigma, &mu, &erev}) keep_present(*t, mask);
      count();
    }
    // The most synapses of a target and of a source; 0 if so many exist that sums over all sources are as fast.
    void count() {
      const int64_t sources = mask.shape()[0], targets = mask.shape()[1];
      std::vector<int64_t> into(size_t(targets), 0), out_of(size_t(sources), 0);
      const std::vector<float> present = mask.to_floats();
      for (int64_t i = 0; i < sources * targets; ++i)
        if (present[size_t(i)] > 0) ++into[size_t(i % targets)], ++out_of[size_t(i / targets)];
      lanes = *std::max_element(into.begin(), into.end()), out_lanes = *std::max_element(out_of.begin(), out_of.end());
      if (sources < 16 || lanes * 2 > sources) lanes = 0;
    }
    Tensor w, sigma, mu, erev, mask;
    int64_t lanes = 0, out_lanes = 0;
  };

  // Synapses as lists: the sources of each target [lanes, targets] for the sums and the gradients of parameters, the targets of each source [lanes, sources]
  // for the gradient of the state, so that no step scatters. Present ones come first; what fills a list up has no weight.
  struct Lists {
    explicit Lists(const Synapses& s)
        : source(slice(argsort(s.mask, 0, true), 0, 0, s.lanes)),
          target(slice(argsort(s.mask, 1, true), 1, 0, s.out_lanes)),
          targets(transpose(target)),
          sigma(by_target(s.sigma)),
          mu(by_target(s.mu)) {}
    Tensor by_target(const Tensor& dense) const { return gather(dense, source, 0); }
    Tensor by_source(const Tensor& dense) const { return stop_gradient(transpose(gather(dense, target, 1))); }
    // The sum over sources of weight · sigmoid(sigma · (pre - mu)). The sums of sigma's and mu's gradients lack the factors that are the same for all rows and
    // steps; two operands that only carry gradients have these factors, so they are multiplied once, after the loop.
    Tensor sums(const Tensor& pre, const Tensor& weight, const Synapses& s) const {
      auto forward = [](const std::vector<Tensor>& in) { return sum(sigmoid(in[4] * (take(in[0], in[1], 1) - in[5])) * in[3], {1}); };
      auto backward = [](const std::vector<Tensor>& in, const Tensor&, const Tensor& d) {
        auto slope = [](const Tensor& active) { return active * (1 - active); };
        const Tensor wide = reshape(d, {d.shape()[0], 1, d.shape()[1]});
        const Tensor x = take(in[0], in[1], 1) - in[5], active = sigmoid(in[4] * x), steep = slope(active);
        const Tensor own = reshape(in[0], {d.shape()[0], 1, in[0].shape()[1]}) - in[10];
        return std::vector<Tensor>{sum(take(d, in[2], 1) * in[8] * slope(sigmoid(in[9] * own)), {1}),
                                   {},
                                   {},
                                   sum(wide * active, {0}),
                                   {},
                                   {},
                                   sum(wide * (steep * x), {0}),
                                   sum(wide * steep, {0}),
                                   {},
                                   {},
                                   {}};
      };
      // What fills a list up passes no gradient on: then nothing need be summed for it.
      const Tensor w = by_target(weight) * stop_gradient(by_target(s.mask)), still = stop_gradient(w), steepness = stop_gradient(sigma);
      return custom(forward, backward,
                    {pre, source, targets, w, steepness, stop_gradient(mu), sigma * still, mu * (-still * steepness), by_source(weight * s.sigma),
                     by_source(s.sigma), by_source(s.mu)});
    }
    Tensor source, target, targets, sigma, mu;
  };
  Tensor positive(const Tensor& x) const { return implicit ? softplus(x) : x; }
  // The sums over sources of w · erev and of w, each times the synapse's activation.
  std::pair<Tensor, Tensor> currents(const Synapses& s, const Tensor& pre) const {
    const Tensor w = positive(s.w) * s.mask;
    if (s.lanes == 0) {
      const Tensor active = sigmoid(s.sigma * (reshape(pre, {pre.shape()[0], pre.shape()[1], 1}) - s.mu));
      return {sum(active * (w * s.erev), {1}), sum(active * w, {1})};
    }
    const Lists list(s);
    return {list.sums(pre, w * s.erev, s), list.sums(pre, w, s)};
  }

  int64_t unfolds;
  double epsilon;
  bool implicit;
  Tensor gleak, vleak, cm, input_w, input_b, output_w, output_b;
  Synapses neurons, sensory;
};

// dy/dt = tanh(Wx + Uy + b) - leak · y: eltc (leak 1), node (0) and ctrnn (1 / tau, learned).
struct OdeCell : Cell {
  OdeCell(const CircuitArgs& a, int64_t inputs, int64_t units, int64_t outputs, const Wiring* wiring)
      : Cell(inputs, outputs, {units}, true),
        leak(a.cell != "node"),
        solver(a.solver.empty() ? a.cell == "ctrnn" ? "euler" : "rk4" : a.solver),
        unfolds(a.ode_unfolds      ? a.ode_unfolds
                : a.cell == "eltc" ? 4
                                   : 6),
        input_map(xavier(inputs, units)),
        recurrent_map(xavier(units, units, false)) {
    if (a.cell == "ctrnn") tau = full({units}, std::log(std::expm1(1.0))), tau.eval();  // softplus gives 1
    if (!wiring) return;
    sparsity_mask = float_tensor({units, units}, wiring->synapses(), true), sensory_sparsity_mask = float_tensor({inputs, units}, wiring->sensory(), true);
    OdeCell::prune();
  }
  States step(const Tensor& x, const States& state, const Tensor& timespan, bool) const override {
    auto masked = [](const Tensor& weight, const Tensor& mask) { return mask.defined() ? weight * transpose(mask) : weight; };
    const Tensor drive = linear(x, masked(input_map.weight, sensory_sparsity_mask), input_map.bias), recurrent = masked(recurrent_map.weight, sparsity_mask);
    const Tensor rate = tau.defined() ? 1 / softplus(tau) : Tensor(1.0), dt = or_one(timespan) / double(unfolds);
    auto target = [&](const Tensor& y) { return tanh(drive + linear(y, recurrent)); };
    auto slope = [&](const Tensor& y) { return leak ? target(y) - y * rate : target(y); };
    Tensor y = state[0];
    for (int64_t i = 0; i < unfolds; ++i) {
      if (solver == "euler") {
        y = y + dt * slope(y);
      } else if (solver == "rk4") {
        const Tensor k1 = slope(y), k2 = slope(y + dt * 0.5 * k1), k3 = slope(y + dt * 0.5 * k2), k4 = slope(y + dt * k3);
        y = y + dt * (1.0 / 6) * (k1 + 2 * (k2 + k3) + k4);
      } else {
        y = leak ? (y + dt * target(y)) / (1 + dt * rate) : y + dt * target(y);
      }
    }
    return {y};
  }
  Tensor output(const Tensor& state) const override { return slice(state, -1, 0, outputs()); }
  void visit(Visitor& v) override {
    v("input_map", input_map)("recurrent_map", recurrent_map)("tau", tau);
    v("sparsity_mask", sparsity_mask, ParameterRule::constant)("sensory_sparsity_mask", sensory_sparsity_mask, ParameterRule::constant);
  }
  void prune() override {
    if (!sparsity_mask.defined()) return;
    keep_present(input_map.weight, transpose(sensory_sparsity_mask)), keep_present(recurrent_map.weight, transpose(sparsity_mask));
  }
  bool leak;
  std::string solver;
  int64_t unfolds;
  Linear input_map, recurrent_map;
  Tensor tau, sparsity_mask, sensory_sparsity_mask;
};

// A GRU whose units keep traces with 8 time constants, 1 to 10^3.5, and choose among them. Mozer et al., "Discrete Event, Continuous Time RNNs".
struct CtGruCell : Cell {
  static constexpr int64_t kScales = 8;
  CtGruCell(int64_t inputs, int64_t units)
      : Cell(inputs, units, {units * kScales}, true),
        retrieve(xavier(inputs + units, units * kScales)),
        detect(xavier(inputs + units, units)),
        store(xavier(inputs + units, units * kScales)) {}
  States step(const Tensor& x, const States& state, const Tensor& timespan, bool) const override {
    const Shape traces_shape = {x.shape()[0], outputs(), kScales};
    const Tensor traces = reshape(state[0], traces_shape), h = sum(traces, {2});
    const Tensor log_tau = iota({kScales}, 0, DType::f32) * (0.5 * std::log(10.0));
    auto weights = [&](const Linear& l) { return softmax(-square(reshape(joined(x, h, l), traces_shape) - log_tau)); };
    const Tensor read = sum(weights(retrieve) * traces, {2});
    const Tensor event = reshape(tanh(joined(x, read, detect)), {x.shape()[0], outputs(), 1}), s = weights(store);
    Tensor elapsed = or_one(timespan);
    if (elapsed.shape().rank() == 2) elapsed = reshape(elapsed, {x.shape()[0], 1, 1});
    return {reshape(((1 - s) * traces + s * event) * exp(-(elapsed * exp(-log_tau))), state[0].shape())};
  }
  Tensor output(const Tensor& state) const override {
    Shape shape = state.shape();
    shape[shape.rank() - 1] = outputs(), shape.push_back(kScales);
    return sum(reshape(state, shape), {-1});
  }
  void visit(Visitor& v) override { v("retrieve", retrieve)("detect", detect)("store", store); }
  Linear retrieve, detect, store;
};

struct LstmCell : Cell {
  LstmCell(int64_t inputs, int64_t units)
      : Cell(inputs, units, {units, units}, false), input_map(xavier(inputs, 4 * units)), recurrent_map(xavier(units, 4 * units, false)) {
    input_map.bias = uniform_between({4 * units}, -0.1, 0.1);
    recurrent_map.weight = orthogonal(4 * units, units);
  }
  States step(const Tensor& x, const States& state, const Tensor&, bool) const override {
    const Tensor z = linear(x, input_map.weight, input_map.bias) + linear(state[0], recurrent_map.weight);
    const Tensor c = state[1] * sigmoid(part(z, 2, 4) + 1) + tanh(part(z, 0, 4)) * sigmoid(part(z, 1, 4));
    return {tanh(c) * sigmoid(part(z, 3, 4)), c};
  }
  void visit(Visitor& v) override { v("input_map", input_map)("recurrent_map", recurrent_map); }
  Linear input_map, recurrent_map;
};

// As torch.nn.GRUCell, including names and initial values.
struct GruCell : Cell {
  GruCell(int64_t inputs, int64_t units) : Cell(inputs, units, {units}, false) {
    const double bound = 1 / std::sqrt(double(units));
    weight_ih = uniform_between({3 * units, inputs}, -bound, bound), weight_hh = uniform_between({3 * units, units}, -bound, bound);
    bias_ih = uniform_between({3 * units}, -bound, bound), bias_hh = uniform_between({3 * units}, -bound, bound);
  }
  States step(const Tensor& x, const States& state, const Tensor&, bool) const override {
    const Tensor a = linear(x, weight_ih, bias_ih), b = linear(state[0], weight_hh, bias_hh);
    const Tensor reset = sigmoid(part(a, 0, 3) + part(b, 0, 3)), keep = sigmoid(part(a, 1, 3) + part(b, 1, 3));
    const Tensor next = tanh(part(a, 2, 3) + reset * part(b, 2, 3));
    return {next + keep * (state[0] - next)};
  }
  void visit(Visitor& v) override { v("weight_ih", weight_ih)("weight_hh", weight_hh)("bias_ih", bias_ih)("bias_hh", bias_hh); }
  Tensor weight_ih, weight_hh, bias_ih, bias_hh;
};

// Feng et al., "Were RNNs All We Needed?": gate and candidate depend on x alone, so the loop has no products.
struct MinGruCell : Cell {
  MinGruCell(int64_t inputs, int64_t units) : Cell(inputs, units, {units}, false), linear_z(inputs, units), linear_h(inputs, units) {}
  States step(const Tensor& x, const States& state, const Tensor&, bool) const override {
    const Tensor z = sigmoid(linear_z(x));
    return {(1 - z) * state[0] + z * linear_h(x)};
  }
  void visit(Visitor& v) override { v("linear_z", linear_z)("linear_h", linear_h); }
  Linear linear_z, linear_h;
};

// Options that a cell does not have, and values that no cell has.
void check_cell(const CircuitArgs& a, bool wired) {
  const CircuitArgs standard;
  auto one_of = [](const char* what, const std::string& word, std::vector<std::string_view> words) {
    if (std::find(words.begin(), words.end(), word) == words.end())
      fail(ErrorCode::usage, "[circuit] {} \"{}\" does not exist; {}", what, word, nearest_hint(word, words, ""));
  };
  one_of("cell", a.cell, {"cfc", "ltc", "eltc", "ctrnn", "ctgru", "node", "lstm", "gru", "mingru"});
  one_of("mode", a.mode, {"default", "pure", "no_gate"});
  one_of("activation", a.activation, {"lecun_tanh", "tanh", "relu", "silu", "gelu"});
  for (const std::string& mapping : {a.input_mapping, a.output_mapping}) one_of("mapping", mapping, {"affine", "linear", "none"});
  if (!a.solver.empty()) one_of("solver", a.solver, {"euler", "rk4", "semi_implicit"});
  auto refuse = [&](bool given, const std::string& what) {
    if (given) fail(ErrorCode::usage, "[circuit] {} has no effect on a {}{} cell; leave it out", what, wired ? "wired " : "", a.cell);
  };
  const bool cfc = a.cell == "cfc", ltc = a.cell == "ltc", ode = a.cell == "eltc" || a.cell == "ctrnn" || a.cell == "node";
  refuse(a.mode != standard.mode && !cfc, "mode " + a.mode);
  const bool backbone = cfc && !wired;
  refuse(a.activation != standard.activation && !backbone, "activation " + a.activation);
  refuse(a.backbone_units && !backbone, fmt::format("backbone_units {}", a.backbone_units.value_or(0)));
  refuse(a.backbone_layers && !backbone, fmt::format("backbone_layers {}", a.backbone_layers.value_or(0)));
  refuse(a.backbone_dropout && !backbone, fmt::format("backbone_dropout {}", a.backbone_dropout.value_or(0)));
  refuse(!a.solver.empty() && !ode, "solver " + a.solver);
  refuse(a.ode_unfolds && !ode && !ltc, fmt::format("ode_unfolds {}", a.ode_unfolds));
  refuse(a.epsilon != standard.epsilon && !ltc, fmt::format("epsilon {}", a.epsilon));
  refuse(!a.implicit_constraints && !ltc, "implicit_constraints false");
  refuse(a.input_mapping != standard.input_mapping && !ltc, "input_mapping " + a.input_mapping);
  refuse(a.output_mapping != standard.output_mapping && !ltc, "output_mapping " + a.output_mapping);
  refuse(wired && !cfc && !ltc && !ode, "a wiring");
  auto check = [](bool good, const char* what, double value, const char* range) {
    if (!good) fail(ErrorCode::value, "[circuit] {} is {}; use {}", what, value, range);
  };
  check(a.ode_unfolds >= 0 && a.ode_unfolds <= 1000, "ode_unfolds", double(a.ode_unfolds), "1 to 1000");
  check(a.epsilon > 0 && a.epsilon < 1, "epsilon", a.epsilon, "a number between 0 and 1");
  check(a.backbone_units.value_or(1) >= 1, "backbone_units", double(a.backbone_units.value_or(1)), "at least 1");
  check(a.backbone_layers.value_or(0) >= 0 && a.backbone_layers.value_or(0) <= 1000, "backbone_layers", double(a.backbone_layers.value_or(0)), "0 to 1000");
  const double dropout = a.backbone_dropout.value_or(0);
  check(dropout >= 0 && dropout < 1, "backbone_dropout", dropout, "at least 0 and below 1");
  if (dropout > 0 && a.backbone_layers.value_or(1) < 2)
    fail(ErrorCode::usage, "[circuit] backbone_dropout {} has no effect with backbone_layers {}: it follows every layer but the first", dropout,
         a.backbone_layers.value_or(1));
}

}  // namespace

std::unique_ptr<Cell> make_cell(const CircuitArgs& a, int64_t inputs, const Wiring* wiring) {
  check_cell(a, wiring);
  if (wiring && !wiring->built()) fail(ErrorCode::usage, "[circuit] a wiring of {} units is not built; call build(inputs) first", wiring->units());
  if (wiring && wiring->inputs() != inputs)
    fail(ErrorCode::shape, "[circuit] the wiring was built for {} inputs, but the layer has {}", wiring->inputs(), inputs);
  const int64_t units = wiring ? wiring->units() : a.units;
  if (wiring && a.units && a.units != units) fail(ErrorCode::value, "[circuit] units is {}, but the wiring has {}; leave units out", a.units, units);
  if (inputs < 1 || units < 1) fail(ErrorCode::value, "[circuit] inputs {} and units {} must be at least 1", inputs, units);
  if (a.cell == "cfc" && wiring) return std::make_unique<WiredCfcCell>(a, *wiring);
  if (a.cell == "cfc") return std::make_unique<CfcCell>(a, inputs, units, a.backbone_layers.value_or(1));
  if (a.cell == "lstm") return std::make_unique<LstmCell>(inputs, units);
  if (a.cell == "gru") return std::make_unique<GruCell>(inputs, units);
  if (a.cell == "mingru") return std::make_unique<MinGruCell>(inputs, units);
  if (a.cell == "ctgru") return std::make_unique<CtGruCell>(inputs, units);
  if (a.cell != "ltc") return std::make_unique<OdeCell>(a, inputs, units, wiring ? wiring->outputs() : units, wiring);
  if (wiring) return std::make_unique<LtcCell>(a, *wiring);
  Wiring full = Wiring::fully_connected(units);
  full.build(inputs);
  return std::make_unique<LtcCell>(a, full);
}

}  // namespace ridge
