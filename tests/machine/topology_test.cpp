#include "machine/topology.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/error.h"
#include "machine/limits.h"
#include "machine/machine_fixtures.h"
#include "machine/sizes.h"

namespace ridge {
namespace {

struct Recorded {
  const char* name;
  const char* architecture;
  int packages, nodes, cores, threads;
  std::vector<int> kinds;  // cores of each kind, by hints alone
  int clusters;
  int64_t memory, last_level;
};

void PrintTo(const Recorded& r, std::ostream* out) { *out << r.name; }

class RecordedMachines : public testing::TestWithParam<Recorded> {};

TEST_P(RecordedMachines, IsReadAsRecorded) {
  const Recorded& want = GetParam();
  const Topology t = recorded(want.name);
  check_laws(t);
  EXPECT_EQ(t.architecture, want.architecture);
  EXPECT_EQ(t.packages, want.packages);
  EXPECT_EQ(t.numa_nodes, want.nodes);
  EXPECT_EQ(t.core_count(), want.cores);
  EXPECT_EQ(t.thread_count(), want.threads);
  EXPECT_EQ(t.has_smt(), want.threads > want.cores);
  EXPECT_EQ(t.memory_bytes, want.memory);
  EXPECT_EQ(t.last_level_bytes(), want.last_level);
  EXPECT_FALSE(t.can_pin);
  std::vector<int> kinds;
  std::set<int> clusters, packages, nodes;
  for (const CoreKind& k : t.kinds) {
    kinds.push_back(k.cores());
    EXPECT_FALSE(k.measured);
  }
  for (const Core& c : t.cores) clusters.insert(c.cluster), packages.insert(c.package), nodes.insert(c.numa_node);
  EXPECT_EQ(kinds, want.kinds);
  EXPECT_EQ(int(clusters.size()), want.clusters);
  EXPECT_EQ(int(packages.size()), want.packages);
  EXPECT_EQ(int(nodes.size()), want.nodes);
}

// Hints alone are right if capacities or frequencies are given, and wrong for low-power cores and Zen 5c.
INSTANTIATE_TEST_SUITE_P(Topology, RecordedMachines,
                         testing::Values(Recorded{"arm_10_10", "arm64", 1, 1, 20, 20, {10, 10}, 2, 120 * kGiB, 24 * kMiB},
                                         Recorded{"intel_2p_8e_2lp", "x86-64", 1, 1, 12, 14, {2, 10}, 4, 16 * kGiB, 12 * kMiB},
                                         Recorded{"zen5_4_8", "x86-64", 1, 1, 12, 24, {12}, 2, 32 * kGiB, 24 * kMiB},
                                         Recorded{"alder_lake_6p_8e", "x86-64", 1, 1, 14, 20, {6, 8}, 3, 32 * kGiB, 24 * kMiB},
                                         Recorded{"epyc_384", "x86-64", 2, 2, 192, 384, {192}, 24, 768 * kGiB, 24 * 32 * kMiB},
                                         Recorded{"arm_128", "arm64", 2, 4, 128, 128, {128}, 32, 256 * kGiB, 128 * kMiB},
                                         Recorded{"one_cpu", "x86-64", 1, 1, 1, 1, {1}, 1, kGiB, 512 * kKiB},
                                         Recorded{"server_64", "x86-64", 1, 1, 64, 64, {64}, 8, 256 * kGiB, 256 * kMiB},
                                         Recorded{"some_offline", "x86-64", 1, 1, 7, 13, {7}, 1, 64 * kGiB, 20 * kMiB}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Topology, CachesBelongToKinds) {
  const Topology t = recorded("alder_lake_6p_8e");
  EXPECT_EQ(t.kinds[0].caches, (std::vector<Cache>{{1, 48 * kKiB, 1}, {2, 1280 * kKiB, 1}, {3, 24 * kMiB, 14}}));
  EXPECT_EQ(t.kinds[1].caches, (std::vector<Cache>{{1, 32 * kKiB, 1}, {2, 2 * kMiB, 4}, {3, 24 * kMiB, 14}}));
  EXPECT_EQ(t.kinds[1].cache_bytes(2), 2 * kMiB);
  EXPECT_EQ(t.kinds[1].cache_bytes(4), 0);
  EXPECT_EQ(t.kinds[0].cpus, (std::vector<int>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(t.kinds[0].siblings, (std::vector<int>{1, 3, 5, 7, 9, 11}));
  EXPECT_EQ(t.kind_of(13)->name, "efficiency");
  EXPECT_EQ(t.kind_of(20), nullptr);
}

TEST(Topology, OfflineCpusAreAbsent) {
  const Topology t = recorded("some_offline");
  for (int cpu : {3, 11, 13}) EXPECT_EQ(t.kind_of(cpu), nullptr) << cpu;
  for (int cpu : {0, 5, 8, 15}) EXPECT_NE(t.kind_of(cpu), nullptr) << cpu;
}

TEST(Topology, RejectsInvalidTopologies) {
  const std::string whole = read_fixture("topology/one_cpu.xml");
  for (const std::string& text : {std::string(), std::string("garbage"), std::string("<topology"), whole.substr(0, whole.size() / 2)}) {
    try {
      topology_from_xml(text);
      ADD_FAILURE() << "accepted " << text.size() << " bytes";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::value);
    }
  }
}

TEST(Topology, SimilarSpeedsAreOneKind) {
  auto kinds = [](std::vector<double> speed) {
    Topology t;
    for (size_t i = 0; i < speed.size(); ++i) t.cores.emplace_back().cpus = {int(i)};
    set_kinds(t, speed, true);
    check_laws(t);
    std::vector<int> sizes;
    for (const CoreKind& k : t.kinds) sizes.push_back(k.cores());
    return sizes;
  };
  EXPECT_EQ(kinds({5}), (std::vector<int>{1}));
  EXPECT_EQ(kinds({1, 1.1, 1.05}), (std::vector<int>{3}));
  EXPECT_EQ(kinds({100, 86}), (std::vector<int>{2}));
  EXPECT_EQ(kinds({100, 84}), (std::vector<int>{1, 1}));
  EXPECT_EQ(kinds({718, 731, 997, 1017, 1024}), (std::vector<int>{3, 2}));
  EXPECT_EQ(kinds({4, 1, 2, 4, 2, 1, 1}), (std::vector<int>{2, 2, 3}));
  EXPECT_EQ(kinds({1000, 1, 1e-3, 1e-6}), (std::vector<int>{1, 1, 1, 1}));
  // A gradual slope is split where the pieces differ enough, not merged as a chain.
  EXPECT_GE(kinds({100, 92, 85, 78, 72, 66, 61, 56}).size(), 2u);
}

// The current machine, whatever it is.
TEST(Topology, ReadsThisMachine) {
  const Topology t = read_topology();
  check_laws(t);
  EXPECT_EQ(t.architecture, build_architecture());
  EXPECT_EQ(t.thread_count(), int(read_limits().online.size()));
  EXPECT_GT(t.memory_bytes, 0);
}

// Files that hwloc cannot read still give at least one core.
TEST(Topology, WorksWithoutSystemFiles) {
  const FileTree empty, garbage;
  for (const char* file : {"sys/devices/system/cpu/online", "sys/devices/system/cpu/possible", "sys/devices/system/cpu/cpu0/topology/core_cpus",
                           "sys/devices/system/cpu/cpu0/cache/index0/size", "sys/devices/system/node/online", "proc/cpuinfo", "proc/meminfo", "proc/stat"})
    garbage.write(file, std::string("\xff\0 -1,,x 99999999999999999999\n", 30));
  for (const FileTree* tree : {&empty, &garbage}) {
    const std::string text = in_child([&] {
      setenv("HWLOC_FSROOT", tree->root().c_str(), 1);
      testing::internal::CaptureStderr();
      const Topology t = read_topology();
      return std::to_string(t.kinds.size()) + " " + std::to_string(t.thread_count() >= 1) + " " + std::to_string(t.kinds[0].cores() >= 1) +
             testing::internal::GetCapturedStderr();
    });
    EXPECT_EQ(text, "1 1 1");
  }
  EXPECT_EQ(in_child([&] {
              setenv("HWLOC_XMLFILE", (garbage.root() / "proc/stat").c_str(), 1);
              const Topology t = read_topology();
              return std::to_string(t.thread_count()) + " " + t.remarks.at(0).substr(0, 10);
            }),
            std::to_string(read_limits().online.size()) + " the system");
}

}  // namespace
}  // namespace ridge
