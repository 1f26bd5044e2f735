#include "machine/core_kinds.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "machine/limits.h"
#include "machine/machine_fixtures.h"

namespace ridge {
namespace {

std::vector<int> sizes(const Topology& t) {
  std::vector<int> cores;
  for (const CoreKind& k : t.kinds) cores.push_back(k.cores());
  return cores;
}

// A machine whose CPUs have known speeds; it counts its measurements.
struct Simulated {
  std::map<int, double> speed;
  std::map<int, int> asked;
  int total = 0;

  double operator()(int cpu) {
    ++total, ++asked[cpu];
    return speed.at(cpu);
  }
  MeasureCpu function() {
    return [this](int cpu) { return (*this)(cpu); };
  }
  void set(std::initializer_list<std::pair<int, int>> ranges, double s) {
    for (auto [first, last] : ranges)
      for (int cpu = first; cpu <= last; ++cpu) speed[cpu] = s;
  }
};

TEST(CoreKinds, FiveReportedKindsAreTwo) {
  Topology t = recorded("arm_10_10");
  Simulated m;
  m.set({{0, 4}, {10, 14}}, 24);
  m.set({{5, 9}, {15, 19}}, 70);
  m.speed[19] = 72;
  confirm_kinds(t, m.function());
  check_laws(t);
  EXPECT_EQ(sizes(t), (std::vector<int>{10, 10}));
  EXPECT_NEAR(t.kinds[1].speed, 24 / 70.2, 0.01);
  EXPECT_TRUE(t.kinds[0].measured && t.kinds[1].measured);
  ASSERT_EQ(t.remarks.size(), 1u);
  EXPECT_EQ(t.remarks[0], "the system reports 5 kinds of cores; measured, there are 2");
}

TEST(CoreKinds, TwoReportedKindsAreThree) {
  Topology t = recorded("intel_2p_8e_2lp");
  Simulated m;
  m.set({{0, 3}}, 150);
  m.set({{4, 11}}, 60);
  m.set({{12, 13}}, 35);
  confirm_kinds(t, m.function());
  check_laws(t);
  EXPECT_EQ(sizes(t), (std::vector<int>{2, 8, 2}));
  EXPECT_EQ(t.kinds[2].name, "low-power");
  EXPECT_EQ(t.kinds[2].cpus, (std::vector<int>{12, 13}));
  EXPECT_EQ(t.kinds[2].cache_bytes(3), 0);
  EXPECT_EQ(t.remarks.at(0), "the system reports 2 kinds of cores; measured, there are 3");
}

TEST(CoreKinds, NoReportedKindsAreTwo) {
  Topology t = recorded("zen5_4_8");
  Simulated m;
  m.set({{0, 3}, {12, 15}}, 160);
  m.set({{4, 11}, {16, 23}}, 105);
  confirm_kinds(t, m.function());
  check_laws(t);
  EXPECT_EQ(sizes(t), (std::vector<int>{4, 8}));
  EXPECT_EQ(t.kinds[1].siblings, (std::vector<int>{16, 17, 18, 19, 20, 21, 22, 23}));
  EXPECT_EQ(t.remarks.at(0), "the system reports 0 kinds of cores; measured, there are 2");
}

TEST(CoreKinds, CorrectReportsAreConfirmedSilently) {
  Topology t = recorded("alder_lake_6p_8e");
  Simulated m;
  m.set({{0, 11}}, 140);
  m.set({{12, 19}}, 56);
  confirm_kinds(t, m.function());
  EXPECT_EQ(sizes(t), (std::vector<int>{6, 8}));
  EXPECT_NEAR(t.kinds[1].speed, 0.4, 1e-9);
  EXPECT_TRUE(t.remarks.empty());
  EXPECT_LE(m.total, 8);
}

TEST(CoreKinds, ReportedKindsOfOneSpeedAreMerged) {
  Topology t = recorded("alder_lake_6p_8e");
  Simulated m;
  m.set({{0, 11}}, 100);
  m.set({{12, 19}}, 88);
  confirm_kinds(t, m.function());
  EXPECT_EQ(sizes(t), (std::vector<int>{14}));
  EXPECT_EQ(t.remarks.at(0), "the system reports 2 kinds of cores; measured, there is 1");
}

TEST(CoreKinds, LargeMachinesAreSampled) {
  for (const char* name : {"epyc_384", "arm_128", "server_64", "one_cpu"}) {
    Topology t = recorded(name);
    Simulated m;
    m.set({{0, 383}}, 50);
    confirm_kinds(t, m.function());
    check_laws(t);
    EXPECT_EQ(t.kinds.size(), 1u) << name;
    EXPECT_TRUE(t.kinds[0].measured);
    EXPECT_TRUE(t.remarks.empty());
    EXPECT_LE(m.total, 16) << name;
    EXPECT_GE(m.total, 1);
  }
}

// One slow socket in 384 threads: found, with bounded effort.
TEST(CoreKinds, EffortIsBoundedForUnequalCores) {
  Topology t = recorded("epyc_384");
  Simulated m;
  m.set({{0, 95}, {192, 287}}, 50);
  m.set({{96, 191}, {288, 383}}, 30);
  confirm_kinds(t, m.function());
  check_laws(t);
  EXPECT_EQ(sizes(t), (std::vector<int>{96, 96}));
  EXPECT_LE(m.total, 64);
}

// A virtual machine that does not report its caches: the first and last core reveal the difference.
TEST(CoreKinds, FindsKindsWithoutHints) {
  Topology t;
  for (int i = 0; i < 12; ++i) {
    t.cores.emplace_back().cpus = {i};
    t.cores.back().reported = -1;
  }
  Simulated m;
  m.set({{0, 3}}, 100);
  m.set({{4, 11}}, 40);
  confirm_kinds(t, m.function());
  check_laws(t);
  EXPECT_EQ(sizes(t), (std::vector<int>{4, 8}));
}

// A neighbour takes half of a core's time now and then, and speeds vary by a few per cent. This must not create kinds.
TEST(CoreKinds, NoiseMakesNoKinds) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> wobble(0.96, 1.0), chance(0, 1);
    Simulated m;
    m.set({{0, 11}}, 140);
    m.set({{12, 19}}, 56);
    auto noisy = [&](int cpu) { return m(cpu) * wobble(random) * (chance(random) < 0.1 ? 0.5 : 1); };
    for (const char* name : {"alder_lake_6p_8e", "server_64"}) {
      Topology t = recorded(name);
      if (name[0] == 's') m.set({{0, 63}}, 50);
      m.total = 0;
      confirm_kinds(t, noisy);
      check_laws(t);
      EXPECT_LE(m.total, 64);
      EXPECT_EQ(sizes(t), name[0] == 's' ? std::vector<int>{64} : (std::vector<int>{6, 8})) << name << " seed " << seed;
    }
  }
}

TEST(CoreKinds, OnlyAllowedCpusAreMeasured) {
  Topology t = recorded("alder_lake_6p_8e");
  Simulated m;
  m.set({{0, 11}}, 140);
  m.set({{12, 19}}, 56);
  confirm_kinds(t, m.function(), {1, 5, 14});  // second threads of two fast cores
  for (auto [cpu, n] : m.asked) EXPECT_TRUE(cpu == 1 || cpu == 5 || cpu == 14) << cpu;
  EXPECT_EQ(sizes(t), (std::vector<int>{6, 8}));

  Topology half = recorded("alder_lake_6p_8e");  // the slow kind must not be measured: its speed stays a guess
  confirm_kinds(half, m.function(), {0, 2});
  check_laws(half);
  EXPECT_EQ(sizes(half), (std::vector<int>{6, 8}));
  EXPECT_TRUE(half.kinds[0].measured);
  EXPECT_FALSE(half.kinds[1].measured);
}

TEST(CoreKinds, UselessMeasurementsLeaveTheHints) {
  for (double nothing : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    Topology t = recorded("arm_10_10");
    confirm_kinds(t, [&](int) { return nothing; });
    check_laws(t);
    EXPECT_EQ(sizes(t), (std::vector<int>{10, 10}));
    EXPECT_FALSE(t.kinds[0].measured);
    EXPECT_EQ(t.remarks.size(), 1u);
  }
  Topology t = recorded("arm_10_10");
  confirm_kinds(t, nullptr);
  EXPECT_TRUE(t.remarks.empty());
}

// Any machine, any speeds: the laws hold and the effort is bounded.
TEST(CoreKinds, HandlesAnyMachine) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    Topology t;
    Simulated m;
    const int cores = 1 + int(random() % 40);
    for (int i = 0, cpu = 0; i < cores; ++i) {
      Core& core = t.cores.emplace_back();
      for (unsigned n = 1 + random() % 2; n > 0; --n) {
        m.speed[cpu] = random() % 10 ? 10.0 * double(1 + random() % 12) : 0;
        core.cpus.push_back(cpu++);
      }
      core.reported = int(random() % 4) - 1;
      core.cluster = int(random() % 5);
      core.guess = double(random() % 3);
      if (random() % 2) core.caches.push_back({1, 1 << 15, 1});
    }
    confirm_kinds(t, m.function());
    check_laws(t);
    EXPECT_LE(m.total, 64);
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(CoreKinds, MeasuresThisMachine) {
  const std::vector<int> cpus = read_limits().cpus;
  EXPECT_GT(measure_cpu(cpus.front()), 0);
  EXPECT_EQ(measure_cpu(-1), 0);
  EXPECT_EQ(measure_cpu(16000), 0);
  EXPECT_EQ(read_limits().cpus, cpus);  // the caller is not pinned
}

}  // namespace
}  // namespace ridge
