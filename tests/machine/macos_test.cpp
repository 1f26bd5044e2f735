#include "machine/macos.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "machine/machine_fixtures.h"
#include "machine/sizes.h"

namespace ridge {
namespace {

struct CoreLevel {
  int cores;
  int64_t l2;
  int per_l2;
};

struct Mac {
  const char* name;
  const char* chip;
  int64_t memory;
  std::vector<CoreLevel> levels;
};

void PrintTo(const Mac& m, std::ostream* out) { *out << m.name; }

class Macs : public testing::TestWithParam<Mac> {};

TEST_P(Macs, IsReadAsRecorded) {
  const Mac& mac = GetParam();
  const Topology t = topology_from_sysctl(read_fixture("macos/" + std::string(mac.name) + ".txt"));
  check_laws(t);
  EXPECT_EQ(t.cpu_name, mac.chip);
  EXPECT_EQ(t.architecture, "arm64");
  EXPECT_EQ(t.memory_bytes, mac.memory);
  EXPECT_FALSE(t.can_pin);
  EXPECT_FALSE(t.has_smt());
  ASSERT_EQ(t.kinds.size(), mac.levels.size());
  for (size_t i = 0; i < mac.levels.size(); ++i) {
    const CoreLevel& level = mac.levels[i];
    EXPECT_EQ(t.kinds[i].cores(), level.cores);
    EXPECT_EQ(t.kinds[i].caches, (std::vector<Cache>{{1, i + 1 == mac.levels.size() ? 64 * kKiB : 128 * kKiB, 1}, {2, level.l2, level.per_l2}}));
    EXPECT_FALSE(t.kinds[i].measured);
  }
  EXPECT_EQ(t.remarks.empty(), mac.levels.size() < 3);
}

// Caches and counts as Apple publishes them; the split of the chip with three kinds is an example.
INSTANTIATE_TEST_SUITE_P(Macos, Macs,
                         testing::Values(Mac{"m1", "Apple M1", 16 * kGiB, {{4, 12 * kMiB, 4}, {4, 4 * kMiB, 4}}},
                                         Mac{"m1_pro_8_2", "Apple M1 Pro", 32 * kGiB, {{8, 12 * kMiB, 4}, {2, 4 * kMiB, 2}}},
                                         Mac{"m1_pro_6_2", "Apple M1 Pro", 16 * kGiB, {{6, 12 * kMiB, 3}, {2, 4 * kMiB, 2}}},
                                         Mac{"m1_max", "Apple M1 Max", 64 * kGiB, {{8, 12 * kMiB, 4}, {2, 4 * kMiB, 2}}},
                                         Mac{"m1_ultra", "Apple M1 Ultra", 128 * kGiB, {{16, 12 * kMiB, 4}, {4, 4 * kMiB, 2}}},
                                         Mac{"m2_air", "Apple M2", 24 * kGiB, {{4, 16 * kMiB, 4}, {4, 4 * kMiB, 4}}},
                                         Mac{"m2_max", "Apple M2 Max", 96 * kGiB, {{8, 16 * kMiB, 4}, {4, 4 * kMiB, 4}}},
                                         Mac{"m4_pro", "Apple M4 Pro", 48 * kGiB, {{10, 16 * kMiB, 5}, {4, 4 * kMiB, 4}}},
                                         Mac{"m5_pro", "Apple M5 Pro", 64 * kGiB, {{5, 16 * kMiB, 5}, {6, 8 * kMiB, 6}, {4, 4 * kMiB, 4}}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Macos, ThreeKindsKeepTheirNames) {
  const Topology t = topology_from_sysctl(read_fixture("macos/m5_pro.txt"));
  EXPECT_EQ(t.kinds[2].name, "low-power");
  ASSERT_EQ(t.remarks.size(), 1u);
  EXPECT_NE(t.remarks[0].find("Super, Performance, Efficiency"), std::string::npos) << t.remarks[0];
}

TEST(Macos, ClustersShareTheirCache) {
  const Topology t = topology_from_sysctl(read_fixture("macos/m1_ultra.txt"));
  std::vector<int> clusters;
  for (const Core& c : t.cores) clusters.push_back(c.cluster);
  EXPECT_EQ(clusters, (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 5, 5}));
}

TEST(Macos, AnIntelMacHasOneKindWithTwoThreadsPerCore) {
  const Topology t = topology_from_sysctl(read_fixture("macos/intel.txt"));
  check_laws(t);
  EXPECT_EQ(t.architecture, "x86-64");
  EXPECT_EQ(t.kinds.size(), 1u);
  EXPECT_EQ(t.core_count(), 8);
  EXPECT_EQ(t.thread_count(), 16);
  EXPECT_EQ(t.kinds[0].cache_bytes(3), 16 * kMiB);
}

TEST(Macos, NothingToReadGivesNoCores) {
  for (const char* text : {"", "garbage", ":::\n:\n", "hw.nperflevels: 2\n", "hw.physicalcpu: -4\n", "hw.physicalcpu: 99999999999999999999\n"})
    EXPECT_TRUE(topology_from_sysctl(text).cores.empty()) << text;
}

TEST(Macos, LevelsWithoutCoresAreReported) {
  const Topology t = topology_from_sysctl("hw.nperflevels: 2\nhw.physicalcpu: 8\nhw.logicalcpu: 8\n");
  check_laws(t);
  EXPECT_EQ(t.core_count(), 8);
  EXPECT_EQ(t.remarks.size(), 1u);
}

// Whatever the text contains, the result is a plausible machine or none.
TEST(Macos, SurvivesDamagedText) {
  std::mt19937 random(7);
  const std::string whole = read_fixture("macos/m5_pro.txt");
  for (int round = 0; round < 3000; ++round) {
    const std::string text = damaged(whole, random);
    const Topology t = topology_from_sysctl(text);
    if (!t.cores.empty()) check_laws(t);
    EXPECT_LE(t.thread_count(), 16 * 4096);
    if (testing::Test::HasFailure()) FAIL() << "round " << round << "\n" << text;
  }
}

}  // namespace
}  // namespace ridge
