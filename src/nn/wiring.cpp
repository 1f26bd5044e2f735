#include "ridge/wiring.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "base/error.h"
#include "base/rng.h"

namespace ridge {
namespace {

enum WiringStream : uint32_t { kSynapseDraws = 1, kSensoryDraws = 2 };

// Numbers drawn one after the other, from a stream of their own.
class WiringDraws {
 public:
  WiringDraws(uint64_t seed, WiringStream stream) : key_{seed, 0, stream} {}

  // Uniform from 0 to n - 1. Words that would make some numbers more frequent are skipped.
  uint32_t below(uint32_t n) {
    const uint32_t uneven = -n % n;
    for (;;) {
      const uint64_t wide = uint64_t(random_word(key_, next_++)) * n;
      if (uint32_t(wide) >= uneven) return uint32_t(wide >> 32);
    }
  }
  // +1 is `excitatory` times as likely as -1.
  int polarity(uint32_t excitatory) { return below(1 + excitatory) ? 1 : -1; }

  // Takes `count` of the numbers 0 … n - 1, in ascending order; all subsets are equally likely.
  void choose(int64_t n, int64_t count, const auto& take) {
    for (int64_t i = 0; count > 0; ++i)
      if (count == n - i || int64_t(below(uint32_t(n - i))) < count) take(i), --count;
  }

 private:
  RandomKey key_;
  uint64_t next_ = 0;
};

// Each of `from` draws `fan` of `to`. Those that nobody drew then draw as many of `from` as the others have on average.
void link_layers(WiringDraws& draws, std::span<const int64_t> from, std::span<const int64_t> to, int64_t fan, const auto& put) {
  const int64_t sources = int64_t(from.size()), targets = int64_t(to.size());
  std::vector<bool> drawn(to.size());
  for (int64_t source : from) draws.choose(targets, fan, [&](int64_t i) { put(source, to[size_t(i)], draws.polarity(1)), drawn[size_t(i)] = true; });
  const int64_t mean = std::clamp<int64_t>(sources * fan / targets, 1, sources);
  for (size_t i = 0; i < to.size(); ++i)
    if (!drawn[i]) draws.choose(sources, mean, [&](int64_t j) { put(from[size_t(j)], to[i], draws.polarity(1)); });
}

std::vector<int64_t> numbers_from(int64_t first, int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), first);
  return all;
}

void check_number(std::string_view name, int64_t value, int64_t low, int64_t high, std::string_view why) {
  if (value < low || value > high) fail(ErrorCode::value, "[wiring] {}={} is not a number from {} to {}{}", name, value, low, high, why);
}

void check_sparsity(double sparsity) {
  if (!(sparsity >= 0 && sparsity < 1)) fail(ErrorCode::value, "[wiring] sparsity={} is not at least 0 and less than 1", sparsity);
}

void check_synapse(const char* from, int64_t source, int64_t sources, int64_t target, int64_t units, int polarity) {
  check_number(from, source, 0, sources - 1, "");
  check_number("target", target, 0, units - 1, "");
  if (polarity != 1 && polarity != -1) fail(ErrorCode::value, "[wiring] the polarity is {}; it must be 1 (excitatory) or -1 (inhibitory)", polarity);
}

int64_t kept_pairs(std::string_view what, int64_t pairs, double sparsity) {
  const int64_t kept = std::llround(double(pairs) * (1 - sparsity));
  if (kept == 0) fail(ErrorCode::value, "[wiring] sparsity={} leaves none of the {} synapses {}; choose a smaller one", sparsity, pairs, what);
  return kept;
}

}  // namespace

Wiring::Wiring(int64_t units, int64_t outputs) : units_(units), outputs_(outputs) {
  check_number("units", units, 1, kMost, "");
  check_number("outputs", outputs, 1, units, ", the number of units");
  synapses_.resize(size_t(units * units));
  layers_ = {numbers_from(0, units)};
}

Wiring Wiring::fully_connected(int64_t units, int64_t outputs, bool self_connections, uint64_t seed) {
  Wiring wiring(units, outputs == 0 ? units : outputs);
  wiring.kind_ = Kind::full, wiring.seed_ = seed;
  WiringDraws draws(seed, kSynapseDraws);
  for (int64_t source = 0; source < units; ++source)
    for (int64_t target = 0; target < units; ++target)
      if (source != target || self_connections) wiring.add_synapse(source, target, draws.polarity(2));
  return wiring;
}

Wiring Wiring::random(int64_t units, int64_t outputs, double sparsity, uint64_t seed) {
  Wiring wiring(units, outputs);
  check_sparsity(sparsity);
  wiring.kind_ = Kind::random, wiring.seed_ = seed, wiring.sparsity_ = sparsity;
  WiringDraws draws(seed, kSynapseDraws);
  draws.choose(units * units, kept_pairs("between neurons", units * units, sparsity),
               [&](int64_t pair) { wiring.add_synapse(pair / units, pair % units, draws.polarity(2)); });
  return wiring;
}

Wiring Wiring::ncp(const NcpArgs& args) {
  check_number("inter", args.inter, 1, kMost, "");
  check_number("command", args.command, 1, kMost, "");
  check_number("motor", args.motor, 1, kMost, "");
  check_number("sensory_fanout", args.sensory_fanout, 1, args.inter, ", the number of inter neurons");
  check_number("inter_fanout", args.inter_fanout, 1, args.command, ", the number of command neurons");
  check_number("motor_fanin", args.motor_fanin, 1, args.command, ", the number of command neurons");
  check_number("recurrent_command", args.recurrent_command, 0, args.command * args.command, ", the number of pairs of command neurons");
  Wiring wiring(args.motor + args.command + args.inter, args.motor);
  wiring.kind_ = Kind::ncp, wiring.seed_ = args.seed, wiring.inter_ = args.inter, wiring.sensory_fanout_ = args.sensory_fanout;
  const std::vector<int64_t> motor = numbers_from(0, args.motor), command = numbers_from(args.motor, args.command),
                             inter = numbers_from(args.motor + args.command, args.inter);
  WiringDraws draws(args.seed, kSynapseDraws);
  link_layers(draws, inter, command, args.inter_fanout, [&](int64_t a, int64_t b, int polarity) { wiring.add_synapse(a, b, polarity); });
  draws.choose(args.command * args.command, args.recurrent_command,
               [&](int64_t pair) { wiring.add_synapse(command[size_t(pair / args.command)], command[size_t(pair % args.command)], draws.polarity(1)); });
  link_layers(draws, motor, command, args.motor_fanin, [&](int64_t a, int64_t b, int polarity) { wiring.add_synapse(b, a, polarity); });
  wiring.layers_ = {inter, command, motor};
  return wiring;
}

Wiring Wiring::auto_ncp(int64_t units, int64_t outputs, double sparsity, uint64_t seed) {
  check_number("units", units, 4, kMost, "");
  check_number("outputs", outputs, 1, units - 3, fmt::format(": {} units need room for at least 3 hidden neurons", units));
  check_sparsity(sparsity);
  // 10 · (1 - 0.8) is slightly less than 2 in floating point, and must not be rounded down to 1.
  auto share = [&](int64_t count) { return std::max<int64_t>(int64_t(double(count) * (1 - sparsity) + 1e-9), 1); };
  NcpArgs args;
  args.motor = outputs, args.seed = seed;
  args.command = std::max<int64_t>((units - outputs) * 2 / 5, 1);
  args.inter = units - outputs - args.command;
  args.sensory_fanout = share(args.inter);
  args.inter_fanout = args.motor_fanin = share(args.command);
  args.recurrent_command = std::min(share(2 * args.command), args.command * args.command);
  return ncp(args);
}

void Wiring::add_synapse(int64_t source, int64_t target, int polarity) {
  check_synapse("source", source, units_, target, units_, polarity);
  synapses_[size_t(source * units_ + target)] = int8_t(polarity);
}

void Wiring::add_sensory_synapse(int64_t input, int64_t target, int polarity) {
  if (!built()) fail(ErrorCode::value, "[wiring] a synapse from input {} needs the number of inputs; call build(inputs) first", input);
  check_synapse("input", input, inputs_, target, units_, polarity);
  sensory_[size_t(input * units_ + target)] = int8_t(polarity);
}

void Wiring::set_layers(std::vector<std::vector<int64_t>> layers) {
  std::vector<bool> seen(static_cast<size_t>(units_));
  int64_t count = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].empty()) fail(ErrorCode::value, "[wiring] layer {} has no neurons", i);
    for (int64_t neuron : layers[i]) {
      check_number("neuron", neuron, 0, units_ - 1, fmt::format(" (in layer {})", i));
      if (seen[size_t(neuron)]) fail(ErrorCode::value, "[wiring] neuron {} occurs in two layers, or twice in layer {}", neuron, i);
      seen[size_t(neuron)] = true, ++count;
    }
  }
  if (count != units_) fail(ErrorCode::value, "[wiring] the layers have {} of the {} neurons; each must be in one", count, units_);
  layers_ = std::move(layers);
}

void Wiring::build(int64_t inputs) {
  if (built() && inputs == inputs_) return;
  if (built()) fail(ErrorCode::value, "[wiring] this wiring was built for {} inputs and cannot be used with {}; make another one", inputs_, inputs);
  check_number("inputs", inputs, 1, kMost, "");
  const int64_t pairs = inputs * units_;
  const int64_t kept = kind_ == Kind::random ? kept_pairs("from inputs", pairs, sparsity_) : pairs;
  sensory_.resize(size_t(pairs));
  inputs_ = inputs;
  WiringDraws draws(seed_, kSensoryDraws);
  auto put = [&](int64_t input, int64_t target, int polarity) { add_sensory_synapse(input, target, polarity); };
  if (kind_ == Kind::ncp)
    link_layers(draws, numbers_from(0, inputs), numbers_from(units_ - inter_, inter_), sensory_fanout_, put);
  else if (kind_ != Kind::given)
    draws.choose(pairs, kept, [&](int64_t pair) { put(pair / units_, pair % units_, draws.polarity(2)); });
}

const std::vector<int8_t>& Wiring::sensory() const {
  if (!built()) fail(ErrorCode::value, "[wiring] this wiring of {} units is not built; call build(inputs) first", units_);
  return sensory_;
}

const std::vector<int64_t>& Wiring::layer(int64_t i) const { return check_number("layer", i, 0, layers() - 1, ""), layers_[size_t(i)]; }

int64_t Wiring::synapse_count() const { return units_ * units_ - std::count(synapses_.begin(), synapses_.end(), 0); }
int64_t Wiring::sensory_synapse_count() const { return inputs_ * units_ - std::count(sensory().begin(), sensory().end(), 0); }

}  // namespace ridge
