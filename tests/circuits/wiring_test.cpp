// Wirings: their formulas, their statistics over many seeds, their mistakes and their files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ridge/wiring.h"
#include "support/errors.h"
#include "support/mutate.h"

namespace ridge::test {
namespace {

struct Signs {
  int64_t excitatory = 0, inhibitory = 0;
  int64_t all() const { return excitatory + inhibitory; }
  double share() const { return double(inhibitory) / double(all()); }
};

Signs signs(const std::vector<int8_t>& matrix) {
  Signs found;
  for (int8_t s : matrix) {
    EXPECT_TRUE(s >= -1 && s <= 1) << int(s);
    found.excitatory += s > 0, found.inhibitory += s < 0;
  }
  return found;
}

// Synapses from one layer to another; layer -1 is the inputs.
int64_t between(const Wiring& w, int64_t from, int64_t to) {
  int64_t count = 0;
  std::vector<int64_t> sources;
  if (from < 0)
    sources.resize(size_t(w.inputs())), std::iota(sources.begin(), sources.end(), 0);
  else
    sources = w.layer(from);
  for (int64_t s : sources)
    for (int64_t t : w.layer(to)) count += (from < 0 ? w.sensory() : w.synapses())[size_t(s * w.units() + t)] != 0;
  return count;
}

TEST(Wiring, FullyConnectedHasEverySynapse) {
  for (int64_t units : {1, 2, 7, 31}) {
    Wiring w = Wiring::fully_connected(units, 1);
    EXPECT_FALSE(w.built());
    w.build(3);
    EXPECT_EQ(w.synapse_count(), units * units);
    EXPECT_EQ(w.sensory_synapse_count(), 3 * units);
    EXPECT_EQ(w.layers(), 1);
    EXPECT_EQ(int64_t(w.layer(0).size()), units);
    EXPECT_EQ(Wiring::fully_connected(units).outputs(), units);
    const Wiring without = Wiring::fully_connected(units, 1, false);
    EXPECT_EQ(without.synapse_count(), units * (units - 1));
    for (int64_t i = 0; i < units; ++i) EXPECT_EQ(without.synapses()[size_t(i * units + i)], 0);
  }
}

// Three standard deviations of a share of n draws, so that a wrong ratio fails and the fixed seeds pass.
double spread(double share, int64_t n) { return 3 * std::sqrt(share * (1 - share) / double(n)); }

TEST(Wiring, PolaritiesHaveTheirRatios) {
  Signs full, sensory, random, ncp;
  auto add = [](Signs& sum, const std::vector<int8_t>& matrix) {
    const Signs s = signs(matrix);
    sum.excitatory += s.excitatory, sum.inhibitory += s.inhibitory;
  };
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Wiring f = Wiring::fully_connected(20, 4, true, seed), r = Wiring::random(20, 4, 0.5, seed), n = Wiring::auto_ncp(40, 4, 0.5, seed);
    for (Wiring* w : {&f, &r, &n}) w->build(5);
    add(full, f.synapses()), add(sensory, f.sensory());
    add(random, r.synapses()), add(random, r.sensory());
    add(ncp, n.synapses()), add(ncp, n.sensory());
  }
  for (const Signs& s : {full, sensory, random}) EXPECT_NEAR(s.share(), 1.0 / 3, spread(1.0 / 3, s.all()));
  EXPECT_NEAR(ncp.share(), 0.5, spread(0.5, ncp.all()));
}

TEST(Wiring, IsAFunctionOfItsSeed) {
  for (const char* words : {"full:9,2", "random:9,2,0.5", "auto:20,3", "ncp:7,5,2"}) {
    auto make = [&](const char* more, int64_t inputs) {
      Wiring w = Wiring::parse(std::string(words) + more);
      w.build(inputs);
      return w;
    };
    const Wiring a = make("", 6);
    EXPECT_EQ(make("", 6).json(), a.json()) << words;
    EXPECT_NE(make(",seed=5", 6).json(), a.json()) << words;
    EXPECT_EQ(make("", 2).synapses(), a.synapses()) << words << ": synapses between neurons depend on the number of inputs";
  }
}

TEST(Wiring, AutoNcpFollowsItsFormula) {
  struct Row {
    int64_t units, outputs;
    double sparsity;
    int64_t inter, command, sensory_fanout, inter_fanout, recurrent;  // inter_fanout = motor_fanin
  };
  for (const Row& row : {Row{32, 4, 0.5, 17, 11, 8, 5, 11}, Row{20, 2, 0.0, 11, 7, 11, 7, 14}, Row{60, 6, 0.75, 33, 21, 8, 5, 10},
                         Row{19, 3, 0.8, 10, 6, 2, 1, 2}, Row{4, 1, 0.0, 2, 1, 2, 1, 1}, Row{28, 1, 0.99, 17, 10, 1, 1, 1}}) {
    Wiring w = Wiring::auto_ncp(row.units, row.outputs, row.sparsity);
    w.build(200);  // so many inputs that every inter neuron is drawn, and needs no repair
    ASSERT_EQ(w.layers(), 3);
    EXPECT_EQ(int64_t(w.layer(0).size()), row.inter);
    EXPECT_EQ(int64_t(w.layer(1).size()), row.command);
    EXPECT_EQ(w.layer(2).front(), 0) << "motor neurons are the first";
    EXPECT_EQ(int64_t(w.layer(2).size()), row.outputs);
    EXPECT_EQ(between(w, -1, 0), 200 * row.sensory_fanout);
    EXPECT_GE(between(w, 0, 1), row.inter * row.inter_fanout);
    EXPECT_EQ(between(w, 1, 1), row.recurrent);
    EXPECT_GE(between(w, 1, 2), row.outputs * row.inter_fanout);
    EXPECT_EQ(w.synapse_count(), between(w, 0, 1) + between(w, 1, 1) + between(w, 1, 2));
    EXPECT_EQ(w.sensory_synapse_count(), between(w, -1, 0));
  }
}

int64_t fan_out(const std::vector<int8_t>& matrix, int64_t units, int64_t source) {
  return units - std::count(matrix.begin() + source * units, matrix.begin() + (source + 1) * units, 0);
}
int64_t fan_in(const std::vector<int8_t>& matrix, int64_t units, int64_t target) {
  int64_t count = 0;
  for (size_t i = size_t(target); i < matrix.size(); i += size_t(units)) count += matrix[i] != 0;
  return count;
}

TEST(Wiring, NcpHasItsFanOuts) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Wiring w =
        Wiring::ncp({.inter = 12, .command = 9, .motor = 4, .sensory_fanout = 5, .inter_fanout = 3, .recurrent_command = 20, .motor_fanin = 4, .seed = seed});
    w.build(40);
    EXPECT_EQ(w.units(), 25);
    EXPECT_EQ(w.outputs(), 4);
    EXPECT_EQ(between(w, 1, 1), 20) << "no synapse is drawn twice";
    for (int64_t i = 0; i < w.inputs(); ++i) EXPECT_EQ(fan_out(w.sensory(), w.units(), i), 5);
    for (int64_t i : w.layer(0)) EXPECT_GE(fan_out(w.synapses(), w.units(), i), 3);
    for (int64_t i : w.layer(2)) {
      EXPECT_GE(fan_in(w.synapses(), w.units(), i), 4);
      EXPECT_EQ(fan_out(w.synapses(), w.units(), i), 0);
    }
    EXPECT_EQ(between(w, -1, 1) + between(w, -1, 2) + between(w, 0, 0) + between(w, 0, 2) + between(w, 1, 0), 0) << "layers are not skipped";
  }
}

TEST(Wiring, RandomKeepsExactlyItsShare) {
  for (double sparsity : {0.0, 0.1, 0.5, 0.77, 0.97})
    for (uint64_t seed = 0; seed < 20; ++seed) {
      Wiring w = Wiring::random(13, 3, sparsity, seed);
      w.build(7);
      EXPECT_EQ(w.synapse_count(), std::llround(169 * (1 - sparsity)));
      EXPECT_EQ(w.sensory_synapse_count(), std::llround(91 * (1 - sparsity)));
    }
}

TEST(Wiring, DrawsEverySynapseEquallyOften) {
  constexpr int kSeeds = 2000;
  std::vector<int> synapses(25), sensory(15), sensory_ncp(18);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Wiring r = Wiring::random(5, 2, 0.6, seed);
    Wiring n =
        Wiring::ncp({.inter = 6, .command = 2, .motor = 1, .sensory_fanout = 2, .inter_fanout = 1, .recurrent_command = 0, .motor_fanin = 1, .seed = seed});
    r.build(3), n.build(30);
    for (size_t i = 0; i < synapses.size(); ++i) synapses[i] += r.synapses()[i] != 0;
    for (size_t i = 0; i < sensory.size(); ++i) sensory[i] += r.sensory()[i] != 0;
    for (size_t i = 0; i < sensory_ncp.size(); ++i) sensory_ncp[i] += n.sensory()[i / 6 * 9 + 3 + i % 6] != 0;
  }
  auto even = [&](const std::vector<int>& counts, double share) {  // 4 standard deviations: 58 counts
    for (size_t i = 0; i < counts.size(); ++i) EXPECT_NEAR(double(counts[i]) / kSeeds, share, 4.0 / 3 * spread(share, kSeeds)) << i;
  };
  even(synapses, 0.4), even(sensory, 0.4), even(sensory_ncp, 1.0 / 3);
}

TEST(Wiring, NcpReachesEveryNeuronWithEverySeed) {
  const char* kCircuits[] = {"auto:20,3,0.9",     "auto:4,1,0.99",     "auto:60,6,0.95",     "ncp:2,9,1,1,1,0,1",  // fewer inter than command neurons
                             "ncp:9,2,5,1,1,0,1", "ncp:1,1,1,1,1,1,1", "ncp:30,2,1,1,1,4,1", "ncp:3,40,2,3,1,0,1"};
  for (const char* words : kCircuits)
    for (int seed = 0; seed < 100; ++seed)
      for (int64_t inputs : {1, 5}) {
        Wiring w = Wiring::parse(words + std::string(",seed=") + std::to_string(seed));
        w.build(inputs);
        const WiringStatistics s = statistics(w);
        EXPECT_TRUE(s.unreachable.empty() && s.without_effect.empty()) << words << " seed " << seed;
        for (int64_t i = 0; i < inputs; ++i) EXPECT_GE(fan_out(w.sensory(), w.units(), i), 1);
      }
}

// A command neuron that no inter neuron drew gets the mean fan-in of its layer, 9 · 1 / 2, which may exceed the number of command neurons.
TEST(Wiring, RepairsWithTheMeanFanIn) {
  int repaired = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const Wiring w =
        Wiring::ncp({.inter = 9, .command = 2, .motor = 1, .sensory_fanout = 1, .inter_fanout = 1, .recurrent_command = 0, .motor_fanin = 1, .seed = seed});
    const int64_t a = fan_in(w.synapses(), w.units(), 1), b = fan_in(w.synapses(), w.units(), 2);
    if (a + b == 9) continue;  // every inter neuron drew one
    ++repaired;
    EXPECT_EQ(std::max(a, b), 9);
    EXPECT_EQ(std::min(a, b), 4);
  }
  EXPECT_NEAR(repaired, 2000.0 / 256, 10);
}

TEST(Wiring, HandMadeStatistics) {
  Wiring w(7, 1);  // 6 → 5 → 4 → 5, 4 → 0, 3 → 3, 0 → 2, 1 alone
  w.build(2);
  for (auto [a, b] : {std::pair(6, 5), {5, 4}, {4, 5}, {4, 0}, {3, 3}, {0, 2}}) w.add_synapse(a, b, a == 4 ? -1 : 1);
  w.add_sensory_synapse(0, 6, 1), w.add_sensory_synapse(1, 6, -1);
  const WiringStatistics s = statistics(w);
  EXPECT_EQ(s.components, (std::vector<int64_t>{2, 1, 1, 1, 1, 1}));
  EXPECT_EQ(s.unreachable, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(s.without_effect, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(s.in_degrees, (std::vector<int64_t>{1, 0, 1, 1, 1, 2, 2}));
  EXPECT_EQ(s.out_degrees, (std::vector<int64_t>{1, 0, 0, 1, 2, 1, 1}));
  EXPECT_EQ(s.longest_path, 4);                                                           // 6 5 4 0 2
  EXPECT_DOUBLE_EQ(s.mean_path, double(1 + 2 + 3 + 4 + 1 + 2 + 3 + 1 + 1 + 2 + 1) / 11);  // from 6, 5, 4, 0
  EXPECT_DOUBLE_EQ(s.sparsity, 1 - 6.0 / 49);
  EXPECT_DOUBLE_EQ(s.sensory_sparsity, 1 - 2.0 / 14);
  ASSERT_EQ(s.blocks.size(), 4u);
  EXPECT_EQ(s.blocks[0].from + s.blocks[0].to, "inputshidden");
  EXPECT_EQ(s.blocks[1].excitatory, 3);  // hidden to hidden
  EXPECT_EQ(s.blocks[1].inhibitory, 1);
  EXPECT_EQ(s.blocks[1].pairs, 36);
  EXPECT_EQ(s.blocks[2].from + s.blocks[2].to, "hiddenoutputs");
  EXPECT_EQ(s.blocks[3].from + s.blocks[3].to, "outputshidden");
  w.set_layers({{6, 5}, {4, 3, 2, 1}, {0}});
  EXPECT_EQ(statistics(w).blocks[0].to, "inter");
}

TEST(Wiring, StatisticsAgreeWithAllPairs) {
  for (int64_t n : {1, 2, 31, 63, 64, 65, 130}) {
    Wiring w = Wiring::random(n, 1, n < 10 ? 0.0 : 1 - 1.3 / double(n), 7);
    w.build(1);
    const int64_t kFar = 1 << 20;
    std::vector<int64_t> far(size_t(n * n), kFar);
    for (int64_t i = 0; i < n * n; ++i)
      if (i / n == i % n || w.synapses()[size_t(i)] != 0) far[size_t(i)] = i / n != i % n;
    for (int64_t k = 0; k < n; ++k)
      for (int64_t i = 0; i < n * n; ++i) far[size_t(i)] = std::min(far[size_t(i)], far[size_t(i / n * n + k)] + far[size_t(k * n + i % n)]);
    int64_t pairs = 0, steps = 0, longest = 0, reachable = 0;
    std::vector<int64_t> component(static_cast<size_t>(n));
    for (int64_t i = 0; i < n * n; ++i) {
      const int64_t d = far[size_t(i)], back = far[size_t(i % n * n + i / n)];
      if (d < kFar && d > 0) ++pairs, steps += d, longest = std::max(longest, d);
      component[size_t(i / n)] += d < kFar && back < kFar;
    }
    for (int64_t b = 0; b < n; ++b) {
      bool any = false;
      for (int64_t a = 0; a < n; ++a) any |= w.sensory()[size_t(a)] != 0 && far[size_t(a * n + b)] < kFar;
      reachable += any;
    }
    const WiringStatistics s = statistics(w);
    EXPECT_EQ(s.longest_path, longest) << n;
    EXPECT_DOUBLE_EQ(s.mean_path, pairs ? double(steps) / double(pairs) : 0) << n;
    EXPECT_EQ(int64_t(s.unreachable.size()), n - reachable) << n;
    std::vector<int64_t> sizes;  // a component of k neurons is counted k times
    for (int64_t size : s.components) sizes.insert(sizes.end(), size_t(size), size);
    std::sort(component.rbegin(), component.rend());
    EXPECT_EQ(sizes, component) << n;
  }
}

void expect_refusal(std::string_view words, const auto& act, ErrorCode code = ErrorCode::value) {
  const std::optional<Error> error = error_of(act);
  ASSERT_TRUE(error) << words;
  EXPECT_EQ(error->code(), code) << error->what();
  EXPECT_TRUE(has(error, words)) << error->what() << "\nexpected: " << words;
}

TEST(Wiring, NamesTheWrongNumber) {
  const NcpArgs good{.inter = 6, .command = 5, .motor = 2, .sensory_fanout = 3, .inter_fanout = 2, .recurrent_command = 4, .motor_fanin = 3};
  auto ncp = [&](int64_t NcpArgs::*member, int64_t value) {
    return [=] {
      NcpArgs args = good;
      args.*member = value;
      Wiring::ncp(args);
    };
  };
  Wiring::ncp(good);
  expect_refusal("inter=0 is not a number from 1 to 8192", ncp(&NcpArgs::inter, 0));
  expect_refusal("command=-3 ", ncp(&NcpArgs::command, -3));
  expect_refusal("motor=0 ", ncp(&NcpArgs::motor, 0));
  expect_refusal("units=8203 ", ncp(&NcpArgs::motor, 8192));
  expect_refusal("sensory_fanout=7 is not a number from 1 to 6, the number of inter neurons", ncp(&NcpArgs::sensory_fanout, 7));
  expect_refusal("inter_fanout=6 is not a number from 1 to 5, the number of command neurons", ncp(&NcpArgs::inter_fanout, 6));
  expect_refusal("inter_fanout=0 ", ncp(&NcpArgs::inter_fanout, 0));
  expect_refusal("motor_fanin=6 ", ncp(&NcpArgs::motor_fanin, 6));
  expect_refusal("recurrent_command=26 is not a number from 0 to 25", ncp(&NcpArgs::recurrent_command, 26));
  expect_refusal("outputs=30 is not a number from 1 to 29: 32 units need", [] { Wiring::auto_ncp(32, 30); });
  EXPECT_EQ(Wiring::auto_ncp(32, 29).outputs(), 29);
  expect_refusal("outputs=0 ", [] { Wiring::auto_ncp(32, 0); });
  expect_refusal("units=3 ", [] { Wiring::auto_ncp(3, 1); });
  for (double sparsity : {-0.1, 1.0, 1.5, std::nan(""), double(INFINITY)}) {
    expect_refusal("sparsity=", [&] { Wiring::auto_ncp(32, 4, sparsity); });
    expect_refusal("sparsity=", [&] { Wiring::random(32, 4, sparsity); });
  }
  expect_refusal("sparsity=0.99 leaves none of the 9 synapses", [] { Wiring::random(3, 1, 0.99); });
  expect_refusal("sparsity=0.9 leaves none of the 4 synapses from inputs", [] { Wiring::random(4, 1, 0.9).build(1); });
  expect_refusal("outputs=5 is not a number from 1 to 4", [] { Wiring::fully_connected(4, 5); });
  expect_refusal("units=0 ", [] { Wiring::fully_connected(0); });
  expect_refusal("units=1000000 is not a number from 1 to 8192", [] { Wiring::fully_connected(1000000); });
  expect_refusal("units=9223372036854775807 ", [] { Wiring(INT64_MAX, 1); });

  Wiring w(4, 2);
  expect_refusal("not built", [&] { w.sensory(); });
  expect_refusal("not built", [&] { w.sensory_synapse_count(); });
  expect_refusal("not built", [&] { w.json(); });
  expect_refusal("not built", [&] { statistics(w); });
  expect_refusal("input 0 needs the number of inputs", [&] { w.add_sensory_synapse(0, 1, 1); });
  expect_refusal("inputs=0 ", [&] { w.build(0); });
  expect_refusal("inputs=8193 ", [&] { w.build(8193); });
  w.build(3);
  w.build(3);
  expect_refusal("built for 3 inputs and cannot be used with 5", [&] { w.build(5); });
  expect_refusal("source=4 is not a number from 0 to 3", [&] { w.add_synapse(4, 0, 1); });
  expect_refusal("target=-1 ", [&] { w.add_synapse(0, -1, 1); });
  expect_refusal("input=3 is not a number from 0 to 2", [&] { w.add_sensory_synapse(3, 0, 1); });
  expect_refusal("target=4 ", [&] { w.add_sensory_synapse(0, 4, 1); });
  for (int polarity : {0, 2, -2, 256}) {
    expect_refusal("polarity is " + std::to_string(polarity), [&] { w.add_synapse(0, 1, polarity); });
    expect_refusal("polarity is " + std::to_string(polarity), [&] { w.add_sensory_synapse(0, 1, polarity); });
  }
  expect_refusal("layer=1 is not a number from 0 to 0", [&] { w.layer(1); });
  expect_refusal("layer 1 has no neurons", [&] { w.set_layers({{0, 1, 2, 3}, {}}); });
  expect_refusal("neuron 2 occurs in two layers", [&] { w.set_layers({{0, 1, 2}, {3, 2}}); });
  expect_refusal("neuron=4 ", [&] { w.set_layers({{0, 1, 2, 3, 4}}); });
  expect_refusal("the layers have 3 of the 4 neurons", [&] { w.set_layers({{0, 1}, {3}}); });
  EXPECT_EQ(w.synapse_count() + w.sensory_synapse_count(), 0) << "a refused call changed something";
}

TEST(Wiring, RefusedBuildLeavesItUnbuilt) {
  Wiring w = Wiring::random(4, 1, 0.9);
  EXPECT_TRUE(error_of([&] { w.build(1); }));
  EXPECT_FALSE(w.built());
  w.build(3);
  EXPECT_EQ(w.sensory_synapse_count(), 1);
}

TEST(Wiring, ParsesWords) {
  auto same = [](const char* words, Wiring b) {
    Wiring a = Wiring::parse(words);
    a.build(3), b.build(3);
    EXPECT_EQ(a.json(), b.json()) << words;
  };
  same("full:6", Wiring::fully_connected(6));
  same("full:6,2,0,9", Wiring::fully_connected(6, 2, false, 9));
  same("random:6,2,0.5", Wiring::random(6, 2, 0.5));
  same("random:sparsity=0.5,units=6,outputs=2", Wiring::random(6, 2, 0.5));
  same("auto:20,3", Wiring::auto_ncp(20, 3));
  same("auto:20,3,0.25,seed=18446744073709551615", Wiring::auto_ncp(20, 3, 0.25, UINT64_MAX));
  same("ncp:6,5,2", Wiring::ncp({.inter = 6, .command = 5, .motor = 2, .sensory_fanout = 3, .inter_fanout = 2, .recurrent_command = 5, .motor_fanin = 2}));
  same("ncp:6,5,2,4,3,2,1,8", Wiring::ncp({6, 5, 2, 4, 3, 2, 1, 8}));
  for (const auto& [words, problem] : {std::pair("ful:6", "unknown kind 'ful'; did you mean 'full'?"),
                                       {"", "unknown kind ''"},
                                       {"full", "units is missing"},
                                       {"full:", "units is missing"},
                                       {"full:6,", "outputs='' is not a whole number"},
                                       {"full:x", "units='x' is not a whole number"},
                                       {"full:1e6", "units='1e6' is not a whole number"},
                                       {"full:6,2,1,1,7", "'7' is one number too many"},
                                       {"full:6,2,3", "self=3 "},
                                       {"auto:20", "outputs is missing"},
                                       {"auto:20,18", "outputs=18 "},
                                       {"auto:20,3,x", "sparsity='x' is not a number"},
                                       {"auto:20,3,nan", "sparsity=nan"},
                                       {"auto:20,3,seed=-1", "seed='-1'"},
                                       {"auto:20,unit=3", "unknown name 'unit'"},
                                       {"auto:20,3,seed=1,seed=2", "seed is given twice"},
                                       {"auto:outputs=3,20", "outputs is given twice"},
                                       {"ncp:6,5,2,99", "sensory_fanout=99 "},
                                       {"full:99999999999999999999", "is not a whole number"}})
    expect_refusal(
        problem, [words = words] { Wiring::parse(words); }, ErrorCode::usage);
}

TEST(Wiring, JsonKeepsEverything) {
  Wiring by_hand(3, 1);
  by_hand.build(2);
  by_hand.add_synapse(2, 0, -1), by_hand.add_sensory_synapse(1, 2, 1), by_hand.set_layers({{2, 1}, {0}});
  std::vector<Wiring> all = {by_hand, Wiring(1, 1)};
  for (const char* words : {"full:5,2", "random:70,3,0.9", "auto:20,3", "ncp:6,5,2"}) all.push_back(Wiring::parse(words));
  for (Wiring& w : all) {
    w.build(2);
    const Wiring loaded = Wiring::from_json(w.json());
    EXPECT_EQ(loaded.units(), w.units());
    EXPECT_EQ(loaded.inputs(), w.inputs());
    EXPECT_EQ(loaded.outputs(), w.outputs());
    EXPECT_EQ(loaded.synapses(), w.synapses());
    EXPECT_EQ(loaded.sensory(), w.sensory());
    ASSERT_EQ(loaded.layers(), w.layers());
    for (int64_t i = 0; i < w.layers(); ++i) EXPECT_EQ(loaded.layer(i), w.layer(i));
    EXPECT_EQ(loaded.json(), w.json());
    expect_refusal("built for 2 inputs", [&] { Wiring(loaded).build(3); });
  }
}

constexpr const char* kGood =
    R"({"format": "ridge wiring 1", "units": 3, "inputs": 2, "outputs": 1, "layers": [[2, 1], [0]], "sensory": [[0, 2, 1]], "synapses": [[2, 0, -1]]})";

TEST(Wiring, BadJsonIsRefusedWithItsPlace) {
  Wiring::from_json(kGood);
  auto with = [](std::string_view part, std::string_view other) {
    std::string text = kGood;
    return text.replace(text.find(part), part.size(), other);
  };
  auto refused = [](const std::string& text, std::string_view words) {
    expect_refusal(
        words, [&] { Wiring::from_json(text); }, ErrorCode::io);
  };
  refused("", "this is not JSON: parse error at line 1, column 1");
  refused("{\n  \"units\": 3,,}", "line 2, column 14");
  refused(std::string(100000, '['), "this is not JSON");
  refused("[]", "'format' is missing");
  refused("7", "'format' is missing");
  refused(with("wiring 1", "wiring 2"), "format is '\"ridge wiring 2\"'");
  refused(with("\"outputs\"", "\"output\""), "unknown field 'output'; did you mean 'outputs'?");
  refused(with("\"outputs\": 1, ", ""), "'outputs' is missing");
  refused(with("\"units\": 3", "\"units\": 3, \"units\": 4"), "'units' is given twice");
  refused(with("\"units\": 3", "\"units\": 1000000"), "units is '1000000', not a whole number from 1 to 8192");
  refused(with("\"units\": 3", "\"units\": 18446744073709551615"), "units is '18446744073709551615'");
  refused(with("\"units\": 3", "\"units\": 3.0"), "units is '3.0'");
  refused(with("\"units\": 3", "\"units\": \"3\""), "units is '\"3\"'");
  refused(with("\"inputs\": 2", "\"inputs\": 0"), "inputs is '0', not a whole number from 1 to 8192");
  refused(with("\"outputs\": 1", "\"outputs\": 4"), "outputs is '4', not a whole number from 1 to 3");
  refused(with("[2, 1]", "[2, 3]"), "layers[0][1] is '3', not a whole number from 0 to 2");
  refused(with("[2, 1]", "[2]"), "the layers have 2 of the 3 neurons");
  refused(with("[2, 1]", "[2, 0]"), "neuron 0 occurs in two layers");
  refused(with("[2, 1]", "{}"), "layers[0] is an object, not an array");
  refused(with("[0, 2, 1]", "[2, 2, 1]"), "sensory[0][0] is '2', not a whole number from 0 to 1");
  refused(with("[0, 2, 1]", "[0, 2]"), "sensory[0] has 2 numbers");
  refused(with("[2, 0, -1]", "[2, 0, -1], [1, 1, 0]"), "synapses[1][2] is 0");
  refused(with("[2, 0, -1]", "[2, 0, -1], [2, 0, 1]"), "synapses[1] is a second synapse from 2 to 0");
  refused(with("[2, 0, -1]", "[2, 0, -2]"), "synapses[0][2] is '-2'");
  refused(with("[2, 0, -1]", "2"), "synapses[0] is '2', not an array");
}

TEST(Wiring, AnyJsonIsReadOrRefused) {
  std::mt19937 random(5);
  int read = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string text = mutated(kGood, random);
    std::optional<Wiring> w;
    const std::optional<Error> error = error_of([&] { w = Wiring::from_json(text); });
    ASSERT_EQ(error.has_value(), !w.has_value()) << text;
    if (error) {
      ASSERT_EQ(error->code(), ErrorCode::io) << text << error->what();
    } else {
      ASSERT_EQ(Wiring::from_json(w->json()).json(), w->json()) << text;
      ++read;
    }
  }
  EXPECT_GT(read, 50);  // some edits are harmless
}

}  // namespace
}  // namespace ridge::test
