#include "machine/health.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <random>

#include "machine/machine_fixtures.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

class HealthFiles : public testing::Test {
 protected:
  void file(const std::string& path, const std::string& text) { tree_.write(path, text); }
  void cpu(int number, const std::string& governor, int64_t now, int64_t most) {
    const std::string at = "sys/devices/system/cpu/cpu" + std::to_string(number) + "/cpufreq/";
    file(at + "scaling_governor", governor + "\n");
    file(at + "scaling_driver", "acpi-cpufreq\n");
    file(at + "scaling_max_freq", std::to_string(now) + "\n");
    file(at + "cpuinfo_max_freq", std::to_string(most) + "\n");
  }
  FileTree tree_;
  const fs::path& root_ = tree_.root();
};

TEST_F(HealthFiles, ReadsSystemFiles) {
  cpu(0, "schedutil", 3000000, 3000000);
  cpu(1, "powersave", 2400000, 3000000);
  file("sys/class/power_supply/AC/type", "Mains\n"), file("sys/class/power_supply/AC/online", "0\n");
  file("sys/class/power_supply/BAT0/type", "Battery\n"), file("sys/class/power_supply/BAT0/status", "Discharging\n");
  file("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  file("proc/loadavg", "3.25 1.00 0.50 2/345 6789\n");
  file("proc/stat", "cpu  100 0 100 700 0 0 0 100 0 0\ncpu0 1 2 3\n");
  file("sys/fs/cgroup/cpu.stat", "usage_usec 5\nnr_periods 200\nnr_throttled 50\n");
  file("proc/pressure/memory", "some avg10=12.50 avg60=1.00 avg300=0.10 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
  file("etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
  file("proc/cpuinfo", "flags : fpu hypervisor sse\n");
  file(".dockerenv", "");
  const Health health = read_health(root_);
  EXPECT_EQ(health.governor, "powersave");  // of the most limited CPU
  EXPECT_EQ(health.clock_driver, "acpi-cpufreq");
  EXPECT_DOUBLE_EQ(health.clock_cap, 0.8);
  EXPECT_TRUE(health.on_battery);
  EXPECT_EQ(health.huge_pages, "never");
  EXPECT_DOUBLE_EQ(health.load, 3.25);
  EXPECT_DOUBLE_EQ(health.stolen, 0.1);
  EXPECT_DOUBLE_EQ(health.throttled, 0.25);
  EXPECT_DOUBLE_EQ(health.memory_pressure.value(), 0.125);
  EXPECT_EQ(health.system, "Debian GNU/Linux 12 (bookworm)");
  EXPECT_TRUE(health.container);
  EXPECT_TRUE(health.virtual_machine);
}

TEST_F(HealthFiles, APluggedLaptopIsNotOnBattery) {
  file("sys/class/power_supply/BAT0/type", "Battery\n"), file("sys/class/power_supply/BAT0/status", "Charging\n");
  EXPECT_FALSE(read_health(root_).on_battery);
  file("sys/class/power_supply/BAT0/status", "Discharging\n");
  EXPECT_TRUE(read_health(root_).on_battery);
  file("sys/class/power_supply/AC/type", "Mains\n"), file("sys/class/power_supply/AC/online", "1\n");
  EXPECT_FALSE(read_health(root_).on_battery);
  file("sys/class/power_supply/AC/online", "0\n");
  file("sys/class/power_supply/BAT0/scope", "Device\n");  // a mouse's
  EXPECT_FALSE(read_health(root_).on_battery);
}

TEST_F(HealthFiles, NothingReadableIsNoProblem) {
  for (const fs::path& root : {root_, fs::path("/no/such/folder")}) {
    const Health health = read_health(root);
    EXPECT_EQ(health.governor, "");
    EXPECT_EQ(health.clock_cap, 1);
    EXPECT_EQ(health.load, 0);
    EXPECT_EQ(health.stolen, 0);
    EXPECT_FALSE(health.memory_pressure);
    EXPECT_FALSE(health.on_battery);
  }
}

TEST_F(HealthFiles, GarbageGivesPlausibleNumbers) {
  const char* paths[] = {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                         "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq",
                         "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq",
                         "sys/class/power_supply/BAT0/type",
                         "sys/kernel/mm/transparent_hugepage/enabled",
                         "proc/loadavg",
                         "proc/stat",
                         "sys/fs/cgroup/cpu.stat",
                         "proc/pressure/memory",
                         "etc/os-release"};
  const std::string seeds[] = {"powersave",
                               "1000",
                               "some avg10=99999 avg60=",
                               "nr_periods 1\nnr_throttled 99999999999999999999\n",
                               "cpu 1 2 3 -4 5 6 7 8",
                               "always [madvise never",
                               "]x[",
                               "PRETTY_NAME=",
                               "1e308 nan inf",
                               std::string(3, '\0'),
                               std::string(100000, 'x')};
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    for (const char* path : paths) {
      std::string text = seeds[random() % std::size(seeds)];
      for (int edit = 0; edit < 3 && !text.empty(); ++edit) text[random() % text.size()] = char(random());
      file(path, text);
    }
    const Health health = read_health(root_);
    EXPECT_TRUE(health.clock_cap > 0 && health.clock_cap <= 1);
    EXPECT_TRUE(health.load >= 0 && health.load < 1e9);
    EXPECT_TRUE(health.stolen >= 0 && health.stolen <= 1);
    EXPECT_TRUE(health.throttled >= 0 && health.throttled <= 1);
    EXPECT_TRUE(health.memory_pressure.value_or(0) >= 0 && health.memory_pressure.value_or(0) <= 1);
    EXPECT_LE(health.governor.size(), 40u);
  }
}

TEST(Health, OfThisMachine) {
  const Health health = read_health();
  EXPECT_FALSE(health.kernel.empty());
  EXPECT_GE(health.load, 0);
}

}  // namespace
}  // namespace ridge
