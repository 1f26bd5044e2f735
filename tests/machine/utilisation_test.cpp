#include "machine/utilisation.h"

#include <sched.h>
#include <sys/resource.h>

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include <fmt/core.h>

#include "machine_fixtures.h"

namespace ridge {
namespace {

double cpu_seconds(int who) {
  rusage usage{};
  getrusage(who, &usage);
  return double(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + 1e-6 * double(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// A line of /proc/stat: ticks busy, idle, stolen.
std::string cpu_line(const std::string& name, int64_t busy, int64_t idle, int64_t stolen = 0) {
  return fmt::format("{} {} 0 {} {} {} 0 0 {} 5 5\n", name, busy - busy / 3, busy / 3, idle - idle / 4, idle / 4, stolen);
}

class RecordedUse : public testing::Test {
 protected:
  void stat(std::initializer_list<std::pair<int64_t, int64_t>> cpus, int64_t stolen = 0) {
    std::string text = cpu_line("cpu ", 1, 1);
    int cpu = 0;
    for (auto [busy, idle] : cpus) text += cpu_line(fmt::format("cpu{}", cpu++), busy, idle, stolen);
    // In place, because the sampler keeps the file open.
    tree.write("proc/stat", text + "intr 123 4 5\nctxt 7\n");
  }
  FileTree tree;
};

TEST_F(RecordedUse, SharesCoverTheTimeBetweenSamples) {
  stat({{100, 100}, {50, 0}, {7, 9}, {0, 1000}});
  tree.write("proc/self/statm", "1000 250 3 4 5 6 7\n");
  tree.write("proc/meminfo", "MemTotal:       8000 kB\nMemFree:        100 kB\nMemAvailable:   6000 kB\n");
  UtilisationSampler sampler({{"P", {1, 0}}, {"E", {3}}}, {}, tree.root());
  stat({{190, 110}, {120, 30}, {700, 9}, {75, 1025}});
  Utilisation u = sampler.sample();
  ASSERT_TRUE(u.counted);
  ASSERT_EQ(u.cpus.size(), 3u);
  EXPECT_DOUBLE_EQ(u.cpus[0], 0.7);  // cpu1, the first of its group
  EXPECT_DOUBLE_EQ(u.cpus[1], 0.9);
  EXPECT_DOUBLE_EQ(u.cpus[2], 0.75);
  EXPECT_DOUBLE_EQ(u.groups[0], 0.8);
  EXPECT_DOUBLE_EQ(u.groups[1], 0.75);
  EXPECT_DOUBLE_EQ(u.busy, 235.0 / 300);
  EXPECT_DOUBLE_EQ(u.balance, 0.8 / 0.75);
  EXPECT_EQ(u.resident, 250 * sysconf(_SC_PAGESIZE));
  EXPECT_EQ(u.available, 6000 * 1024);
  EXPECT_GT(u.peak_resident, 0);
  EXPECT_EQ(u.summary(), "CPU 78 % (P 80 %, E 75 %, balance 1.07×)");
  stat({{190, 210}, {120, 130}, {700, 9}, {75, 1125}});
  EXPECT_EQ(sampler.sample().busy, 0);
  EXPECT_DOUBLE_EQ(sampler.overall().busy, 235.0 / 600);
}

TEST_F(RecordedUse, StolenTimeIsNotBusy) {
  stat({{0, 0}}, 0);
  UtilisationSampler sampler({{"P", {0}}}, {}, tree.root());
  stat({{50, 30}}, 20);
  Utilisation u = sampler.sample();
  EXPECT_DOUBLE_EQ(u.busy, 0.5);
  EXPECT_DOUBLE_EQ(u.stolen, 0.2);
  EXPECT_EQ(u.summary(), "CPU 50 %");
}

TEST(Utilisation, OthersUsedTheRest) {
  Utilisation u;
  u.counted = true, u.cpus = {0.9, 0.7}, u.busy = 0.8, u.process = 1;
  EXPECT_DOUBLE_EQ(u.others(), 0.3);
  u.stolen = 0.2;
  EXPECT_DOUBLE_EQ(u.others(), 0.5);
  u.process = 2;  // clocks may disagree a little
  EXPECT_EQ(u.others(), 0);
  u.counted = false, u.process = 0;
  EXPECT_EQ(u.others(), 0);
}

TEST_F(RecordedUse, WithoutCountersOnlyTheProcessIsKnown) {
  for (const char* text : {"", "garbage", "cpu 1 2 3\n", "intr 5\ncpu0 1 2 3 4 5 6 7 8\n", "cpu1 1 2 3 4 5 6 7 8\n"}) {
    tree.write("proc/stat", text);
    UtilisationSampler sampler({{"P", {0}}}, {}, tree.root());
    Utilisation u = sampler.sample();
    EXPECT_FALSE(u.counted) << text;
    EXPECT_GE(u.busy, 0);
    EXPECT_LE(u.busy, 1);
    EXPECT_NE(u.summary().find("by this process"), std::string::npos);
  }
  UtilisationSampler nothing({}, {}, tree.root() / "missing");
  EXPECT_LE(nothing.sample().busy, 1);
}

TEST_F(RecordedUse, NonsenseGivesSharesBetweenZeroAndOne) {
  std::mt19937 random(11);
  stat({{100, 100}, {50, 0}});
  UtilisationSampler sampler({{"P", {0}}, {"E", {1}}}, {}, tree.root());
  const std::string good = cpu_line("cpu", 1, 1) + cpu_line("cpu0", 1000, 2000) + cpu_line("cpu1", 5, 99999999) + "intr 5\n";
  for (int i = 0; i < 400; ++i) {
    std::string text = good;
    for (int k = 0; k < 1 + i % 5; ++k) text[random() % text.size()] = char(random());
    if (i % 7 == 0) text.resize(random() % text.size());
    tree.write("proc/stat", text);
    Utilisation u = sampler.sample();
    for (double x : {u.busy, u.stolen, u.cpus[0], u.cpus[1], u.groups[0], u.groups[1]}) {
      ASSERT_GE(x, 0) << text;
      ASSERT_LE(x, 1) << text;
    }
    ASSERT_GE(u.balance, 1) << text;
  }
}

TEST(Utilisation, ReportsGpus) {
  int calls = 0;
  UtilisationSampler sampler({}, [&] {
    ++calls;
    return std::vector<GpuUse>{{"one", calls == 1 ? 0.5 : 1.0, 1 << 20, 1 << 30}, {"two", -1, 0, 0}};
  });
  EXPECT_EQ(sampler.sample().gpus[0].busy, 0.5);
  const Utilisation u = sampler.sample();
  EXPECT_EQ(u.gpus[0].busy, 1.0);
  EXPECT_NE(u.summary().find("GPU 0 100 %"), std::string::npos) << u.summary();
  EXPECT_EQ(u.summary().find("GPU 1"), std::string::npos);
  EXPECT_EQ(sampler.overall().gpus[0].busy, 0.75);
}

TEST(Utilisation, SeesABusyThreadWhereItIsPinned) {
  const std::vector<int> cpus = read_limits().cpus;
  std::vector<CpuGroup> groups{{"busy", {cpus[0]}}};
  if (cpus.size() > 1) groups.push_back({"other", {cpus[1]}});
  std::atomic<bool> stop{false}, pinned{false};
  std::thread worker([&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[0], &set);
    pinned = sched_setaffinity(0, sizeof set, &set) == 0;
    while (!stop) {
    }
  });
  UtilisationSampler sampler(groups);
  Utilisation u;
  double used = 0;
  // The CPU is busy whoever else uses it; the thread's share depends on them, and the process's own clock says how much it got.
  for (int tries = 0; tries < 5 && (!u.counted || u.groups[0] + u.stolen < 0.9); ++tries) {
    const double before = cpu_seconds(RUSAGE_SELF);
    sampler.sample();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    u = sampler.sample();
    used = (cpu_seconds(RUSAGE_SELF) - before) / u.seconds;
  }
  stop = true;
  worker.join();
  ASSERT_TRUE(pinned);
  if (!u.counted) return;  // a system without /proc/stat
  EXPECT_GE(u.groups[0] + u.stolen, 0.85);
  EXPECT_GT(u.process, 0);
  EXPECT_NEAR(u.process, used, 0.05 + 0.1 * used);
  EXPECT_GE(u.resident, 1 << 20);
  EXPECT_GE(u.peak_resident, u.resident / 2);
  EXPECT_GT(u.available, 0);
}

TEST(Utilisation, CostsLessThanAThousandthOfACore) {
  // One sample per second may take 1 ms of a core. Other machines have up to a few hundred more CPUs than this one, hence the factor.
  std::vector<CpuGroup> groups{{"all", read_limits().cpus}};
  UtilisationSampler sampler(groups);
  sampler.sample();
  const int64_t bytes_before = sampler.bytes_read();
  const double before = cpu_seconds(RUSAGE_THREAD);
  constexpr int kSamples = 500;
  for (int i = 0; i < kSamples; ++i) sampler.sample();
  const double each = (cpu_seconds(RUSAGE_THREAD) - before) / kSamples;
  EXPECT_LT(each, 1e-3);
  RecordProperty("microseconds_per_sample", fmt::format("{:.1f}", 1e6 * each));
  const int64_t bytes = (sampler.bytes_read() - bytes_before) / kSamples;
  EXPECT_LT(bytes, 4096 + 256 * (*std::max_element(groups[0].cpus.begin(), groups[0].cpus.end()) + 1));
}

TEST(Utilisation, WatchesUntilItEnds) {
  std::atomic<int> samples{0};
  const auto count = [&] {
    ++samples;
    return std::vector<GpuUse>{};
  };
  {
    UtilisationWatch watch({{"all", read_limits().cpus}}, count, 0.01);
    for (int i = 0; i < 500 && samples < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_GE(samples, 3);
    EXPECT_GT(watch.latest().seconds, 0);
    EXPECT_GE(watch.overall().seconds, watch.latest().seconds);
  }
  const int after = samples;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(samples, after);
  // An expensive sample lengthens the period instead of using more of a core.
  samples = 0;
  const auto slow = [&] {
    const double start = cpu_seconds(RUSAGE_THREAD);
    while (cpu_seconds(RUSAGE_THREAD) - start < 0.002) {
    }
    return count();
  };
  UtilisationWatch watch({}, slow, 0.001);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LE(samples, 1);
}

}  // namespace
}  // namespace ridge
