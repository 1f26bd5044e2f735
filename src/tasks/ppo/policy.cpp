#include "tasks/ppo/policy.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace ridge {
namespace {

constexpr uint32_t kActionStream = 16;  // Instances use the streams below

// Rows (or columns, if there are fewer) of length `gain` at right angles to each other, by Gram-Schmidt on normal draws.
void make_orthogonal(Tensor& weight, double gain) {
  const int64_t rows = weight.shape()[0], columns = weight.size() / rows, few = std::min(rows, columns), many = std::max(rows, columns);
  const std::vector<float> drawn = normal({few, many}).to_floats();
  std::vector<double> v(drawn.begin(), drawn.end());
  auto row = [&](int64_t i) { return v.data() + i * many; };
  auto dot = [&](const double* a, const double* b) {
    double sum = 0;
    for (int64_t k = 0; k < many; ++k) sum += a[k] * b[k];
    return sum;
  };
  for (int64_t i = 0; i < few; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      const double along = dot(row(i), row(j));
      for (int64_t k = 0; k < many; ++k) row(i)[k] -= along * row(j)[k];
    }
    const double length = std::sqrt(dot(row(i), row(i)));
    for (int64_t k = 0; k < many; ++k) row(i)[k] /= length;
  }
  auto* to = static_cast<float*>(weight.mutable_data());
  for (int64_t i = 0; i < few; ++i)
    for (int64_t k = 0; k < many; ++k) to[rows <= columns ? i * columns + k : k * columns + i] = float(gain * row(i)[k]);
}

template <class Layer>
Layer orthogonal(Layer layer, double gain) {
  make_orthogonal(layer.weight, gain);
  layer.bias = Tensor::zeros(layer.bias.shape());
  return layer;
}

const double kRootTwo = std::numbers::sqrt2;

}  // namespace

std::string PolicyArgs::json() const {
  return nlohmann::ordered_json{{"network", network},          {"hidden", hidden},     {"layers", layers},
                                {"activation", activation},    {"separate", separate}, {"memory", memory},
                                {"memory_units", memory_units}}
      .dump();
}

PolicyArgs PolicyArgs::from_json(std::string_view text) {
  const auto j = nlohmann::json::parse(text);
  PolicyArgs a;
  a.network = j.at("network"), a.hidden = j.at("hidden"), a.layers = j.at("layers"), a.activation = j.at("activation");
  a.separate = j.at("separate"), a.memory = j.at("memory"), a.memory_units = j.at("memory_units");
  return a;
}

std::string PolicyArgs::describe() const {
  std::string text = network == "mlp" ? fmt::format("mlp {}x{} {}", hidden, layers, activation) : network;
  if (memory != "none") text += fmt::format(", {} of {} units", memory, memory_units);
  return text;
}

Policy::Policy(PolicyArgs args) : args_(std::move(args)) {
  const Shape& seen = args_.observation;
  const bool pictures = seen.rank() == 3;
  if ((args_.network == "mlp") == pictures)
    fail(ErrorCode::usage, "[ppo] network={} does not fit observations of shape {}: {}", args_.network, to_string(seen),
         pictures ? "pictures need network=nature or network=small" : "use network=mlp");
  int64_t width = 0;
  for (int i = 0; i < (args_.separate ? 2 : 1); ++i) {
    Tower& t = towers_.emplace_back();
    if (pictures) {
      int64_t channels = seen[0], height = seen[1], wide = seen[2];
      auto add = [&](int64_t out, int64_t window, int64_t stride) {
        if (height < window || wide < window)
          fail(ErrorCode::usage, "[ppo] network={} needs larger pictures than {}x{}: a window of {} does not fit into {}x{}", args_.network, seen[1], seen[2],
               window, height, wide);
        t.convolutions.push_back(orthogonal(Conv2d(channels, out, window, {{stride, stride}, {}, {}, 1}), kRootTwo));
        channels = out, height = (height - window) / stride + 1, wide = (wide - window) / stride + 1;
      };
      const bool nature = args_.network == "nature", fine = !nature && height < 64;  // either way 84 or 42 pixels become 20 places
      add(nature ? 32 : 16, fine ? 4 : 8, fine ? 2 : 4);
      nature ? (add(64, 4, 2), add(64, 3, 1)) : add(16, 4, 2);
      width = nature ? 512 : 128;
      t.layers.push_back(orthogonal(Linear(channels * height * wide, width), kRootTwo));
    } else {
      width = seen.numel();
      for (int64_t k = 0; k < args_.layers; ++k, width = args_.hidden) t.layers.push_back(orthogonal(Linear(width, args_.hidden), kRootTwo));
    }
  }
  if (args_.memory != "none") {
    if (args_.separate) fail(ErrorCode::usage, "[ppo] separate=true and memory={} exclude each other: the memory is shared", args_.memory);
    CircuitArgs c;
    c.cell = args_.memory, c.inputs = width, c.units = args_.memory_units;
    if (c.cell == "ltc") c.wiring = {Wiring::fully_connected(args_.memory_units)};
    memory_.emplace(std::move(c));
    width = memory_->outputs();
  }
  const ActionSpace& actions = args_.actions;
  int64_t outputs = 0;
  for (int64_t n : actions.choices) outputs += n;
  if (actions.kind == ActionSpace::Kind::continuous) outputs = actions.components(), log_deviation_ = Tensor::zeros({outputs});
  actor_.emplace(orthogonal(Linear(width, outputs), 0.01)), critic_.emplace(orthogonal(Linear(width, 1), 1));
}

void Policy::visit(Visitor& v) {
  v("towers", towers_);
  if (memory_) v("memory", *memory_);
  v("actor", *actor_)("critic", *critic_);
  if (log_deviation_.defined()) v("log_deviation", log_deviation_);
}

std::vector<Tensor> Policy::zero_state(int64_t rows) const { return memory_ ? memory_->zero_state(rows) : std::vector<Tensor>(); }

Tensor Policy::features(const Tensor& observation, size_t tower) const {
  const Tower& t = towers_[std::min(tower, towers_.size() - 1)];
  Tensor x = observation.dtype() == DType::u8 ? cast(observation, DType::f32) * (1.0 / 255) : observation;
  const int64_t rows = x.shape()[0];
  for (const Conv2d& c : t.convolutions) x = relu(c(x));
  x = reshape(x, {rows, -1});
  const bool tanhs = t.convolutions.empty() && args_.activation == "tanh";
  for (const Linear& l : t.layers) x = tanhs ? tanh(l(x)) : relu(l(x));
  return x;
}

Policy::Output Policy::heads(const Tensor& actor, const Tensor& critic) const {
  const int64_t rows = actor.shape()[0];
  return {(*actor_)(actor), reshape((*critic_)(critic), {rows})};
}

Policy::Output Policy::step(const Tensor& observation, const std::vector<Tensor>& state) const {
  const Tensor x = features(observation, 0);
  if (!memory_) return heads(x, towers_.size() > 1 ? features(observation, 1) : x);
  const CircuitOutput next = memory_->step(x, state);
  Output out = heads(next.output, next.output);
  out.state = next.state;
  return out;
}

Policy::Output Policy::sequence(const Tensor& observation, const std::vector<Tensor>& state, const Tensor& reset) const {
  const int64_t rows = observation.shape()[0], time = observation.shape()[1];
  Shape each = observation.shape();
  std::vector<int64_t> flat = {rows * time};
  for (int i = 2; i < each.rank(); ++i) flat.push_back(each[i]);
  const Tensor all = reshape(observation, Shape(flat)), x = features(all, 0);
  if (!memory_) return heads(x, towers_.size() > 1 ? features(all, 1) : x);
  const int64_t width = x.shape()[1];
  const ScanOutput out = scan(
      [&](const std::vector<Tensor>& carry, const std::vector<Tensor>& now) {
        std::vector<Tensor> kept;
        for (const Tensor& c : carry) kept.push_back(c * (1 - reshape(now[1], {rows, 1})));
        const CircuitOutput next = memory_->step(now[0], kept);
        return ScanOutput{next.state, {next.output}};
      },
      state, {permute(reshape(x, {rows, time, width}), {1, 0, 2}), permute(reset, {1, 0})});
  const Tensor y = reshape(permute(out.outputs[0], {1, 0, 2}), {rows * time, memory_->outputs()});
  return heads(y, y);
}

std::vector<Tensor> Policy::logits_by_component(const Tensor& distribution) const {
  const std::vector<int64_t>& sizes = args_.actions.choices;
  return sizes.size() == 1 ? std::vector<Tensor>{distribution} : split(distribution, sizes, -1);
}

namespace {

Tensor column(const Tensor& x, int64_t i) { return reshape(slice(x, 1, i, i + 1), {x.shape()[0]}); }  // [rows, n] to [rows]

// One number per component: i64 [rows], or [rows, n] if there are several components.
Tensor joined(const std::vector<Tensor>& components, const ActionSpace& space) {
  return space.kind == ActionSpace::Kind::discrete ? components[0] : stack(components, 1);
}

}  // namespace

Tensor Policy::sample(const Tensor& distribution, const Tensor& counter, const Tensor& instance) const {
  const int64_t components = args_.actions.components();
  auto draw = [&](int64_t i) { return uniform_at(counter, instance, kActionStream + uint32_t(i)); };  // a stream per number: lanes are the instances
  std::vector<Tensor> chosen;
  if (args_.actions.kind == ActionSpace::Kind::continuous) {
    for (int64_t i = 0; i < components; ++i)  // Box-Muller; 1 - u is never 0
      chosen.push_back(sqrt(log(1 - draw(2 * i)) * -2.0) * cos(draw(2 * i + 1) * (2 * std::numbers::pi)));
    return distribution + exp(log_deviation_) * stack(chosen, 1);
  }
  const std::vector<Tensor> logits = logits_by_component(distribution);
  for (int64_t i = 0; i < components; ++i) {  // the first class whose cumulative probability exceeds the draw
    const Tensor p = softmax(logits[size_t(i)], -1), u = draw(i);
    const int64_t classes = p.shape()[1];
    Tensor below, index = cast(u * 0.0, DType::i64);
    for (int64_t k = 0; k + 1 < classes; ++k) {
      below = k == 0 ? column(p, 0) : below + column(p, k);
      index = index + cast(u >= below, DType::i64);
    }
    chosen.push_back(index);
  }
  return joined(chosen, args_.actions);
}

Tensor Policy::most_likely(const Tensor& distribution) const {
  if (args_.actions.kind == ActionSpace::Kind::continuous) return distribution;
  std::vector<Tensor> best;
  for (const Tensor& logits : logits_by_component(distribution)) best.push_back(argmax(logits, -1));
  return joined(best, args_.actions);
}

Tensor Policy::for_environment(const Tensor& action) const {
  if (args_.actions.kind != ActionSpace::Kind::continuous) return action;
  std::vector<Tensor> scaled;
  for (int64_t i = 0; i < args_.actions.components(); ++i) {
    const double low = args_.actions.low[size_t(i)], high = args_.actions.high[size_t(i)];
    scaled.push_back(clamp(column(action, i), -1, 1) * ((high - low) / 2) + (high + low) / 2);
  }
  return stack(scaled, 1);
}

Tensor Policy::log_probability(const Tensor& distribution, const Tensor& action) const {
  if (args_.actions.kind == ActionSpace::Kind::continuous) {
    const Tensor distance = (action - distribution) * exp(-log_deviation_);
    return sum(square(distance) * -0.5 - log_deviation_ - 0.5 * std::log(2 * std::numbers::pi), {1});
  }
  const std::vector<Tensor> logits = logits_by_component(distribution);
  Tensor total;
  for (size_t i = 0; i < logits.size(); ++i) {
    const Tensor chosen = logits.size() == 1 && args_.actions.kind == ActionSpace::Kind::discrete ? action : column(action, int64_t(i));
    const Tensor log_p = sum(log_softmax(logits[i], -1) * one_hot(chosen, logits[i].shape()[1]), {1});
    total = total.defined() ? total + log_p : log_p;
  }
  return total;
}

Tensor Policy::entropy(const Tensor& distribution) const {
  const int64_t rows = distribution.shape()[0];
  if (args_.actions.kind == ActionSpace::Kind::continuous)
    return expand(reshape(sum(log_deviation_ + 0.5 * std::log(2 * std::numbers::pi * std::numbers::e)), {1}), {rows});
  Tensor total;
  for (const Tensor& logits : logits_by_component(distribution)) {
    const Tensor log_p = log_softmax(logits, -1), h = -sum(log_p * exp(log_p), {1});
    total = total.defined() ? total + h : h;
  }
  return total;
}

}  // namespace ridge
