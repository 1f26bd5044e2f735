#include "machine/machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "machine/affinity.h"
#include "machine/machine_fixtures.h"

namespace ridge {
namespace {

std::vector<int> range(int first, int last) {
  std::vector<int> v;
  for (int i = first; i <= last; ++i) v.push_back(i);
  return v;
}

Limits allow(std::vector<int> cpus, double quota = 0) {
  Limits l;
  l.cpus = l.online = std::move(cpus);
  l.cpu_quota = quota;
  return l;
}

TEST(Machine, WithoutLimitsEverythingIsUsable) {
  const Machine m = combine(recorded("alder_lake_6p_8e"), allow(range(0, 19)));
  ASSERT_EQ(m.usable.size(), 2u);
  EXPECT_EQ(m.cores(), 14);
  EXPECT_EQ(m.threads(), 20);
  EXPECT_EQ(m.parallel(), 20);
}

TEST(Machine, MasksRemoveCoresAndThreads) {
  // One thread of core 0, the second thread of core 1, both of core 2, one efficiency core.
  const Machine m = combine(recorded("alder_lake_6p_8e"), allow({0, 3, 4, 5, 15}));
  ASSERT_EQ(m.usable.size(), 2u);
  EXPECT_EQ(m.usable[0].cpus, (std::vector<int>{0, 3, 4}));
  EXPECT_EQ(m.usable[0].siblings, (std::vector<int>{5}));
  EXPECT_EQ(m.usable[1].cpus, (std::vector<int>{15}));
  EXPECT_EQ(m.topology.core_count(), 14);

  const Machine slow = combine(recorded("alder_lake_6p_8e"), allow({12, 13}));
  ASSERT_EQ(slow.usable.size(), 1u);
  EXPECT_EQ(slow.usable[0].name, "efficiency");
}

TEST(Machine, AQuotaOfOneAndAHalfOn64Cores) {
  const FileTree tree;
  tree.write("proc/self/cgroup", "0::/\n");
  tree.write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n");
  tree.write("proc/self/status", "Cpus_allowed_list:\t0-63\n");
  tree.write("proc/meminfo", "MemTotal: 268435456 kB\nMemAvailable: 260000000 kB\n");
  tree.write("sys/devices/system/cpu/online", "0-63\n");
  tree.write("sys/devices/system/cpu/present", "0-63\n");
  tree.write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  tree.write("sys/fs/cgroup/memory.max", "4294967296\n");
  tree.write("sys/fs/cgroup/memory.current", "1073741824\n");
  const Machine m = combine(recorded("server_64"), read_limits(tree.root()));
  EXPECT_EQ(m.cores(), 64);
  EXPECT_EQ(m.limits.cpu_quota, 1.5);
  EXPECT_EQ(m.parallel(), 2);
  EXPECT_EQ(m.limits.memory_limit, int64_t(4) << 30);
  EXPECT_EQ(m.limits.memory_available, int64_t(3) << 30);
  EXPECT_EQ(m.topology.memory_bytes, int64_t(256) << 30);
  ASSERT_EQ(m.limits.reasons.size(), 2u);
  EXPECT_EQ(m.limits.reasons[0], "1.5 CPUs' time: /sys/fs/cgroup/cpu.max");
  EXPECT_EQ(m.limits.reasons[1], "4 GiB of memory: /sys/fs/cgroup/memory.max");
}

TEST(Machine, CpusThatTheTopologyDoesNotKnow) {
  const Machine m = combine(recorded("one_cpu"), allow({5, 6}));
  ASSERT_EQ(m.usable.size(), 1u);
  EXPECT_EQ(m.usable[0].cpus, (std::vector<int>{5, 6}));
  EXPECT_EQ(m.topology.remarks.size(), 1u);
  EXPECT_EQ(combine(recorded("one_cpu"), allow({0})).parallel(), 1);
}

TEST(Machine, DetectsThisMachine) {
  int asked = 0;
  const Machine m = detect_machine([&](int) { return double(++asked > 0); });
  check_laws(m.topology);
  ASSERT_FALSE(m.usable.empty());
  EXPECT_EQ(m.threads(), int(m.limits.cpus.size()));
  EXPECT_GE(m.parallel(), 1);
  EXPECT_GT(m.topology.memory_bytes, 0);
  EXPECT_EQ(asked > 0, m.topology.can_pin);
  EXPECT_EQ(m.topology.kinds.size(), 1u);
  EXPECT_FALSE(detect_machine(nullptr).usable.empty());
}

// On the real system, in a child bound to one CPU.
TEST(Machine, OneCpuOfThisMachine) {
  const int cpu = read_limits().cpus.back();
  const std::string text = in_child([&] {
    if (!pin_this_thread(cpu)) return std::string("cannot be bound");
    const Machine m = detect_machine();
    return std::to_string(m.cores()) + " " + std::to_string(m.parallel()) + " " + std::to_string(m.usable[0].cpus[0]);
  });
  EXPECT_EQ(text, "1 1 " + std::to_string(cpu));
}

}  // namespace
}  // namespace ridge
