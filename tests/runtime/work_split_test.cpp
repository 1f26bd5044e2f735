#include "threads/work_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "base/error.h"

namespace ridge {
namespace {

// A core in virtual time: its assumed speed, and how much of it other programs take.
struct SimulatedCore {
  double speed = 1;     // as given to the split
  double slowdown = 1;  // the real speed's share of it, constant
  double stolen = 0;    // share of every period used by others
  double period = 1;    // in ns
  double phase = 0;     // position in its period at the start
  double late = 0;      // arrives this much later at the task

  double effective() const { return speed * slowdown * (1 - stolen); }

  // When work of `ns` (at speed 1) that starts now is finished.
  double finish(double now, double ns) const {
    const double busy = ns / (speed * slowdown);
    if (stolen == 0) return now + busy;
    const double own = period * (1 - stolen);
    double at = std::fmod(now + phase, period), elapsed = 0, rest = busy;
    if (at >= own) elapsed += period - at, at = 0;  // waits for its turn
    if (rest > own - at) {
      rest -= own - at, elapsed += period - at, at = 0;
      const double whole = std::floor(rest / own);
      elapsed += whole * period, rest -= whole * own;
    }
    return now + elapsed + rest;
  }
};

struct Outcome {
  double time = 0;
  int64_t claims = 0;
  std::vector<int64_t> units;  // done by each core
};

// Runs one task with the real split: the core that becomes free first claims next.
Outcome simulate(const std::vector<SimulatedCore>& cores, int64_t units, double unit_ns, double jitter = 0) {
  std::vector<double> speeds, free_at;
  for (const SimulatedCore& c : cores) speeds.push_back(c.speed), free_at.push_back(c.late);
  WorkSplit split(speeds);
  std::vector<int> distance(cores.size(), 0);
  std::vector<uint8_t> runs(static_cast<size_t>(units), 0);
  std::mt19937 random(5);
  Outcome outcome{.units = std::vector<int64_t>(cores.size())};
  const int64_t grains = split.cut(units, unit_ns);
  int64_t claimed = 0;
  split.deal();
  for (;;) {
    const size_t core = size_t(std::min_element(free_at.begin(), free_at.end()) - free_at.begin());
    if (std::isinf(free_at[core])) break;
    WorkSplit::Chunk chunk;
    while (!chunk && distance[core] < split.size())
      if (!(chunk = split.claim(int(core), distance[core]))) ++distance[core];
    if (!chunk) {
      free_at[core] = std::numeric_limits<double>::infinity();
      continue;
    }
    EXPECT_LT(chunk.begin, chunk.end);
    EXPECT_LE(chunk.end, units);
    for (int64_t u = chunk.begin; u < chunk.end; ++u) ++runs[size_t(u)];
    claimed += chunk.grains;
    double ns = double(chunk.end - chunk.begin) * unit_ns;
    ns *= 1 + jitter * (double(random()) / double(random.max()) - 0.5);
    free_at[core] = cores[core].finish(free_at[core], ns);
    outcome.time = std::max(outcome.time, free_at[core]);
    outcome.units[core] += chunk.end - chunk.begin;
    ++outcome.claims;
  }
  EXPECT_EQ(claimed, grains);
  for (uint8_t n : runs) EXPECT_EQ(n, 1);
  return outcome;
}

// No schedule is faster: units are indivisible, and each core does as many as fit.
double ideal(const std::vector<SimulatedCore>& cores, int64_t units, double unit_ns) {
  double total = 0;
  for (const SimulatedCore& c : cores) total += c.effective();
  auto done_by = [&](double t) {
    double done = 0;
    for (const SimulatedCore& c : cores) done += std::floor(t * c.effective() / unit_ns + 1e-9);
    return done;
  };
  double low = double(units) * unit_ns / total, high = low;
  while (done_by(high) < double(units)) high *= 1.5;
  for (int i = 0; i < 60; ++i) (done_by((low + high) / 2) < double(units) ? low : high) = (low + high) / 2;
  return high;
}

double loss(const std::vector<SimulatedCore>& cores, int64_t units, double unit_ns, double jitter = 0) {
  return simulate(cores, units, unit_ns, jitter).time / ideal(cores, units, unit_ns) - 1;
}

std::vector<SimulatedCore> cores_of(std::initializer_list<std::pair<int, double>> kinds) {
  std::vector<SimulatedCore> cores;
  for (auto [count, speed] : kinds) cores.insert(cores.end(), size_t(count), SimulatedCore{.speed = speed});
  return cores;
}

struct Scene {
  const char* name;
  std::vector<SimulatedCore> cores;
};

std::vector<Scene> known_speeds() {
  return {{"4 fast and 4 at 0.4", cores_of({{4, 1}, {4, 0.4}})},
          {"2P+8E+2LP", cores_of({{2, 1}, {8, 0.55}, {2, 0.3}})},
          {"10+10", cores_of({{10, 1}, {10, 0.72}})},
          {"one very slow core", cores_of({{7, 1}, {1, 0.05}})},
          {"a slow leader", cores_of({{1, 0.3}, {3, 1}})},
          {"all different", cores_of({{1, 1}, {1, 0.9}, {1, 0.77}, {1, 0.5}, {1, 0.31}})},
          {"two equal", cores_of({{2, 1}})},
          {"64 equal", cores_of({{64, 1}})},
          {"one", cores_of({{1, 1}})}};
}

// Surprises for the split: a core that others use, that arrives late, or that is slower than measured.
std::vector<Scene> surprises() {
  std::vector<Scene> scenes;
  auto with = [&](const char* name, std::vector<SimulatedCore> cores, size_t which, auto change) {
    change(cores[which]);
    scenes.push_back({name, std::move(cores)});
  };
  with("one of 8 at half speed", cores_of({{8, 1}}), 3, [](SimulatedCore& c) { c.slowdown = 0.5; });
  with("one of 8 at a third", cores_of({{8, 1}}), 7, [](SimulatedCore& c) { c.slowdown = 1.0 / 3; });
  with("one of 2 at half speed", cores_of({{2, 1}}), 1, [](SimulatedCore& c) { c.slowdown = 0.5; });
  with("one of 64 at half speed", cores_of({{64, 1}}), 11, [](SimulatedCore& c) { c.slowdown = 0.5; });
  with("one of 8 stolen half of the time", cores_of({{8, 1}}), 0, [](SimulatedCore& c) { c.stolen = 0.5, c.period = 20e3; });
  with("a fast one of 4+4 stolen half of the time", cores_of({{4, 1}, {4, 0.4}}), 2, [](SimulatedCore& c) { c.stolen = 0.5, c.period = 20e3, c.phase = 9e3; });
  with("a slow one of 4+4 stolen half of the time", cores_of({{4, 1}, {4, 0.4}}), 6, [](SimulatedCore& c) { c.stolen = 0.5, c.period = 20e3, c.phase = 15e3; });
  with("one of 8 that never comes", cores_of({{8, 1}}), 5, [](SimulatedCore& c) { c.slowdown = 1e-6, c.late = 1e12; });
  for (SimulatedCore& c : scenes.back().cores)
    if (c.late) c.slowdown = 1e-12;  // expected to contribute nothing
  return scenes;
}

// Many small units: 10 ms of work per core, in units of 0.1 µs to 20 µs.
TEST(WorkSplit, LosesLittleAgainstTheIdealAtKnownSpeeds) {
  for (const Scene& scene : known_speeds())
    for (double unit_ns : {100.0, 1000.0, 20000.0}) {
      const int64_t units = int64_t(double(scene.cores.size()) * 10e6 / unit_ns) + 7;
      EXPECT_LT(loss(scene.cores, units, unit_ns), 0.01) << scene.name << ", units of " << unit_ns << " ns";
      EXPECT_LT(loss(scene.cores, units, unit_ns, 0.3), 0.05) << scene.name << ", uneven units of " << unit_ns << " ns";
    }
}

TEST(WorkSplit, LosesLittleToUnknownSpeeds) {
  for (const Scene& scene : surprises())
    for (double unit_ns : {100.0, 1000.0, 20000.0}) {
      const int64_t units = int64_t(double(scene.cores.size()) * 10e6 / unit_ns) + 7;
      EXPECT_LT(loss(scene.cores, units, unit_ns), 0.05) << scene.name << ", units of " << unit_ns << " ns";
    }
}

// With indivisible units even the ideal schedule has waits; the split matches it exactly, and no slow core takes a unit that a fast one would have finished
// earlier.
TEST(WorkSplit, IsIdealForFewLargeUnits) {
  for (const Scene& scene : known_speeds())
    for (int64_t units = 1; units <= 200; ++units) ASSERT_LT(loss(scene.cores, units, 1e6), 1e-6) << scene.name << ", " << units << " units";
}

// A surprise costs one unit on the affected core, whatever the number of units; with 20 units per core that is 5 %.
TEST(WorkSplit, LosesAtMostOneUnitToASlowdown) {
  for (const Scene& scene : surprises()) {
    if (scene.cores.size() > 8) continue;
    double slowest = 1;
    for (const SimulatedCore& c : scene.cores)
      if (c.late == 0) slowest = std::min(slowest, c.effective());
    for (int64_t units = 1; units <= 400; ++units) {
      const double best = ideal(scene.cores, units, 1e6), time = simulate(scene.cores, units, 1e6).time;
      ASSERT_LT(time, best + 1e6 / slowest + 20e3) << scene.name << ", " << units << " units";
    }
  }
}

TEST(WorkSplit, NeverLosesToFewerCores) {
  // Efficiency cores help and never hold others up: all cores together are at least as fast as the fast ones alone, for any number of units.
  const auto fast = cores_of({{4, 1}}), all = cores_of({{4, 1}, {4, 0.4}, {2, 0.15}});
  for (int64_t units = 1; units <= 300; ++units) ASSERT_LE(simulate(all, units, 1e5).time, simulate(fast, units, 1e5).time * (1 + 1e-9)) << units;
}

TEST(WorkSplit, ClaimsRarely) {
  // A claim costs at most 0.1 µs: below 1 % of the work.
  for (const Scene& scene : known_speeds()) {
    const int64_t units = int64_t(scene.cores.size()) * 100000;
    const Outcome outcome = simulate(scene.cores, units, 100);
    EXPECT_LT(double(outcome.claims) * 100, 0.01 * double(units) * 100) << scene.name;
  }
}

TEST(WorkSplit, CoversOddSizesAndCosts) {
  for (int cores : {1, 2, 3, 7, 31})
    for (int64_t units : {int64_t(1), int64_t(2), int64_t(3), int64_t(31), int64_t(33), int64_t(1009)})
      for (double unit_ns : {1e-3, 0.5, 33.0, 999.0, 1001.0, 1e9}) simulate(cores_of({{cores, 1}, {1, 0.01}}), units, unit_ns);
}

TEST(WorkSplit, RejectsInvalidSpeeds) {
  for (double speed : {0.0, -1.0, std::nan(""), double(INFINITY)}) EXPECT_THROW(WorkSplit(std::vector<double>{1, speed}), Error);
}

TEST(WorkSplit, GivesEachGrainToOneThread) {
  // Threads arrive at any time, even while the next task is being set up.
  const std::vector<double> speeds{1, 1, 0.4, 0.1};
  WorkSplit split(speeds);
  constexpr int64_t units = 1000;
  std::vector<std::atomic<int>> runs(units);
  std::atomic<int64_t> unfinished{0};
  std::atomic<bool> stop{false};
  auto help = [&](int id) {
    for (int distance = 0; distance < 4; ++distance)
      while (auto chunk = split.claim(id, distance)) {
        for (int64_t u = chunk.begin; u < chunk.end; ++u) runs[size_t(u)].fetch_add(1, std::memory_order_relaxed);
        unfinished.fetch_sub(chunk.grains, std::memory_order_acq_rel);
      }
  };
  std::vector<std::thread> threads;
  for (int id = 1; id < 4; ++id)
    threads.emplace_back([&, id] {
      while (!stop) help(id), std::this_thread::yield();
    });
  for (int task = 1; task <= 500; ++task) {
    unfinished = split.cut(units, 100.0 * (task % 30));
    split.deal();
    help(0);
    while (unfinished.load(std::memory_order_acquire)) std::this_thread::yield();
    for (auto& n : runs) ASSERT_EQ(n.load(std::memory_order_relaxed), task);
  }
  stop = true;
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace ridge
