#include "machine/limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "machine/affinity.h"
#include "machine/machine_fixtures.h"
#include "machine/sizes.h"

namespace ridge {
namespace {

using Files = std::map<std::string, std::string>;

// A machine with 8 CPUs and 16 GiB without limits.
const Files kPlain = {
    {"proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\nMems_allowed_list:\t0\n"},
    {"proc/self/statm", "262144 1000 500 10 0 400 0\n"},
    {"proc/self/limits",
     "Limit                     Soft Limit           Hard Limit           Units     \n"
     "Max resident set          unlimited            unlimited            bytes     \n"
     "Max open files            1024                 1048576              files     \n"
     "Max locked memory         8388608              8388608              bytes     \n"
     "Max address space         unlimited            unlimited            bytes     \n"},
    {"proc/meminfo",
     "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:   12582912 kB\nBuffers: 1024 kB\nCached: 1048576 kB\n"
     "SwapTotal: 2097152 kB\nSwapFree: 1048576 kB\n"},
    {"sys/devices/system/cpu/online", "0-7\n"},
    {"sys/devices/system/cpu/present", "0-7\n"},
};

const Files kVersion2 = {
    {"proc/self/cgroup", "0::/user.slice/job\n"},
    {"proc/self/mountinfo",
     "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
     "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"},
};

const Files kVersion1 = {
    {"proc/self/cgroup", "12:memory:/docker/abc\n9:cpuset:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n"},
    {"proc/self/mountinfo",
     "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
     "32 23 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
     "33 23 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"},
};

Limits read(std::initializer_list<Files> layers) {
  const FileTree tree;
  for (const Files& files : layers)
    for (const auto& [name, text] : files) tree.write(name, text);
  return read_limits(tree.root());
}

void check_laws(const Limits& l) {
  ASSERT_FALSE(l.cpus.empty());
  EXPECT_TRUE(std::is_sorted(l.cpus.begin(), l.cpus.end()));
  EXPECT_TRUE(std::includes(l.online.begin(), l.online.end(), l.cpus.begin(), l.cpus.end()));
  EXPECT_GE(l.cpus.front(), 0);
  EXPECT_LT(l.cpus.back(), 1 << 14);
  EXPECT_TRUE(std::isfinite(l.cpu_quota) && l.cpu_quota >= 0 && l.cpu_quota < double(l.online.size()));
  EXPECT_GE(l.threads(), 1);
  EXPECT_LE(l.threads(), int(l.cpus.size()));
  const int64_t most = int64_t(1) << 60;
  for (int64_t bytes : {l.memory_total, l.memory_available, l.memory_limit, l.swap_total, l.swap_free}) EXPECT_TRUE(bytes >= 0 && bytes <= most) << bytes;
  if (l.memory_total) {
    EXPECT_LE(l.memory_available, l.memory_total);
    EXPECT_LE(l.memory_limit, l.memory_total);
  }
  EXPECT_LE(l.memory_available, l.memory_limit ? l.memory_limit : most);
  EXPECT_LE(l.swap_free, l.swap_total);
  for (const auto& u : {l.address_space, l.resident, l.locked, l.open_files}) EXPECT_GE(u.value_or(0), 0);
}

TEST(Limits, ParsesCpuLists) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11\n"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list("5,1-2,2"), (std::vector<int>{1, 2, 5}));
  for (const char* bad : {"", "\n", "x", "3-1", "-1", "1-", "-", ",", "0-99999", "99999999999999999999", "0-3:1/2", "1,,2", "0x3"})
    EXPECT_TRUE(parse_cpu_list(bad).empty()) << bad;
  EXPECT_EQ(format_cpu_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(format_cpu_list({}), "");
  EXPECT_EQ(format_cpu_list({7}), "7");
}

TEST(Limits, ParsesOnlyCompleteNumbers) {
  EXPECT_EQ(parse_number(" 42\n"), 42);
  EXPECT_EQ(parse_number("9223372036854775807"), INT64_MAX);
  for (const char* bad : {"", "max", "-1", "4 2", "4x", "0x10", "9223372036854775808", "1e9", "1.5"}) EXPECT_FALSE(parse_number(bad)) << bad;
}

TEST(Limits, WithoutLimits) {
  const Limits l = read({kPlain});
  check_laws(l);
  EXPECT_EQ(l.cpus.size(), 8u);
  EXPECT_EQ(l.threads(), 8);
  EXPECT_EQ(l.cpu_quota, 0);
  EXPECT_EQ(l.memory_total, 16 * kGiB);
  EXPECT_EQ(l.memory_available, 12 * kGiB);
  EXPECT_EQ(l.memory_limit, 0);
  EXPECT_EQ(l.swap_total, 2 * kGiB);
  EXPECT_EQ(l.swap_free, 1 * kGiB);
  EXPECT_FALSE(l.address_space);
  EXPECT_FALSE(l.resident);
  EXPECT_EQ(l.locked, 8 * kMiB);
  EXPECT_EQ(l.open_files, 1024);
  EXPECT_TRUE(l.reasons.empty());
}

TEST(Limits, MaskCpusetAndOfflineCpus) {
  const Limits l = read({kPlain,
                         kVersion2,
                         {{"sys/devices/system/cpu/online", "0-5\n"},
                          {"sys/fs/cgroup/user.slice/cpuset.cpus.effective", "1-7\n"},
                          {"proc/self/status", "Cpus_allowed_list:\t0-3\n"}}});
  check_laws(l);
  EXPECT_EQ(l.offline, (std::vector<int>{6, 7}));
  EXPECT_EQ(l.cpus, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(l.reasons,
            (std::vector<std::string>{"CPUs 6-7 are offline (/sys/devices/system/cpu/online)", "CPUs 1-5 only: /sys/fs/cgroup/user.slice/cpuset.cpus.effective",
                                      "CPUs 1-3 only: affinity mask of the process"}));
}

TEST(Limits, TheTightestLevelOfVersion2Applies) {
  Files groups = {{"sys/fs/cgroup/user.slice/job/cpu.max", "max 100000\n"},
                  {"sys/fs/cgroup/user.slice/cpu.max", "250000 100000\n"},
                  {"sys/fs/cgroup/user.slice/job/memory.max", "8589934592\n"},
                  {"sys/fs/cgroup/user.slice/job/memory.current", "1073741824\n"},
                  {"sys/fs/cgroup/user.slice/memory.max", "4294967296\n"},
                  {"sys/fs/cgroup/user.slice/memory.current", "3221225472\n"},
                  {"sys/fs/cgroup/user.slice/memory.stat", "anon 5\ninactive_file 1073741824\n"}};
  Limits l = read({kPlain, kVersion2, groups});
  check_laws(l);
  EXPECT_EQ(l.cpu_quota, 2.5);
  EXPECT_EQ(l.threads(), 3);
  EXPECT_EQ(l.memory_limit, 4 * kGiB);
  EXPECT_EQ(l.memory_available, 2 * kGiB);  // file pages can be dropped
  EXPECT_EQ(l.reasons.at(0), "2.5 CPUs' time: /sys/fs/cgroup/user.slice/cpu.max");

  groups["sys/fs/cgroup/user.slice/job/cpu.max"] = "50000 100000\n";
  groups["sys/fs/cgroup/user.slice/job/memory.high"] = "2147483648\n";
  l = read({kPlain, kVersion2, groups});
  EXPECT_EQ(l.cpu_quota, 0.5);
  EXPECT_EQ(l.threads(), 1);
  EXPECT_EQ(l.memory_limit, 2 * kGiB);
  EXPECT_EQ(l.memory_available, 1 * kGiB);
}

TEST(Limits, TheTightestLevelOfVersion1Applies) {
  const Limits l = read({kPlain,
                         kVersion1,
                         {{"sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n"},
                          {"sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n"},
                          {"sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "300000\n"},
                          {"sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "200000\n"},
                          {"sys/fs/cgroup/cpuset/docker/abc/cpuset.cpus", "2-5\n"},
                          {"sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n"},
                          {"sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "1073741824\n"},
                          {"sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "536870912\n"},
                          {"sys/fs/cgroup/memory/docker/memory.stat", "cache 1\ntotal_inactive_file 268435456\n"}}});
  check_laws(l);
  EXPECT_EQ(l.cpu_quota, 1.5);
  EXPECT_EQ(l.threads(), 2);
  EXPECT_EQ(l.cpus, (std::vector<int>{2, 3, 4, 5}));
  EXPECT_EQ(l.memory_limit, 1 * kGiB);
  EXPECT_EQ(l.memory_available, 768 * kMiB);
}

// A container sees its own group as the mount, and the limits of outer groups only in the total that version 1 reports.
TEST(Limits, ContainersSeeTheMountAsTheirGroup) {
  Files files = kVersion1;
  for (auto& [name, text] : files)
    for (size_t at; name == "proc/self/mountinfo" && (at = text.find(" / /sys")) != std::string::npos;) text.replace(at, 3, " /docker/abc ");
  files["sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us"] = "150000\n";
  files["sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us"] = "100000\n";
  files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = "9223372036854771712\n";
  files["sys/fs/cgroup/memory/memory.stat"] = "hierarchical_memory_limit 2147483648\n";
  Limits l = read({kPlain, files});
  EXPECT_EQ(l.cpu_quota, 1.5);
  EXPECT_EQ(l.memory_limit, 2 * kGiB);

  for (const char* path : {"0::/../../other\n", "0::/\n", "0::relative\n", ""}) {  // a group outside the mount is seen as the mount
    l = read({kPlain, kVersion2, {{"proc/self/cgroup", path}, {"sys/fs/cgroup/cpu.max", "150000 100000\n"}}});
    EXPECT_EQ(l.cpu_quota, 1.5) << path;
  }
}

TEST(Limits, WithoutMountsReadsTheUsualPaths) {
  Limits l = read({kPlain, {{"sys/fs/cgroup/cgroup.controllers", "cpu memory\n"}, {"sys/fs/cgroup/cpu.max", "150000 100000\n"}}});
  EXPECT_EQ(l.cpu_quota, 1.5);
  l = read({kPlain, {{"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"}, {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}}});
  EXPECT_EQ(l.cpu_quota, 0.5);
}

TEST(Limits, MountPointsWithSpaces) {
  const Limits l =
      read({kPlain, {{"proc/self/mountinfo", "30 23 0:26 / /sys/my\\040groups rw - cgroup2 none rw\n"}, {"sys/my groups/cpu.max", "100000 100000"}}});
  EXPECT_EQ(l.cpu_quota, 1);
}

TEST(Limits, NonBindingLimitsAreIgnored) {
  const Limits l = read(
      {kPlain,
       kVersion2,
       {{"sys/fs/cgroup/cpu.max", "3200000 100000\n"}, {"sys/fs/cgroup/memory.max", "1099511627776\n"}, {"sys/fs/cgroup/cpuset.cpus.effective", "0-7\n"}}});
  EXPECT_EQ(l.cpu_quota, 0);
  EXPECT_EQ(l.memory_limit, 0);
  EXPECT_TRUE(l.reasons.empty());
}

TEST(Limits, AddressSpaceLimitsMemory) {
  Files files = kPlain;
  files["proc/self/limits"] = "Max address space         4294967296           unlimited            bytes     \nMax locked memory  0  0  bytes\n";
  const Limits l = read({files});
  check_laws(l);
  EXPECT_EQ(l.address_space, 4 * kGiB);
  EXPECT_EQ(l.locked, 0);
  EXPECT_EQ(l.memory_limit, 4 * kGiB);
  EXPECT_EQ(l.memory_available, 4 * kGiB - 262144 * int64_t(sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(l.reasons.at(0), "4 GiB of memory: ulimit -v");
}

TEST(Limits, NothingReadableIsOneCpu) {
  const FileTree empty;
  for (const auto& root : {empty.root(), empty.root() / "missing"}) {
    const Limits l = read_limits(root);
    check_laws(l);
    EXPECT_EQ(l.cpus, (std::vector<int>{0}));
    EXPECT_EQ(l.threads(), 1);
    EXPECT_EQ(l.memory_total, 0);
  }
}

// Each file in turn is missing, a folder, unreadable, empty, huge or full of nonsense; then all are damaged at random.
TEST(Limits, SurvivesDamagedFiles) {
  Files whole = kPlain;
  for (const Files& files : {kVersion2, kVersion1})
    for (const auto& [name, text] : files) whole[name] += text;
  for (const char* folder : {"sys/fs/cgroup/user.slice/job/", "sys/fs/cgroup/user.slice/", "sys/fs/cgroup/"})
    for (const auto& [name, text] : Files{{"cpu.max", "150000 100000\n"},
                                          {"memory.max", "4294967296\n"},
                                          {"memory.high", "max\n"},
                                          {"memory.current", "1073741824\n"},
                                          {"memory.stat", "anon 12\ninactive_file 4096\n"},
                                          {"cpuset.cpus.effective", "0-5\n"}})
      whole[folder + name] = text;
  whole["sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us"] = "400000\n";
  whole["sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us"] = "100000\n";
  whole["sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes"] = "2147483648\n";
  whole["sys/fs/cgroup/memory/docker/abc/memory.stat"] = "hierarchical_memory_limit 2147483648\ntotal_inactive_file 5\n";
  whole["sys/fs/cgroup/cpuset/docker/abc/cpuset.cpus"] = "0-6\n";
  const FileTree tree;
  for (const auto& [name, text] : whole) tree.write(name, text);
  check_laws(read_limits(tree.root()));

  const std::string nonsense[] = {
      "", "\n", std::string(3, '\0'), "-1", "99999999999999999999", "max", "0", "0 0", std::string(9000, '7'), std::string(5000, '\n'), ":::", "\xff\xfe"};
  for (const auto& [name, text] : whole) {
    const auto file = tree.root() / name;
    for (const std::string& bad : nonsense) {
      tree.write(name, bad);
      check_laws(read_limits(tree.root()));
    }
    std::filesystem::permissions(file, std::filesystem::perms::none);  // root can still read it
    check_laws(read_limits(tree.root()));
    std::filesystem::remove(file);
    check_laws(read_limits(tree.root()));
    std::filesystem::create_directory(file);
    check_laws(read_limits(tree.root()));
    std::filesystem::remove(file);
    tree.write(name, text);
    if (testing::Test::HasFailure()) FAIL() << name;
  }

  std::mt19937 random(3);
  for (int round = 0; round < 600; ++round) {
    auto at = whole.begin();
    std::advance(at, random() % whole.size());
    const std::string text = damaged(at->second, random);
    tree.write(at->first, text);
    check_laws(read_limits(tree.root()));
    if (random() % 3) tree.write(at->first, at->second);  // some damage stays
    if (testing::Test::HasFailure()) FAIL() << "round " << round << ", " << at->first << ":\n" << text;
  }
}

// The current machine, whatever it is.
TEST(Limits, ReadsThisMachine) {
  const Limits l = read_limits();
  check_laws(l);
  EXPECT_GT(l.memory_total, 0);
  EXPECT_GT(l.memory_available, 0);
  EXPECT_TRUE(l.open_files);
}

TEST(Limits, RealMask) {
  const std::vector<int> before = read_limits().cpus;
  const int cpu = before.back();
  const std::string text = in_child([&] {
    if (!pin_this_thread(cpu)) return std::string("cannot be bound");
    const Limits l = read_limits();
    return format_cpu_list(l.cpus) + " " + std::to_string(l.threads()) + " " + (l.reasons.empty() ? "" : l.reasons[0]);
  });
  const std::string number = std::to_string(cpu);
  EXPECT_EQ(text, number + " 1 " + (before.size() > 1 ? "CPUs " + number + " only: affinity mask of the process" : ""));
}

TEST(Limits, RealUlimits) {
  const std::string text = in_child([] {
    auto lower = [](auto resource, rlim_t value) {
      rlimit limit{};
      getrlimit(resource, &limit);
      limit.rlim_cur = std::min(value, limit.rlim_max);
      return setrlimit(resource, &limit) == 0;
    };
    // Well above what a sanitizer maps.
    if (!lower(RLIMIT_AS, rlim_t(1) << 48) || !lower(RLIMIT_NOFILE, 64) || !lower(RLIMIT_MEMLOCK, 4096) || !lower(RLIMIT_RSS, 1 << 30))
      return std::string("cannot be set");
    const Limits l = read_limits();
    return std::to_string(l.address_space.value_or(-1) >> 20) + " " + std::to_string(l.open_files.value_or(-1)) + " " + std::to_string(l.locked.value_or(-1)) +
           " " + std::to_string(l.resident.value_or(-1));
  });
  EXPECT_EQ(text, std::to_string((int64_t(1) << 48) >> 20) + " 64 4096 1073741824");
}

// A separate control group below the one this process is in, if the system allows it.
class OwnGroup {
 public:
  explicit OwnGroup(const std::string& parent) : folder_(parent + "/ridge_test_" + std::to_string(getpid())) { made_ = mkdir(folder_.c_str(), 0755) == 0; }
  ~OwnGroup() {
    if (made_) rmdir(folder_.c_str());
  }
  OwnGroup(const OwnGroup&) = delete;

  bool made() const { return made_; }
  const std::string& folder() const { return folder_; }
  bool write(const std::string& file, const std::string& text) const { return write_file(folder_ + "/" + file, text); }

  static bool write_file(const std::string& file, const std::string& text) {
    std::ofstream out(file);
    out << text << std::flush;
    return out.good();
  }

 private:
  std::string folder_;
  bool made_ = false;
};

std::string own_path(const std::string& control) {  // "" for version 2
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t a = line.find(':'), b = line.find(':', a + 1);
    if (b != std::string::npos && ("," + line.substr(a + 1, b - a - 1) + ",").find("," + control + ",") != std::string::npos) return line.substr(b + 1);
  }
  return "/";
}

TEST(Limits, RealControlGroup) {
  for (bool v2 : {false, true}) {
    const std::string mount = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    if (!std::filesystem::exists(mount + (v2 ? "/cgroup.controllers" : "/cgroup.procs"))) continue;
    const std::string own = own_path(v2 ? "" : "cpu");
    const OwnGroup outer(mount + (own == "/" ? "" : own));
    if (!outer.made()) continue;
    // The outer group allows half a CPU; the inner one, which the child enters, more than that.
    if (v2 && !outer.write("cgroup.subtree_control", "+cpu")) continue;
    if (!(v2 ? outer.write("cpu.max", "50000 100000") : outer.write("cpu.cfs_period_us", "100000") && outer.write("cpu.cfs_quota_us", "50000"))) continue;
    const OwnGroup inner(outer.folder());
    if (!inner.made()) continue;
    const std::string text = in_child([&] {
      if (!inner.write("cgroup.procs", std::to_string(getpid()))) return std::string("cannot enter");
      const Limits l = read_limits();
      return std::to_string(l.threads()) + " " + std::to_string(l.cpu_quota) + " " + (l.reasons.empty() ? "" : l.reasons.back());
    });
    if (text == "cannot enter") continue;
    EXPECT_EQ(text, "1 0.500000 0.5 CPUs' time: " + outer.folder() + (v2 ? "/cpu.max" : "/cpu.cfs_quota_us"));
    return;
  }
  GTEST_SKIP() << "no control group with a CPU quota can be made here";
}

}  // namespace
}  // namespace ridge
