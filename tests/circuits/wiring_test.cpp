// Wirings: their formulas, their statistics over many seeds, their mistakes and their files.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "ridge/wiring.h"

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

}  // namespace
}  // namespace ridge::test
