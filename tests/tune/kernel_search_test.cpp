// The search for faster kernels on a fake device with known times: it finds the best variant of each kernel at once, under noise, and adopts neither wrong
// results nor gains that are not there.
#include "tune/kernel_search.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace ridge {
namespace {

struct FakeKernels : KernelTarget {
  std::vector<KernelSite> all;
  std::vector<double> base;                  // seconds by site
  std::vector<std::vector<double>> factors;  // by site and variant
  std::vector<std::pair<size_t, size_t>> wrong = {};
  double noise = 0, checking = 0, whole = 1;  // whole: factor for the step if any kernel is changed
  int busy_first = 0, samples = 0;
  uint64_t drawn = 0, seed = 1;
  double clock = 0;

  void add(double seconds, std::vector<double> of, double roof = 0) {
    KernelSite site{.key = "kernel " + std::to_string(all.size()), .roof_seconds = roof};
    for (size_t v = 0; v < of.size(); ++v) site.variants.push_back("v" + std::to_string(v + 1));
    all.push_back(site), base.push_back(seconds), factors.push_back(std::move(of));
  }
  bool is_wrong(const KernelAssignment& a) const {
    return std::any_of(wrong.begin(), wrong.end(), [&](const auto& w) { return a[w.first] == w.second; });
  }
  std::vector<KernelSite> sites() override { return all; }
  std::string check(const KernelAssignment& a) override { return clock += checking, is_wrong(a) ? "wrong result" : ""; }
  KernelSample measure(const KernelAssignment& a) override {
    EXPECT_FALSE(is_wrong(a)) << "a wrong candidate is never timed";
    KernelSample s;
    s.busy = samples++ < busy_first;
    bool changed = false;
    for (size_t k = 0; k < all.size(); ++k) {
      const double draw = double(uniform_from(random_word({seed, 0, 9}, drawn++)));
      s.seconds.push_back(base[k] * (a[k] ? factors[k][a[k] - 1] : 1) * (1 - noise * std::log(1 - draw)) * (s.busy ? 1.5 : 1));
      s.step_seconds += s.seconds.back(), changed |= a[k] > 0;
    }
    if (changed) s.step_seconds *= whole;
    clock += s.step_seconds;
    return s;
  }
  double now() override { return clock; }
};

TEST(KernelSearch, FindsTheBestOfEveryKernelAtOnce) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    FakeKernels t;
    t.seed = seed, t.noise = 0.02;
    t.add(0.004, {1.1, 0.8, 1.0}), t.add(0.002, {0.9, 1.2, 0.7}), t.add(0.003, {1.05, 1.3}), t.add(0.001, {});
    const KernelSearchResult r = search_kernels(t, 100);
    EXPECT_EQ(r.best, (KernelAssignment{2, 3, 0, 0})) << "seed " << seed;
    EXPECT_EQ(r.adopted(), 2);
    EXPECT_LT(r.best_step_seconds, r.step_seconds);
    EXPECT_EQ(r.measured, 8);
    EXPECT_EQ(r.ended, "every candidate is measured");
    EXPECT_LT(r.samples, 70) << "all kernels are measured in the same steps";
  }
}

TEST(KernelSearch, AdoptsNoGainThatIsNotThere) {
  int adopted = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    FakeKernels t;
    t.seed = seed, t.noise = 0.05;
    for (int k = 0; k < 10; ++k) t.add(0.001, {1.0, 0.99, 1.0, 1.01, 1.0});
    adopted += int(search_kernels(t, 100).adopted());
  }
  EXPECT_LE(adopted, 8) << "of 400 kernels of which none gains 2 %";
}

TEST(KernelSearch, RefusesWrongVariantsAndNoOthers) {
  FakeKernels t;
  t.add(0.004, {0.5, 0.8}), t.add(0.002, {0.6, 0.7}), t.add(0.003, {0.7, 0.9}), t.add(0.003, {0.9, 0.8});
  t.wrong = {{0, 1}, {2, 1}};
  const KernelSearchResult r = search_kernels(t, 100);
  EXPECT_EQ(r.best, (KernelAssignment{2, 1, 2, 2}));
  EXPECT_EQ(r.refused, (std::vector<std::string>{"kernel 0 v1: wrong result", "kernel 2 v1: wrong result"}));
}

TEST(KernelSearch, LeavesColdKernelsAndThoseAtTheRoofAlone) {
  FakeKernels t;
  t.add(0.01, {0.5}, 0.0098), t.add(0.00005, {0.1}), t.add(0.01, {0.5}, 0.0001);
  const KernelSearchResult r = search_kernels(t, 100);
  EXPECT_EQ(r.best, (KernelAssignment{0, 0, 1})) << "the first is at its roof, the second below 1 % of the step";
  EXPECT_EQ(r.hot.size(), 2u);
  EXPECT_EQ(r.measured, 1);
}

TEST(KernelSearch, KeepsWithinItsTime) {
  FakeKernels t;
  for (int k = 0; k < 3; ++k) t.add(0.01, std::vector<double>(12, 0.9));
  t.checking = 0.05;
  const KernelSearchResult r = search_kernels(t, 1);
  EXPECT_EQ(r.ended, "the time was up");
  EXPECT_LT(r.measured, 36);
  EXPECT_LT(t.clock, 1.6) << "what is begun is ended: one comparison";
  EXPECT_EQ(r.adopted(), 3) << "of the variants that were measured";
}

TEST(KernelSearch, MarksAndRepeatsSamplesOfABusyMachine) {
  FakeKernels t;
  t.add(0.01, {0.9});
  t.busy_first = 3;
  EXPECT_FALSE(search_kernels(t, 100).busy) << "the repeats were quiet";
  t.busy_first = 1 << 30, t.samples = 0;
  EXPECT_TRUE(search_kernels(t, 100).busy);
}

// Kernels that are faster alone, in a step that is slower: another kernel then waits for memory.
TEST(KernelSearch, RefusesFasterKernelsOfASlowerStep) {
  FakeKernels t;
  t.add(0.01, {0.9}), t.add(0.01, {});
  t.whole = 1.2;
  EXPECT_EQ(search_kernels(t, 100).adopted(), 0);
}

}  // namespace
}  // namespace ridge
