#include "threads/thread_team.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "base/error.h"
#include "threads/kernel_share.h"

namespace ridge {
namespace {

using cpu::Fault;
using cpu::Task;
using cpu::Worker;

// A task that counts how often each of its units runs and checks that the previous task has finished.
struct Counted {
  std::vector<uint8_t> runs;
  const Counted* before = nullptr;
  std::atomic<int64_t> finished{0};
  std::atomic<bool> early{false};

  static void run(const void* args, int64_t begin, int64_t end, Worker&) {
    auto& self = *static_cast<Counted*>(const_cast<void*>(args));
    if (self.before && self.before->finished.load() != int64_t(self.before->runs.size())) self.early = true;
    for (int64_t i = begin; i < end; ++i) ++self.runs[size_t(i)];  // unshared bytes: a unit handed out twice is also a race
    self.finished += end - begin;
  }
};

void burn(std::chrono::microseconds time) {
  auto until = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < until) {
  }
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + 1e-6 * double(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int c = 0; c < CPU_SETSIZE; ++c)
      if (CPU_ISSET(c, &set)) cpus.push_back(c);
  return cpus;
}

class Teams : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Teams, testing::Range(1, 6));

TEST_P(Teams, RunEveryUnitOnceAndInTaskOrder) {
  ThreadTeam team({.threads = GetParam(), .spin_us = 200});
  ASSERT_EQ(team.size(), GetParam());
  std::mt19937 random(unsigned(17 * GetParam()));
  for (int round = 0; round < 60; ++round) {
    size_t tasks = random() % 12;
    std::vector<Counted> counted(tasks);
    std::vector<Task> program;
    for (size_t i = 0; i < tasks; ++i) {
      constexpr int64_t sizes[] = {0, 1, 2, 3, 7, 31, 33, 64, 1009};
      counted[i].runs.resize(size_t(sizes[random() % std::size(sizes)]));
      if (i) counted[i].before = &counted[i - 1];
      constexpr double costs[] = {0, 0.5, 20, 900, 5000, 1e6};
      program.push_back({Counted::run, &counted[i], int64_t(counted[i].runs.size()), costs[random() % std::size(costs)]});
    }
    Fault fault;
    team.run(program, nullptr, fault);
    for (const Counted& c : counted) {
      EXPECT_FALSE(c.early);
      for (uint8_t n : c.runs) ASSERT_EQ(n, 1);
    }
  }
}

TEST_P(Teams, PassResultsBetweenTasks) {
  // Each task writes the previous task's result, shifted by one: a missing barrier gives an old value (and a race).
  constexpr int64_t n = 257, tasks = 40;
  ThreadTeam team({.threads = GetParam(), .spin_us = 200});
  struct Shift {
    cpu::Ref from, to;
    static void run(const void* args, int64_t begin, int64_t end, Worker& w) {
      auto& self = *static_cast<const Shift*>(args);
      for (int64_t i = begin; i < end; ++i) w.at<int64_t>(self.to)[i] = w.at<int64_t>(self.from)[(i + 1) % n] + 1;
    }
  };
  std::vector<int64_t> a(n), b(n);
  for (int64_t i = 0; i < n; ++i) a[size_t(i)] = 1000 * i;
  std::byte* bases[] = {reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(b.data())};
  Shift there{{0, 0}, {1, 0}}, back{{1, 0}, {0, 0}};
  std::vector<Task> program;
  for (int64_t t = 0; t < tasks; ++t) program.push_back({Shift::run, t % 2 ? &back : &there, n, t % 3 ? 100.0 : 1.0});
  Fault fault;
  team.run(program, bases, fault);
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(a[size_t(i)], 1000 * ((i + tasks) % n) + tasks);
}

TEST_P(Teams, RethrowAndStayUsable) {
  ThreadTeam team({.threads = GetParam(), .spin_us = 200});
  struct Throwing {
    int64_t at;
    static void run(const void* args, int64_t begin, int64_t end, Worker&) {
      int64_t at = static_cast<const Throwing*>(args)->at;
      if (at < 0 || (begin <= at && at < end)) fail(ErrorCode::value, "[test] unit {}", at);
    }
  };
  for (double cost : {1.0, 10000.0}) {
    for (int64_t at : {-1, 0, 1, 49, 99}) {
      Throwing throwing{at};
      Counted first, never;
      first.runs.resize(100), never.runs.resize(100);
      Task program[] = {{Counted::run, &first, 100, cost}, {Throwing::run, &throwing, 100, cost}, {Counted::run, &never, 100, cost}};
      Fault fault;
      try {
        team.run(program, nullptr, fault);
        FAIL() << "nothing was thrown";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::value);
      }
      EXPECT_EQ(first.finished, 100);
      EXPECT_EQ(never.finished, 0);
      team.run(std::span(program).first(1), nullptr, fault);
      EXPECT_EQ(first.finished, 200);
    }
  }
}

TEST_P(Teams, RejectNesting) {
  ThreadTeam team({.threads = GetParam(), .spin_us = 200});
  struct Nested {
    ThreadTeam* team;
    static void run(const void* args, int64_t, int64_t, Worker&) {
      Fault fault;
      static_cast<const Nested*>(args)->team->run({}, nullptr, fault);
    }
  };
  Nested nested{&team};
  for (double cost : {1.0, 10000.0}) {
    Task program[] = {{Nested::run, &nested, 10, cost}};
    Fault fault;
    try {
      team.run(program, nullptr, fault);
      FAIL() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
    }
  }
  EXPECT_NO_THROW(team.reserve_scratch(1));
}

TEST_P(Teams, GiveEachThreadItsOwnAlignedScratch) {
  ThreadTeam team({.threads = GetParam(), .spin_us = 200});
  team.reserve_scratch(100);
  team.reserve_scratch(70000);
  team.reserve_scratch(10);  // never shrinks
  EXPECT_GE(team.scratch_bytes(), 70000);
  struct Fill {
    static void run(const void*, int64_t begin, int64_t end, Worker& w) {
      if (reinterpret_cast<uintptr_t>(w.scratch) % 64) fail(ErrorCode::internal, "[test] not aligned");
      for (int64_t i = begin; i < end; ++i) {
        std::memset(w.scratch, int(i), 70000);
        burn(std::chrono::microseconds(20));
        for (int j = 0; j < 70000; j += 997)
          if (w.scratch[j] != std::byte(i)) fail(ErrorCode::internal, "[test] scratch is shared");
      }
    }
  };
  Task program[] = {{Fill::run, nullptr, 50, 50000}};
  Fault fault;
  EXPECT_NO_THROW(team.run(program, nullptr, fault));
}

TEST_P(Teams, FlushDenormalsOnlyWhileRunning) {
  ThreadTeam team({.threads = GetParam(), .spin_us = 200});
  struct Halve {
    static void run(const void* args, int64_t begin, int64_t end, Worker&) {
      auto* out = static_cast<float*>(const_cast<void*>(args));
      volatile float tiny = 1.2e-38f;
      for (int64_t i = begin; i < end; ++i) out[i] = tiny * 0.5f;
    }
  };
  std::vector<float> out(64, 1.0f);
  Task program[] = {{Halve::run, out.data(), 64, 1000}};
  Fault fault;
  team.run(program, nullptr, fault);
  for (float x : out) EXPECT_EQ(x, 0.0f);
  volatile float tiny = 1.2e-38f;
  EXPECT_GT(tiny * 0.5f, 0.0f);
}

TEST_P(Teams, UseNoProcessorTimeWhenIdle) {
  // Whatever was requested: no thread spins 10 ms after the last task.
  for (TeamOptions options : {TeamOptions{.wait = Wait::automatic}, TeamOptions{.wait = Wait::passive}, TeamOptions{.wait = Wait::active, .spin_us = 1e9}}) {
    options.threads = GetParam();
    ThreadTeam team(options);
    Counted counted;
    counted.runs.resize(100);
    Task program[] = {{Counted::run, &counted, 100, 10000}};
    Fault fault;
    for (int i = 0; i < 2; ++i) {
      team.run(program, nullptr, fault);
      // Threads that the system delays may start their 10 ms late; a team that never parks fails every time.
      double used = 1;
      for (int tries = 0; tries < 20 && used > 0.002; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        const double before = cpu_seconds();
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        used = cpu_seconds() - before;
      }
      EXPECT_LT(used, 0.002);
    }
    EXPECT_EQ(counted.finished, 200);
  }
}

TEST_P(Teams, RunTheSameUnitsAtAnySpeedsAndWaiting) {
  std::mt19937 random(3);
  for (Wait wait : {Wait::active, Wait::passive}) {
    TeamOptions options{.threads = GetParam(), .wait = wait, .spin_us = 50};
    for (int i = 0; i < GetParam(); ++i) options.speeds.push_back(i < 2 ? 1 : 0.3);
    ThreadTeam team(options);
    EXPECT_EQ(team.wait(), wait);
    for (int round = 0; round < 50; ++round) {
      Counted counted;
      counted.runs.resize(1 + random() % 3000);
      Task program[] = {{Counted::run, &counted, int64_t(counted.runs.size()), round % 2 ? 5000.0 : 100.0}};
      Fault fault;
      team.run(program, nullptr, fault);
      for (uint8_t n : counted.runs) ASSERT_EQ(n, 1);
    }
  }
}

// The calling thread has nothing left to do while the other one is still at work.
// What tasks measure of themselves is a lower bound, and the time around the runs an upper one.
// Fewer threads and coarser grains, changed between runs: every unit runs once, alone on the leader if it is the only one in use.
TEST_P(Teams, ShareWorkOutInAnyWay) {
  ThreadTeam team({.threads = GetParam()});
  struct Seen {
    std::vector<uint8_t> runs = std::vector<uint8_t>(4000, 0);
    std::vector<std::atomic<int>> by;
    explicit Seen(int threads) : by(size_t(threads)) {}
    static void run(const void* args, int64_t begin, int64_t end, Worker& worker) {
      auto& self = *static_cast<Seen*>(const_cast<void*>(args));
      for (int64_t i = begin; i < end; ++i) ++self.runs[size_t(i)];
      ++self.by[size_t(worker.id)];
    }
  };
  const ThreadTeam::Sharing ways[] = {{.threads = 1}, {.threads = 0}, {.threads = 2, .coarseness = 4}, {.threads = 0, .coarseness = 64},
                                      {.threads = 0}, {.threads = 1}};
  for (const ThreadTeam::Sharing& sharing : ways) {
    team.use(sharing);
    for (int turn = 0; turn < 20; ++turn) {
      Seen seen(team.size());
      Fault fault;
      std::byte* bases[] = {nullptr};
      const Task task{Seen::run, &seen, int64_t(seen.runs.size()), 100};
      team.run({&task, 1}, bases, fault);
      EXPECT_TRUE(std::all_of(seen.runs.begin(), seen.runs.end(), [](uint8_t n) { return n == 1; }));
      for (int id = 1; id < team.size() && sharing.threads == 1; ++id) EXPECT_EQ(seen.by[size_t(id)], 0) << "thread " << id << " is not in use";
    }
  }
}

TEST_P(Teams, CountTheTimeInsideKernels) {
  struct Burning {
    std::atomic<int64_t> ns{0};
    static void run(const void* args, int64_t begin, int64_t end, Worker&) {
      const auto start = std::chrono::steady_clock::now();
      for (int64_t i = begin; i < end; ++i) burn(std::chrono::microseconds(100));
      const_cast<Burning*>(static_cast<const Burning*>(args))->ns += (std::chrono::steady_clock::now() - start).count();
    }
  } burning;
  ThreadTeam team({.threads = GetParam()});
  EXPECT_EQ(team.kernel_seconds(), 0);
  constexpr double kSlack = 1.01;  // two clocks
  // A shared task and one of the leader alone; no team is in kernels between its runs.
  const std::vector<Task> program = {{Burning::run, &burning, 64, 1e5}, {Burning::run, &burning, 1, 1e5}};
  Fault fault;
  const KernelTime begin = kernel_time(team);
  double outside = 0;
  for (int i = 0; i < 3; ++i) {
    const KernelTime before = kernel_time(team);
    team.run(program, nullptr, fault);
    outside += kernel_time(team).wall - before.wall;
    burn(std::chrono::milliseconds(5));
  }
  const KernelTime end = kernel_time(team);
  EXPECT_GE(end.kernels * kSlack, 1e-9 * double(burning.ns)) << "less than the tasks took";
  EXPECT_GE(end.kernels * kSlack, 3 * 65 * 1e-4);
  EXPECT_LE(end.kernels, kSlack * outside * GetParam()) << "threads were in kernels while no program ran";
  EXPECT_LT(kernel_share(begin, end, GetParam()), 1);
}

TEST(KernelShare, IsTheTimeInKernelsOfAllThreads) {
  EXPECT_DOUBLE_EQ(kernel_share({10, 1, 2}, {20, 20, 20}, 2), 0.9);
  EXPECT_DOUBLE_EQ(kernel_share({10, 1, 2}, {20, 11, 20}, 2), 0.5) << "others used the processors while a kernel was running";
  EXPECT_DOUBLE_EQ(kernel_share({0, 0, 0}, {1, 3, 3}, 2), 1) << "clocks differ a little";
  EXPECT_DOUBLE_EQ(kernel_share({1, 1, 1}, {1, 1, 1}, 2), 0) << "no time has passed";
}

TEST(ThreadTeam, ReturnsOnceEveryUnitIsDone) {
  struct Late {
    std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> begun = 0, done = 0;
    static void run(const void* args, int64_t begin, int64_t end, Worker&) {
      auto& self = *static_cast<Late*>(const_cast<void*>(args));
      for (int64_t i = begin; i < end; ++i) {
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(1);
        for (++self.begun; self.begun < 2 && std::chrono::steady_clock::now() < limit;) std::this_thread::yield();
        if (std::this_thread::get_id() != self.caller) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ++self.done;
      }
    }
  };
  ThreadTeam team({.threads = 2, .spin_us = 200});
  for (int round = 0; round < 3; ++round) {
    Late late;
    Fault fault;
    team.run(std::vector<Task>{{Late::run, &late, 2, 1e6}}, nullptr, fault);
    EXPECT_EQ(late.done, 2);
  }
}

TEST(ThreadTeam, SplitsLargeTasks) {
  ThreadTeam team({.threads = 2});
  struct Spin {
    std::atomic<int> ids[2] = {};
    static void run(const void* args, int64_t begin, int64_t end, Worker& w) {
      static_cast<Spin*>(const_cast<void*>(args))->ids[w.id] += int(end - begin);
      for (int64_t i = begin; i < end; ++i) burn(std::chrono::microseconds(200));
    }
  } spin;
  Task program[] = {{Spin::run, &spin, 100, 200000}};
  Fault fault;
  for (int i = 0; i < 50 && spin.ids[1] == 0; ++i) team.run(program, nullptr, fault);
  EXPECT_GT(spin.ids[1], 0);
}

TEST(ThreadTeam, PinsAllButTheCaller) {
  const std::vector<int> before = allowed_cpus();
  std::vector<int> cpus = before;
  if (cpus.size() < 2) cpus.push_back(cpus[0]);
  ThreadTeam team({.cpus = {cpus[1], cpus[0], cpus[0]}});
  ASSERT_EQ(team.size(), 3);
  struct Where {
    int wanted;
    std::atomic<int> seen{0}, astray{0};
    static void run(const void* args, int64_t begin, int64_t end, Worker& w) {
      auto& self = *static_cast<Where*>(const_cast<void*>(args));
      if (w.id) (sched_getcpu() == self.wanted ? self.seen : self.astray) += int(end - begin);
      burn(std::chrono::microseconds(100 * (end - begin)));
    }
  } where{cpus[0]};
  Task program[] = {{Where::run, &where, 100, 100000}};
  Fault fault;
  for (int i = 0; i < 50 && where.seen == 0; ++i) team.run(program, nullptr, fault);
  EXPECT_GT(where.seen, 0);
  EXPECT_EQ(where.astray, 0);
  EXPECT_EQ(allowed_cpus(), before) << "the caller's mask is its own";
}

TEST(ThreadTeam, SleepsWhereProcessorsAreShared) {
  const int usable = usable_cpus();
  EXPECT_EQ(ThreadTeam({.threads = usable}).wait(), Wait::active);
  EXPECT_EQ(ThreadTeam({.threads = usable + 1}).wait(), Wait::passive);
  EXPECT_EQ(ThreadTeam({.threads = usable + 1, .wait = Wait::active}).wait(), Wait::active);
  EXPECT_EQ(ThreadTeam({.threads = 1, .wait = Wait::passive}).wait(), Wait::passive);
}

// However many threads there are, a task wakes no more of them than the processors can run.
TEST(ThreadTeam, OversubscribedThreadsSleep) {
  constexpr int kThreads = 100, kUnits = 200;
  cpu_set_t all, two;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&two);
  const std::vector<int> cpus = allowed_cpus();
  for (size_t i = 0; i < std::min<size_t>(2, cpus.size()); ++i) CPU_SET(cpus[i], &two);
  ASSERT_EQ(sched_setaffinity(0, sizeof two, &two), 0);
  struct Where {
    std::atomic<int> units[kThreads] = {};
    static void run(const void* args, int64_t begin, int64_t end, Worker& w) {
      static_cast<Where*>(const_cast<void*>(args))->units[w.id] += int(end - begin);
      burn(std::chrono::microseconds(50 * (end - begin)));
    }
  };
  {
    ThreadTeam team({.threads = kThreads});
    EXPECT_EQ(team.wait(), Wait::passive);
    int64_t fewest = kThreads;
    for (int tries = 0; tries < 5; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until all sleep, if the machine is not too busy
      Where where;
      const Task program[] = {{Where::run, &where, kUnits, 50000}};
      Fault fault;
      team.run(program, nullptr, fault);
      EXPECT_EQ(std::accumulate(std::begin(where.units), std::end(where.units), 0), kUnits);
      fewest = std::min<int64_t>(fewest, std::count_if(std::begin(where.units), std::end(where.units), [](int n) { return n > 0; }));
    }
    EXPECT_LE(fewest, 2);
  }
  sched_setaffinity(0, sizeof all, &all);
}

TEST(ThreadTeam, KeepsSmallTasksOnTheLeader) {
  ThreadTeam team({.threads = 4});
  struct Where {
    static void run(const void*, int64_t begin, int64_t end, Worker& w) {
      if (w.id != 0 || begin != 0 || end != 10) fail(ErrorCode::internal, "[test] a small task was shared");
    }
  };
  std::vector<Task> program(1000, Task{Where::run, nullptr, 10, 10});
  Fault fault;
  EXPECT_NO_THROW(team.run(program, nullptr, fault));
}

TEST(ThreadTeam, RejectsInvalidSizes) {
  for (int threads : {-1, 1000000}) EXPECT_THROW(ThreadTeam({.threads = threads}), Error);
}

TEST(ThreadTeam, RejectsListsOfWrongLength) {
  EXPECT_THROW(ThreadTeam({.threads = 2, .cpus = {0}}), Error);
  EXPECT_THROW(ThreadTeam({.threads = 2, .speeds = {1, 1, 1}}), Error);
  EXPECT_THROW(ThreadTeam({.threads = 2, .speeds = {1, 0}}), Error);
  EXPECT_THROW(ThreadTeam({.cpus = {0, -1}}), Error);
}

TEST(ThreadTeam, UsesAtLeastOneProcessor) {
  EXPECT_GE(usable_cpus(), 1);
  EXPECT_LE(usable_cpus(), int(std::thread::hardware_concurrency()));
  EXPECT_EQ(ThreadTeam().size(), usable_cpus());
}

}  // namespace
}  // namespace ridge
