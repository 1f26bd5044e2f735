#include "measure/thread_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "machine_fixtures.h"

namespace ridge {
namespace {

struct KindShape {
  int cores;
  int threads;  // per core
  double speed;
  int cluster_size = 8;
};

// A machine with these kinds of cores, CPUs numbered core by core.
Machine machine_of(std::initializer_list<KindShape> kinds, double quota = 0, bool can_pin = true, int packages = 1) {
  Topology t;
  t.can_pin = can_pin;
  t.packages = t.numa_nodes = packages;
  std::vector<double> speeds;
  int cpu = 0, cluster = 0, total = 0, core_index = 0;
  for (const KindShape& k : kinds) total += k.cores;
  for (const KindShape& k : kinds) {
    for (int i = 0; i < k.cores; ++i) {
      Core core;
      for (int j = 0; j < k.threads; ++j) core.cpus.push_back(cpu++);
      core.package = core.numa_node = core_index++ * packages / total;
      core.cluster = cluster + i / k.cluster_size;
      t.cores.push_back(core);
      speeds.push_back(k.speed);
    }
    cluster += (k.cores + k.cluster_size - 1) / k.cluster_size;
  }
  set_kinds(t, speeds, true);
  Limits limits;
  limits.cpus.resize(size_t(cpu));
  std::iota(limits.cpus.begin(), limits.cpus.end(), 0);
  limits.online = limits.cpus;
  limits.cpu_quota = quota;
  return combine(t, limits);
}

// Throughput of a simulated machine: the sum over cores, limited by the memory bandwidth; a second thread adds `smt` of a core.
MeasureTeams simulated(const Machine& machine, double smt, double memory = 1e9, int* calls = nullptr) {
  return [&machine, smt, memory, calls](const std::vector<TeamOptions>& teams) {
    if (calls) ++*calls;
    std::vector<double> rates;
    for (const TeamOptions& team : teams) {
      double sum = 0;
      std::set<const Core*> met;
      std::vector<int> cpus = team.cpus;
      if (cpus.empty())
        for (const Core& core : machine.topology.cores)
          if (int(cpus.size()) < team.threads) cpus.push_back(core.cpus[0]);
      for (int cpu : cpus)
        for (const Core& core : machine.topology.cores)
          if (std::count(core.cpus.begin(), core.cpus.end(), cpu))
            sum += machine.topology.kinds[size_t(core.kind)].speed * (met.insert(&core).second ? 1 : smt);
      rates.push_back(std::min(sum, memory));
    }
    return rates;
  };
}

// Laws of every choice.
void check_laws(const ThreadChoice& c, const Machine& m) {
  EXPECT_GE(c.team.threads, 1);
  EXPECT_FALSE(c.label.empty());
  EXPECT_FALSE(c.reason.empty());
  EXPECT_FALSE(c.decided_by.empty());
  EXPECT_NE(c.team.wait, Wait::automatic);
  EXPECT_NE(c.affinity, Affinity::automatic);
  EXPECT_EQ(c.affinity == Affinity::none, c.team.cpus.empty());
  EXPECT_EQ(c.text().find('\n'), std::string::npos);
  if (!c.team.cpus.empty()) {
    EXPECT_EQ(int(c.team.cpus.size()), c.team.threads);
    std::set<int> once(c.team.cpus.begin(), c.team.cpus.end());
    EXPECT_EQ(once.size(), c.team.cpus.size());
    for (int cpu : once) EXPECT_TRUE(std::count(m.limits.cpus.begin(), m.limits.cpus.end(), cpu)) << cpu;
  }
  if (!c.team.speeds.empty()) {
    EXPECT_EQ(int(c.team.speeds.size()), c.team.threads);
    for (double s : c.team.speeds) EXPECT_TRUE(s > 0 && s <= 1);
  }
}

ThreadChoice choose(const Machine& m, const ThreadRequest& request, const MeasureTeams& measure = {}, CoreSlots* slots = nullptr) {
  ThreadChoice c = choose_threads(m, request, measure, slots);
  check_laws(c, m);
  return c;
}

TEST(ThreadChoice, APlainMachineUsesItsCoresWithoutMeasuring) {
  const Machine m = machine_of({{6, 1, 1}});
  int calls = 0;
  const ThreadChoice c = choose(m, {}, simulated(m, 0, 1e9, &calls));
  EXPECT_EQ(c.team.threads, 6);
  EXPECT_EQ(c.team.wait, Wait::active);
  EXPECT_EQ(c.affinity, Affinity::none);
  EXPECT_EQ(c.decided_by, "default");
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(c.label, "6 cores");
}

TEST(ThreadChoice, SlowerCoresAreUsedWhenTheyHelp) {
  const Machine m = machine_of({{8, 1, 1}, {8, 1, 0.4, 4}});
  const ThreadChoice c = choose(m, {}, simulated(m, 0));
  EXPECT_EQ(c.team.threads, 16);
  EXPECT_EQ(c.decided_by, "measured");
  EXPECT_EQ(c.affinity, Affinity::compact);
  EXPECT_EQ(c.label, "8 P-cores + 8 E-cores");
  EXPECT_EQ(c.reason, "measured: 8 P-cores 1.00×, 8 P-cores + 8 E-cores 1.40×, 4 P-cores 0.50×");
  EXPECT_EQ(c.runner_up, "8 P-cores: 0.71×");
  ASSERT_EQ(c.team.speeds.size(), 16u);
  EXPECT_EQ(c.team.speeds.front(), 1);
  EXPECT_EQ(c.team.speeds.back(), 0.4);
  // If they add nothing, they are left to other programs.
  const ThreadChoice bound = choose(m, {}, simulated(m, 0, 8.1));
  EXPECT_EQ(bound.team.threads, 8);
  EXPECT_EQ(bound.label, "8 P-cores");
  // If half of the cores saturate the memory bandwidth, the other half is left free too.
  EXPECT_EQ(choose(m, {}, simulated(m, 0, 4)).label, "4 P-cores");
}

TEST(ThreadChoice, SecondThreadsAreUsedWhenTheyHelp) {
  const Machine m = machine_of({{6, 2, 1}, {8, 1, 0.5, 4}});
  const ThreadChoice with = choose(m, {}, simulated(m, 0.3)), without = choose(m, {}, simulated(m, -0.1));
  EXPECT_EQ(with.label, "6 P-cores × 2 threads + 8 E-cores");
  EXPECT_EQ(with.team.threads, 20);
  EXPECT_EQ(without.label, "6 P-cores + 8 E-cores");
  EXPECT_EQ(without.team.threads, 14);
  const Machine one = machine_of({{4, 2, 1}});
  EXPECT_EQ(choose(one, {}, simulated(one, 0.2)).label, "4 cores × 2 threads");
  EXPECT_EQ(choose(one, {}, simulated(one, 0.01)).label, "4 cores");
}

TEST(ThreadChoice, WithoutAMeasurementEveryCoreIsUsedOnce) {
  const Machine m = machine_of({{6, 2, 1}, {8, 1, 0.5}});
  for (const MeasureTeams& measure : {MeasureTeams{}, MeasureTeams{[](const std::vector<TeamOptions>&) { return std::vector<double>{}; }},
                                      MeasureTeams{[](const std::vector<TeamOptions>& t) { return std::vector<double>(t.size(), std::nan("")); }}}) {
    const ThreadChoice c = choose(m, {}, measure);
    EXPECT_EQ(c.label, "6 P-cores + 8 E-cores");
    EXPECT_EQ(c.decided_by, "default");
  }
}

TEST(ThreadChoice, FollowsTheRequest) {
  const Machine m = machine_of({{2, 2, 1}, {4, 1, 0.5}});
  int calls = 0;
  const MeasureTeams measure = simulated(m, 0.3, 1e9, &calls);
  for (int n = 1; n <= 12; ++n) {
    const ThreadChoice c = choose(m, {.threads = std::to_string(n), .source = "command line"}, measure);
    EXPECT_EQ(c.team.threads, n);
    EXPECT_EQ(c.decided_by, "command line");
    EXPECT_EQ(c.team.wait, n > 8 ? Wait::passive : Wait::active);
    EXPECT_EQ(c.remarks.size(), n > 8 ? 1u : 0u);
    EXPECT_EQ(c.label == "2 P-cores with 1 second threads + 4 E-cores", n == 7);
  }
  EXPECT_EQ(choose(m, {.threads = "performance"}, measure).label, "2 P-cores");
  EXPECT_EQ(choose(m, {.threads = "all"}, measure).team.threads, 8);
  EXPECT_EQ(choose(m, {.affinity = Affinity::none}, measure).team.cpus.size(), 0u);
  EXPECT_EQ(choose(m, {.wait = Wait::passive}, measure).team.wait, Wait::passive);
  EXPECT_EQ(choose(m, {.threads = "12", .wait = Wait::active}, measure).team.wait, Wait::active);
  for (const char* bad : {"", "0", "-1", "1.5", "4 ", "many", "Auto", "100000", "99999999999999999999"})
    EXPECT_THROW(choose_threads(m, {.threads = bad}, {}), Error) << bad;
}

TEST(ThreadChoice, CompactAndSpreadPlaceThreads) {
  const Machine m = machine_of({{16, 1, 1, 4}}, 0, true, 2);
  EXPECT_EQ(choose(m, {.threads = "4", .affinity = Affinity::compact}).team.cpus, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(choose(m, {.threads = "4", .affinity = Affinity::spread}).team.cpus, (std::vector<int>{0, 4, 8, 12}));
  EXPECT_EQ(choose(m, {.threads = "6", .affinity = Affinity::spread}).team.cpus, (std::vector<int>{0, 4, 8, 12, 1, 5}));
  EXPECT_EQ(choose(m, {}).affinity, Affinity::compact) << "memory lies with the core that touched it";
  const Machine apple = machine_of({{8, 1, 1}, {2, 1, 0.4}}, 0, false);
  const ThreadChoice c = choose(apple, {.affinity = Affinity::spread});
  EXPECT_EQ(c.affinity, Affinity::none);
  EXPECT_TRUE(c.team.speeds.empty());
  EXPECT_EQ(c.remarks.size(), 1u);
}

TEST(ThreadChoice, UsesExactlyTheQuota) {
  struct Case {
    double quota;
    int threads;
  };
  int calls = 0;
  for (Case k : {Case{0.3, 1}, {1, 1}, {1.1, 1}, {1.5, 2}, {2, 2}, {2.2, 2}, {2.5, 3}, {7.5, 7}, {63.9, 63}}) {
    const Machine m = machine_of({{64, 1, 1}}, k.quota);
    const ThreadChoice c = choose(m, {}, simulated(m, 0, 1e9, &calls));
    EXPECT_EQ(c.team.threads, k.threads) << k.quota;
    EXPECT_EQ(c.team.wait, Wait::passive) << k.quota;
    EXPECT_NE(c.reason.find("quota"), std::string::npos);
    EXPECT_EQ(c.runner_up.empty(), k.quota < 1 || k.quota == std::floor(k.quota)) << k.quota;
  }
  EXPECT_EQ(calls, 0) << "a short measurement sees no quota";
  const Machine m = machine_of({{64, 1, 1}}, 1.5);
  EXPECT_EQ(choose(m, {}).reason, "a quota of 1.50 CPUs: 2 threads use all of it, one would use 1; they sleep while they wait, as spinning would use it up");
  EXPECT_EQ(choose(m, {}).runner_up, "1 thread, 1.00 of 1.50 CPUs");
  EXPECT_EQ(choose(m, {.threads = "8"}).remarks.size(), 1u);
  const Machine wide = machine_of({{4, 1, 1}}, 100);
  EXPECT_EQ(choose(wide, {}).team.wait, Wait::active);
}

TEST(ThreadChoice, TheMaskIsRespected) {
  Machine m = machine_of({{4, 2, 1}, {4, 1, 0.5}});
  Limits limits = m.limits;
  limits.cpus = {1, 4, 5, 9, 10};  // a second thread, a whole core, two slow ones
  m = combine(m.topology, limits);
  const ThreadChoice c = choose(m, {.threads = "all"});
  EXPECT_EQ(std::set<int>(c.team.cpus.begin(), c.team.cpus.end()), std::set<int>(limits.cpus.begin(), limits.cpus.end()));
  EXPECT_EQ(choose(m, {}).team.threads, 4);
}

TEST(ThreadChoice, AGpuNeedsFewThreads) {
  const Machine m = machine_of({{16, 1, 1}});
  const ThreadChoice c = choose(m, {.gpu_feed = 0.7});
  EXPECT_EQ(c.team.threads, 2);
  EXPECT_EQ(c.team.wait, Wait::passive);
  EXPECT_EQ(choose(m, {.gpu_feed = 2.5}).team.threads, 4);
  EXPECT_EQ(choose(m, {.gpu_feed = 100}).team.threads, 16);
  EXPECT_EQ(choose(m, {.threads = "5", .gpu_feed = 1}).team.threads, 5);
  EXPECT_EQ(choose(machine_of({{1, 1, 1}}), {.gpu_feed = 1}).team.threads, 1);
}

TEST(ThreadChoice, ALaterProcessTakesFreeCores) {
  FileTree tree;
  const Machine m = machine_of({{8, 1, 1}});
  CoreSlots first = CoreSlots::take(usable_cores(m), tree.root() / "run");
  EXPECT_EQ(choose(m, {.threads = "5"}, {}, &first).team.threads, 5);
  EXPECT_EQ(first.held().size(), 5u) << "what is not used is given back";

  CoreSlots second = CoreSlots::take(usable_cores(m), tree.root() / "run");
  const ThreadChoice late = choose(m, {}, {}, &second);
  EXPECT_EQ(late.team.threads, 3);
  EXPECT_EQ(late.team.cpus, second.held()) << "it stays off the cores of others";
  EXPECT_EQ(late.team.wait, Wait::active);
  ASSERT_EQ(late.remarks.size(), 1u);
  EXPECT_NE(late.remarks[0].find("5 of 8 cores"), std::string::npos) << late.remarks[0];

  CoreSlots third = CoreSlots::take(usable_cores(m), tree.root() / "run");
  const ThreadChoice last = choose(m, {}, {}, &third);
  EXPECT_EQ(last.team.threads, 8);
  EXPECT_EQ(last.team.wait, Wait::passive);
  ASSERT_EQ(last.remarks.size(), 1u);
  EXPECT_NE(last.remarks[0].find("shares"), std::string::npos) << last.remarks[0];

  // A requested number of threads is granted, on free cores first.
  second = CoreSlots();
  CoreSlots fourth = CoreSlots::take(usable_cores(m), tree.root() / "run");
  const ThreadChoice few = choose(m, {.threads = "3"}, {}, &fourth);
  EXPECT_TRUE(few.remarks.empty());
  EXPECT_EQ(fourth.held().size(), 3u);
  fourth = CoreSlots();
  CoreSlots fifth = CoreSlots::take(usable_cores(m), tree.root() / "run");
  const ThreadChoice many = choose(m, {.threads = "6"}, {}, &fifth);
  EXPECT_EQ(many.team.threads, 6);
  EXPECT_EQ(many.team.wait, Wait::passive);
  EXPECT_EQ(many.remarks.size(), 1u);
}

TEST(ThreadChoice, WorksWithoutSlots) {
  const Machine m = machine_of({{4, 1, 1}});
  CoreSlots none = CoreSlots::take(usable_cores(m), "/proc/ridge");
  const ThreadChoice c = choose(m, {}, {}, &none);
  EXPECT_EQ(c.team.threads, 4);
  EXPECT_EQ(c.remarks.size(), 1u);
}

TEST(ThreadChoice, RecordedMachinesGetSensibleTeams) {
  for (const char* name : {"alder_lake_6p_8e", "arm_10_10", "arm_128", "epyc_384", "intel_2p_8e_2lp", "one_cpu", "server_64", "some_offline", "zen5_4_8"}) {
    Topology t = recorded(name);
    t.can_pin = true;
    Limits limits;
    limits.cpus.clear();
    for (const Core& core : t.cores) limits.cpus.insert(limits.cpus.end(), core.cpus.begin(), core.cpus.end());
    std::sort(limits.cpus.begin(), limits.cpus.end());
    const Machine m = combine(t, limits);
    EXPECT_EQ(choose(m, {}, simulated(m, 0)).team.threads, m.cores()) << name;
    EXPECT_EQ(choose(m, {.threads = "all"}).team.threads, m.threads()) << name;
  }
}

TEST(ThreadChoice, ReadsTheEnvironment) {
  auto request = [](std::initializer_list<std::pair<const char*, const char*>> variables) {
    return in_child([&] {
      for (const char* name : {"RIDGE_THREADS", "OMP_NUM_THREADS", "RIDGE_AFFINITY", "RIDGE_WAIT"}) unsetenv(name);
      for (auto [name, value] : variables) setenv(name, value, 1);
      const ThreadRequest r = environment_threads();
      return fmt::format("{} {} {} by {}, {} remarks", r.threads, name(r.affinity), name(r.wait), r.source, r.remarks.size());
    });
  };
  EXPECT_EQ(request({}), "auto auto auto by default, 0 remarks");
  EXPECT_EQ(request({{"OMP_NUM_THREADS", "3"}}), "3 auto auto by OMP_NUM_THREADS, 0 remarks");
  EXPECT_EQ(request({{"OMP_NUM_THREADS", "3,2"}}), "3 auto auto by OMP_NUM_THREADS, 0 remarks");
  for (const char* bad : {"none", "0", "-1", "4x", "5000", ",2"}) EXPECT_EQ(request({{"OMP_NUM_THREADS", bad}}).find("threw"), 0u) << bad;
  EXPECT_EQ(request({{"OPTIMIZE_PERF", "banana"}}).find("threw"), 0u);
  EXPECT_EQ(request({{"RIDGE_OPTIMIZE_PERF", "banana"}}).find("threw"), 0u);
  EXPECT_EQ(request({{"OPTIMIZE_PERF", "False"}}), "auto auto auto by default, 0 remarks");
  EXPECT_EQ(request({{"OMP_NUM_THREADS", "3"}, {"RIDGE_THREADS", "5"}}), "5 auto auto by RIDGE_THREADS, 0 remarks");
  EXPECT_EQ(request({{"RIDGE_THREADS", "performance"}, {"RIDGE_AFFINITY", "spread"}, {"RIDGE_WAIT", "passive"}}),
            "performance spread passive by RIDGE_THREADS, 0 remarks");
  EXPECT_EQ(request({{"RIDGE_WAIT", "lazy"}}).find("threw"), 0u);
  EXPECT_EQ(request({{"RIDGE_AFFINITY", "close"}}).find("threw"), 0u);
}

}  // namespace
}  // namespace ridge
