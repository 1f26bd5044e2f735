// Data sets that are made on the spot. Each is published or documented (docs/circuits.md), and where theory knows the smallest error, so does the data set.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/error.h"
#include "base/nearest.h"
#include "base/rng.h"
#include "data/series.h"

namespace ridge {
namespace {

constexpr int64_t kEndless = int64_t(1) << 40;  // sequences that never repeat in practice

// Random numbers of one sequence: 65,536 words each.
class SeriesDraws {
 public:
  SeriesDraws(uint64_t seed, SeriesPart part, int64_t number) : key_{seed, 0x5e41e5, uint32_t(part)}, at_(uint64_t(number) << 16) {}
  double uniform(double low = 0, double high = 1) { return low + (high - low) * (double(random_word(key_, at_++)) + 0.5) * 0x1p-32; }
  int64_t below(int64_t n) { return std::min(n - 1, int64_t(uniform() * double(n))); }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  RandomKey key_;
  uint64_t at_;
};

class Generated : public Series {
 public:
  Generated(uint64_t seed, SeriesForm form, int64_t train = kEndless, int64_t validation = 500, int64_t test = 2000)
      : seed_(seed), counts_{train, validation, test} {
    form_ = std::move(form);
  }
  int64_t count(SeriesPart part) const override { return counts_[size_t(part)]; }
  std::string identity() const override { return fmt::format("{} of {} steps, seed {}", form_.name, form_.length, seed_); }

 protected:
  SeriesDraws draws(SeriesPart part, int64_t number) const { return {seed_, part, number}; }
  // Row t of a matrix with as many columns as there are inputs or outputs.
  float* in(SeriesSample& s, int64_t t) const { return s.x.data() + size_t(t) * form_.inputs.size(); }
  // A forecast of all inputs for the next step.
  void forecast(SeriesSample& s, int64_t t, std::span<const double> now, std::span<const double> next, bool counts = true) const {
    for (size_t i = 0; i < now.size(); ++i) {
      const size_t at = size_t(t) * now.size() + i;
      s.x[at] = s.last[at] = float(now[i]), s.y[at] = float(next[i]), s.weight[at] = counts ? 1.0f : 0.0f;
    }
  }

 private:
  uint64_t seed_;
  std::array<int64_t, 3> counts_;
};

// A stream of 2 … pad - 1 fair bits of which only the changes are shown, with the time since the one before; the class is the parity of the ones.
class Xor final : public Generated {
 public:
  Xor(uint64_t seed, int64_t pad)
      : Generated(seed, {"xor", "parity of the ones in a stream of bits, seen as events", pad, {"bit"}, {"even", "odd"}, true, true, {}}, 100'000, 2000,
                  10'000) {}
  void fill(SeriesPart part, int64_t number, SeriesSample& s) const override {
    s.clear();
    SeriesDraws d = draws(part, number);
    const int64_t pad = form_.length, bits = 2 + d.below(pad - 2);
    int64_t events = 0, elapsed = 0, ones = 0, before = -1;
    auto event = [&](int64_t bit) {
      s.x[size_t(events)] = float(bit), s.dt[size_t(events)] = float(elapsed) / float(pad), s.last[size_t(events)] = float(bit);
      ++events, elapsed = 0;
    };
    for (int64_t i = 0; i < bits; ++i) {
      const int64_t bit = d.below(2);
      ++elapsed, ones += bit;
      if (bit != before) event(bit);
      before = bit;
    }
    if (elapsed > 0) event(before);
    s.label[size_t(events - 1)] = ones % 2;
  }
  std::optional<double> best() const override { return 1.0; }
  std::string best_reason() const override { return "the events determine the class"; }
};

// Unit amplitude, no noise, period 8 to 32 steps, any phase.
class Sine final : public Generated {
 public:
  Sine(uint64_t seed, int64_t length)
      : Generated(seed, {"sine", "the next value of a sine of unknown period and phase", length, {"value"}, {"value"}, false, false, {0}}) {}
  void fill(SeriesPart part, int64_t number, SeriesSample& s) const override {
    s.clear();
    SeriesDraws d = draws(part, number);
    const double rate = 2 * std::numbers::pi / d.uniform(8, 32), phase = d.uniform(0, 2 * std::numbers::pi);
    constexpr int64_t kNeeded = 3;  // values determine a sine of known amplitude
    for (int64_t t = 0; t < form_.length; ++t) {
      const double now = std::sin(rate * double(t) + phase), next = std::sin(rate * double(t + 1) + phase);
      forecast(s, t, {&now, 1}, {&next, 1}, t + 1 >= kNeeded), s.dt[size_t(t)] = 1;
    }
  }
  std::optional<double> best() const override { return 0.0; }
  std::string best_reason() const override { return "three values determine the sine"; }
};

// x'' + 2 damping x' + (frequency² + damping²) x = 0, observed with noise at random times. A step covers the time until the next observation, which is
// predicted.
class Irregular final : public Generated {
 public:
  static constexpr double kFrequency = std::numbers::pi / 2, kDamping = 0.05, kNoise = 0.3;
  Irregular(uint64_t seed, int64_t length)
      : Generated(seed, {"irregular", "the next noisy observation of a damped oscillator at a random time", length, {"value"}, {"value"}, false, true, {0}}) {}

  void fill(SeriesPart part, int64_t number, SeriesSample& s) const override {
    s.clear();
    SeriesDraws d = draws(part, number);
    std::array<double, 2> state = {d.normal(), kFrequency * d.normal()};  // value and speed
    double now = state[0] + kNoise * d.normal();
    for (int64_t t = 0; t < form_.length; ++t) {
      const double span = std::min(3.0, 0.05 - 0.5 * std::log(d.uniform()));
      const std::array<double, 4> m = transition(span);
      state = {m[0] * state[0] + m[1] * state[1], m[2] * state[0] + m[3] * state[1]};
      const double next = state[0] + kNoise * d.normal();
      forecast(s, t, {&now, 1}, {&next, 1}), s.dt[size_t(t)] = float(span);
      now = next;
    }
  }

  // A Kalman filter that knows the oscillator, its prior and the noise is the best predictor.
  std::optional<double> best() const override {
    SeriesSample s(form_);
    double sum = 0, steps = 0;
    for (int64_t n = 0; n < count(SeriesPart::test); ++n) {
      fill(SeriesPart::test, n, s);
      double x = 0, v = 0, pxx = 1, pxv = 0, pvv = kFrequency * kFrequency;
      for (int64_t t = 0; t < form_.length; ++t) {
        const double total = pxx + kNoise * kNoise, error = s.x[size_t(t)] - x;
        const double gx = pxx / total, gv = pxv / total;
        x += gx * error, v += gv * error;
        pvv -= gv * pxv, pxv -= gx * pxv, pxx -= gx * pxx;
        const auto [a, b, c, e] = transition(s.dt[size_t(t)]);
        const double nx = a * x + b * v, nv = c * x + e * v;
        const double qxx = a * a * pxx + 2 * a * b * pxv + b * b * pvv, qxv = a * c * pxx + (a * e + b * c) * pxv + b * e * pvv,
                     qvv = c * c * pxx + 2 * c * e * pxv + e * e * pvv;
        x = nx, v = nv, pxx = qxx, pxv = qxv, pvv = qvv;
        sum += (s.y[size_t(t)] - x) * (s.y[size_t(t)] - x), steps += 1;
      }
    }
    return sum / steps;
  }
  std::string best_reason() const override { return "a Kalman filter that knows the oscillator"; }

 private:
  static std::array<double, 4> transition(double t) {
    const double fade = std::exp(-kDamping * t), c = std::cos(kFrequency * t), s = std::sin(kFrequency * t) / kFrequency;
    return {fade * (c + kDamping * s), fade * s, -fade * s * (kFrequency * kFrequency + kDamping * kDamping), fade * (c - kDamping * s)};
  }
};

template <size_t N, class Slope>
void runge_kutta(std::array<double, N>& state, double h, const Slope& slope) {
  auto moved = [&](const std::array<double, N>& by, double part) {
    std::array<double, N> out = state;
    for (size_t i = 0; i < N; ++i) out[i] += part * h * by[i];
    return out;
  };
  const auto k1 = slope(state), k2 = slope(moved(k1, 0.5)), k3 = slope(moved(k2, 0.5)), k4 = slope(moved(k3, 1));
  for (size_t i = 0; i < N; ++i) state[i] += h / 6 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]);
}

// Lorenz's attractor (10, 28, 8/3), a step of 0.1.
class Lorenz final : public Generated {
 public:
  Lorenz(uint64_t seed, int64_t length)
      : Generated(seed, {"lorenz", "the next point of the Lorenz system, 0.1 later", length, {"x", "y", "z"}, {"x", "y", "z"}, false, false, {0, 1, 2}},
                  kEndless, 200, 500) {}
  void fill(SeriesPart part, int64_t number, SeriesSample& s) const override {
    s.clear();
    SeriesDraws d = draws(part, number);
    std::array<double, 3> p = {d.uniform(-10, 10), d.uniform(-10, 10), d.uniform(15, 35)};
    auto scaled = [&] { return std::array<double, 3>{p[0] / 8, p[1] / 9, (p[2] - 24) / 9}; };  // about unit variance
    auto advance = [&] {
      for (int i = 0; i < 10; ++i)
        runge_kutta(p, 0.01, [](const std::array<double, 3>& q) -> std::array<double, 3> {
          return {10 * (q[1] - q[0]), q[0] * (28 - q[2]) - q[1], q[0] * q[1] - 8.0 / 3 * q[2]};
        });
    };
    for (int i = 0; i < 50; ++i) advance();  // to the attractor
    std::array<double, 3> now = scaled();
    for (int64_t t = 0; t < form_.length; ++t) {
      advance();
      const std::array<double, 3> next = scaled();
      forecast(s, t, now, next), s.dt[size_t(t)] = 1;
      now = next;
    }
  }
};

// The sum of the two marked numbers, one in each half. Always answering 1 gives 1/6.
class Adding final : public Generated {
 public:
  Adding(uint64_t seed, int64_t length)
      : Generated(seed, {"adding", "the sum of the two marked numbers", length, {"value", "marked"}, {"sum"}, false, false, {}}, kEndless, 1000, 2000) {}
  void fill(SeriesPart part, int64_t number, SeriesSample& s) const override {
    s.clear();
    SeriesDraws d = draws(part, number);
    const int64_t length = form_.length, first = d.below(length / 2), second = length / 2 + d.below(length - length / 2);
    for (int64_t t = 0; t < length; ++t) {
      in(s, t)[0] = float(d.uniform()), in(s, t)[1] = t == first || t == second ? 1.0f : 0.0f, s.dt[size_t(t)] = 1;
      s.last[size_t(t)] = in(s, t)[0];
    }
    s.y[size_t(length - 1)] = in(s, first)[0] + in(s, second)[0], s.weight[size_t(length - 1)] = 1;
  }
  std::optional<double> best() const override { return 0.0; }
  std::string best_reason() const override { return "the inputs determine the sum"; }
};

// A quarter of the steps shows symbols, half is a pause, and in the last quarter they are to be repeated in order. Two more inputs say which is on.
class Copy final : public Generated {
 public:
  static constexpr int64_t kSymbols = 4;
  Copy(uint64_t seed, int64_t length)
      : Generated(seed,
                  {"copy", "symbols shown before a pause, in order", length, {"a", "b", "c", "d", "pause", "recall"}, {"a", "b", "c", "d"}, true, false, {}}) {}
  void fill(SeriesPart part, int64_t number, SeriesSample& s) const override {
    s.clear();
    SeriesDraws d = draws(part, number);
    const int64_t length = form_.length, shown = length / 4;
    std::vector<int64_t> symbols(size_t(shown), 0);
    for (int64_t t = 0; t < length; ++t) {
      s.dt[size_t(t)] = 1;
      if (t < shown)
        in(s, t)[symbols[size_t(t)] = d.below(kSymbols)] = 1;
      else
        in(s, t)[kSymbols + (t >= length - shown)] = 1;
      if (t >= length - shown) s.label[size_t(t)] = symbols[size_t(t - (length - shown))], s.last[size_t(t)] = float(symbols.back());
    }
  }
  std::optional<double> best() const override { return 1.0; }
  std::string best_reason() const override { return "the symbols are shown"; }
};

// A hanging chain of four pendula, driven at its top joint at an unknown pace. A tenth of the frames is missing; a step covers the frames since the one before.
class Walker final : public Generated {
 public:
  static constexpr size_t kLinks = 4;
  Walker(uint64_t seed, int64_t length) : Generated(seed, form_of(length), kEndless, 200, 500) {}
  void fill(SeriesPart part, int64_t number, SeriesSample& s) const override {
    s.clear();
    SeriesDraws d = draws(part, number);
    State state = {};
    for (size_t i = 0; i < kLinks; ++i) state[i] = d.uniform(-1, 1), state[kLinks + i] = d.uniform(-2, 2);
    const double pace = d.uniform(2, 5), phase = d.uniform(0, 2 * std::numbers::pi), strength = d.uniform(2, 6);
    constexpr int kSubsteps = 4;
    constexpr double kFrame = 0.08;
    double time = 0;
    auto advance = [&] {
      for (int i = 0; i < kSubsteps; ++i, time += kFrame / kSubsteps)
        runge_kutta(state, kFrame / kSubsteps, [&](const State& q) { return slope(q, strength * std::sin(pace * time + phase)); });
    };
    auto scaled = [&] {
      State out = state;
      for (size_t i = 0; i < kLinks; ++i) out[kLinks + i] /= 5;
      return out;
    };
    for (int i = 0; i < 10; ++i) advance();
    int64_t elapsed = 0;
    for (int64_t t = 0; t < form_.length;) {
      const State now = scaled();
      advance();
      ++elapsed;
      if (d.uniform() < 0.1) continue;
      forecast(s, t, now, scaled()), s.dt[size_t(t)] = float(elapsed);
      elapsed = 0, ++t;
    }
  }

 private:
  using State = std::array<double, 2 * kLinks>;  // angles from the vertical, then their speeds

  static SeriesForm form_of(int64_t length) {
    SeriesForm f{"walker", "the next frame of a driven chain of four pendula, with frames missing", length, {}, {}, false, true, {}};
    for (const char* what : {"angle", "speed"})
      for (size_t i = 0; i < kLinks; ++i) f.inputs.push_back(fmt::format("{}{}", what, i + 1)), f.feedback.push_back(int64_t(f.feedback.size()));
    f.outputs = f.inputs;
    return f;
  }

  // Links of unit mass at their ends: Lagrange's equations, solved for the accelerations.
  static State slope(const State& q, double torque) {
    constexpr double kLength = 0.5, kGravity = 9.81, kFriction = 0.3;
    std::array<double, kLinks> sine, cosine;
    for (size_t i = 0; i < kLinks; ++i) sine[i] = std::sin(q[i]), cosine[i] = std::cos(q[i]);
    std::array<std::array<double, kLinks + 1>, kLinks> m = {};
    for (size_t i = 0; i < kLinks; ++i) {
      auto below = [](size_t a, size_t b) { return double(kLinks - std::max(a, b)); };  // masses carried by both
      double force = -below(i, i) * kGravity / kLength * sine[i] - kFriction / (kLength * kLength) * q[kLinks + i];
      if (i == 0) force += torque / (kLength * kLength);
      for (size_t j = 0; j < kLinks; ++j) {
        m[i][j] = below(i, j) * (cosine[i] * cosine[j] + sine[i] * sine[j]);
        force -= below(i, j) * (sine[i] * cosine[j] - cosine[i] * sine[j]) * q[kLinks + j] * q[kLinks + j];
      }
      m[i][kLinks] = force;
    }
    for (size_t i = 0; i < kLinks; ++i)  // the matrix is positive definite: no pivots
      for (size_t r = i + 1; r < kLinks; ++r) {
        const double part = m[r][i] / m[i][i];
        for (size_t c = i; c <= kLinks; ++c) m[r][c] -= part * m[i][c];
      }
    State out = {};
    for (size_t i = kLinks; i-- > 0;) {
      double rest = m[i][kLinks];
      for (size_t c = i + 1; c < kLinks; ++c) rest -= m[i][c] * out[kLinks + c];
      out[kLinks + i] = rest / m[i][i], out[i] = q[kLinks + i];
    }
    return out;
  }
};

template <class Set>
std::unique_ptr<Series> make_generated(uint64_t seed, int64_t length) {
  return std::make_unique<Set>(seed, length);
}

struct GeneratedRow {
  const char* name;
  int64_t length, least;
  std::unique_ptr<Series> (*make)(uint64_t seed, int64_t length);
};
constexpr GeneratedRow kGenerated[] = {
    {"xor", 32, 3, make_generated<Xor>},       {"sine", 64, 4, make_generated<Sine>},      {"irregular", 48, 2, make_generated<Irregular>},
    {"lorenz", 48, 2, make_generated<Lorenz>}, {"adding", 100, 2, make_generated<Adding>}, {"copy", 20, 4, make_generated<Copy>},
    {"walker", 64, 2, make_generated<Walker>}};

}  // namespace

std::vector<std::string> generated_names() {
  std::vector<std::string> names;
  for (const GeneratedRow& row : kGenerated) names.emplace_back(row.name);
  return names;
}

bool is_generated(const std::string& name) {
  return std::any_of(std::begin(kGenerated), std::end(kGenerated), [&](const GeneratedRow& row) { return row.name == name; });
}

std::unique_ptr<Series> generate_series(const std::string& name, int64_t length, uint64_t seed) {
  constexpr int64_t kMost = 4096;  // so that no sequence needs more random numbers than it has
  std::vector<std::string_view> names;
  for (const GeneratedRow& row : kGenerated) {
    names.emplace_back(row.name);
    if (row.name != name) continue;
    if (length != 0 && (length < row.least || length > kMost))
      fail(ErrorCode::usage, "[data] length={} is not possible for {}; give {} to {}", length, name, row.least, kMost);
    return row.make(seed, length ? length : row.length);
  }
  fail(ErrorCode::usage, "[data] there is no generated data set '{}'; {}", name, nearest_hint(name, names));
}

}  // namespace ridge
