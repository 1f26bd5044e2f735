#include "measure/probe.h"

#include <gtest/gtest.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "machine/measurement_store.h"

namespace ridge {
namespace {

// Small caches make small working sets, so that the whole probe is fast.
Machine small_machine() {
  Machine machine;
  CoreKind kind;
  kind.cpus = {0, 1};
  kind.caches = {{1, 16 << 10, 1}, {2, 128 << 10, 1}, {3, 1 << 20, 2}};
  machine.usable = {kind};
  machine.topology.kinds = {kind};
  machine.limits.cpus = {0, 1};
  return machine;
}

TEST(Probe, UsesPowersOfTwoAsThreadCounts) {
  EXPECT_EQ(thread_counts(1, false), (std::vector<int>{1}));
  EXPECT_EQ(thread_counts(2, false), (std::vector<int>{1, 2}));
  EXPECT_EQ(thread_counts(6, false), (std::vector<int>{1, 2, 4, 6}));
  EXPECT_EQ(thread_counts(6, true), (std::vector<int>{1, 6}));
  EXPECT_EQ(thread_counts(0, true), (std::vector<int>{1}));
  EXPECT_EQ(thread_counts(384, false).size(), 10u);
}

TEST(Probe, WorkingSetsFitTheirCacheLevelOnly) {
  Machine machine = small_machine();
  EXPECT_EQ(working_sets(machine, 1, Movement::copy), (std::vector<WorkingSet>{{"L1", 8 << 10}, {"L2", 64 << 10}, {"L3", 512 << 10}, {"memory", 4 << 20}}));
  // Two threads share the third level.
  EXPECT_EQ(working_sets(machine, 2, Movement::read), (std::vector<WorkingSet>{{"L1", 8 << 10}, {"L2", 64 << 10}, {"L3", 256 << 10}, {"memory", 8 << 20}}));
  // A share no larger than the previous level would measure that one again, so it is left out.
  machine.usable[0].caches[2].cores = 64;
  EXPECT_EQ(working_sets(machine, 64, Movement::copy).size(), 3u);
  // A second kind with smaller caches determines the size, and one that lacks a level removes it.
  machine.usable.push_back(machine.usable[0]);
  machine.usable[1].caches = {{1, 8 << 10, 1}, {2, 128 << 10, 1}};
  EXPECT_EQ(working_sets(machine, 1, Movement::copy), (std::vector<WorkingSet>{{"L1", 4 << 10}, {"L2", 64 << 10}, {"memory", 4 << 20}}));
  // Some memory is left for other programs.
  machine.limits.memory_available = 8 << 20;
  EXPECT_EQ(working_sets(machine, 1, Movement::copy).back().bytes, 1 << 20);
  // Nothing is known: memory only.
  machine.usable = {CoreKind{}};
  EXPECT_EQ(working_sets(machine, 1, Movement::copy).size(), 1u);
}

TEST(Probe, MeasuresEverythingAndKeepsIt) {
  int last = -1, most = 0;
  ProbeOptions options{.quick = true, .threads = 2, .seconds = 1e9};
  options.progress = [&](std::string_view what, int done, int total) {
    EXPECT_FALSE(what.empty());
    EXPECT_EQ(done, ++last);
    most = total;
  };
  bool asked_quick = false;
  options.gpus.push_back([&](bool quick) {
    asked_quick = quick;
    const Measured rate{.median = 9e5, .spread = 0.1, .samples = 3, .variant = "tiles"};
    return GpuFindings{.gpus = {{.name = "a card",
                                 .matmul = {{Precision::bf16, rate}, {Precision::tf32, {.median = 4e5, .samples = 2}}},
                                 .copy_gbs = {.median = 3000, .samples = 5},
                                 .launch_us = {.median = 2.5, .samples = 9},
                                 .remarks = {"fp32 matmul: no time"}}}};
  });
  const MachineCeilings c = probe(small_machine(), options);
  EXPECT_EQ(last, most - 1);
  EXPECT_TRUE(asked_quick);
  EXPECT_EQ(c.threads(), 2);
  EXPECT_EQ(c.levels(), (std::vector<std::string>{"L1", "L2", "L3", "memory"}));
  EXPECT_EQ(c.left_out, 0);
  for (int threads : {0, 1, 2}) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      ASSERT_TRUE(c.rate(dtype, threads)) << name(dtype);
      EXPECT_GT(c.rate(dtype, threads)->gflops.median, 0);
    }
    for (const std::string& level : c.levels())
      for (Movement movement : {Movement::copy, Movement::triad, Movement::read}) {
        ASSERT_TRUE(c.bandwidth(level, movement, threads));
        EXPECT_GT(c.bandwidth(level, movement, threads)->gbs.median, 0);
      }
  }
  EXPECT_EQ(c.fork_joins.size(), 2u);
  EXPECT_FALSE(c.rate(DType::f32, 3));
  EXPECT_FALSE(c.bandwidth("L9", Movement::copy));

  MeasurementStore store({"0000000000000001", "{}"}, {});
  EXPECT_FALSE(kept_ceilings(store));
  keep(store, c);
  EXPECT_EQ(store.number("ceiling/fma/f32/t2"), c.rate(DType::f32)->gflops.median);
  MachineCeilings kept = kept_ceilings(store).value();
  EXPECT_GE(kept.when, c.when);
  kept.when = c.when;
  EXPECT_EQ(nlohmann::json::parse(to_json(kept)), nlohmann::json::parse(to_json(c)));

  MachineCeilings later = c;
  later.gpus.clear();
  keep(store, later);
  EXPECT_TRUE(kept_ceilings(store)->gpus.empty());  // the card has been removed
}

TEST(Probe, MeasuresAllThreadsThenOneThenTheRest) {
  std::vector<std::string> order;
  ProbeOptions options{.threads = 8, .seconds = 1e-9};  // time for nothing
  options.progress = [&](std::string_view what, int, int) {
    const std::string with(what.substr(what.rfind(',') + 1));
    if (order.empty() || order.back() != with) order.push_back(with);
  };
  probe(small_machine(), options);
  EXPECT_EQ(order, (std::vector<std::string>{" 8 threads", " 1 thread", " 4 threads", " 2 threads"}));
}

TEST(Probe, ReportsWhatItHadNoTimeFor) {
  const MachineCeilings c = probe(small_machine(), {.quick = true, .threads = 1, .seconds = 1e-9});
  EXPECT_EQ(c.left_out, 4 + 3 * 4 + 1);
  EXPECT_TRUE(c.rates.empty());
  EXPECT_EQ(c.threads(), 0);
  MeasurementStore store({"0000000000000001", "{}"}, {});
  keep(store, c);
  EXPECT_FALSE(kept_ceilings(store));
}

TEST(Probe, ReadsOnlyKnownMeasurements) {
  MeasurementStore store({"0000000000000001", "{}"}, {});
  for (const char* key : {"ceiling/", "ceiling/fma", "ceiling/fma/f32", "ceiling/fma/f99/t1", "ceiling/fma/f32/tx", "ceiling/fma/f32/t-1", "ceiling/copy/L1",
                          "ceiling/fly/L1/t1", "ceiling/fork_join", "ceiling/fork_join/x/t1"})
    for (const char* value : {"1", "[]", "{}", R"({"value":3})"}) store.put(key, {.value = value});
  EXPECT_FALSE(kept_ceilings(store));
  store.put("ceiling/fma/f32/t4", {.value = R"({"value":3})"});
  store.put("ceiling/gpu/0", {.value = "{}"});
  const MachineCeilings kept = kept_ceilings(store).value();
  EXPECT_EQ(kept.rates.size(), 1u);
  EXPECT_EQ(kept.rate(DType::f32)->threads, 4);
  EXPECT_TRUE(kept.bandwidths.empty());
  EXPECT_EQ(kept.gpus.size(), 1u);
}

}  // namespace
}  // namespace ridge
