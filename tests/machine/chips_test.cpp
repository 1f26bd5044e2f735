#include "doctor/chips.h"

#include <gtest/gtest.h>

namespace ridge {
namespace {

MachineCeilings ceilings_of(double gflops, double gbs) {
  MachineCeilings c;
  c.rates = {{DType::f32, 1, {.median = gflops / 4}}, {DType::f32, 4, {.median = gflops}}, {DType::bf16, 4, {.median = 9 * gflops}}};
  c.bandwidths = {{"L1", Movement::copy, 4, 0, {.median = 50 * gbs}},
                  {"memory", Movement::copy, 4, 0, {.median = gbs}},
                  {"memory", Movement::read, 4, 0, {.median = gbs / 2}}};
  return c;
}

Machine machine_of(const std::string& name, int64_t available = 0) {
  Machine machine;
  machine.topology.cpu_name = name;
  machine.limits.memory_available = available;
  return machine;
}

TEST(Chips, MatchTheTable) {
  ASSERT_EQ(known_chips().size(), 4u);
  const ChipTarget* max = find_chip("Apple M1 Max");
  ASSERT_TRUE(max);
  EXPECT_EQ(max->tflops, 8);
  EXPECT_EQ(max->gbs, 300);
  EXPECT_FALSE(find_chip("Apple M2"));
  EXPECT_FALSE(find_chip(""));
}

TEST(Chips, TargetsComeFromTheChipOrTheSettings) {
  const MachineCeilings c = ceilings_of(4000, 150);
  std::vector<ProbeTarget> all = targets(machine_of("Apple M1 Pro"), c, {});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_TRUE(all[0].met());
  EXPECT_TRUE(all[1].met());
  EXPECT_EQ(all[0].source, "target of Apple M1 Pro");
  all = targets(machine_of("Apple M1 Pro"), c, {.tflops = 4.01});
  EXPECT_FALSE(all[0].met());
  EXPECT_EQ(all[0].source, "min_tflops");
  EXPECT_EQ(all[1].source, "target of Apple M1 Pro");

  EXPECT_TRUE(targets(machine_of("AMD EPYC"), c, {}).empty());
  all = targets(machine_of("AMD EPYC", int64_t(8) << 30), c, {.gbs = 151, .memory_bytes = int64_t(8) << 30});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_FALSE(all[0].met());
  EXPECT_TRUE(all[1].met());
  EXPECT_EQ(all[1].measured, 8);
}

TEST(Chips, TheBestRateIncludesGpus) {
  MachineCeilings c = ceilings_of(4000, 150);
  EXPECT_EQ(best_tflops(c), 4);  // of all threads, fp32 only
  EXPECT_EQ(best_memory_gbs(c), 150);
  c.gpus.push_back({.name = "gpu", .matmul = {{Precision::fp32, {.median = 50000}}, {Precision::bf16, {.median = 900000}}}, .copy_gbs = {.median = 3000}});
  EXPECT_EQ(best_tflops(c), 50);
  EXPECT_EQ(best_memory_gbs(c), 3000);
}

// Columns are as wide as their contents, separated by blanks: "2" and "0.2214" are not 20.2214.
TEST(Chips, TargetsAreInColumns) {
  const std::string text =
      targets_text(std::vector<ProbeTarget>{{"fp32 rate", 2, 0.22137, "TFLOP/s", "min_tflops"}, {"memory bandwidth", 123456, 7, "GB/s", "min_bandwidth"}});
  EXPECT_EQ(text,
            "target                    wanted        measured          source\n"
            "fp32 rate              2 TFLOP/s  0.2214 TFLOP/s  missed  min_tflops\n"
            "memory bandwidth  1.235e+05 GB/s          7 GB/s  missed  min_bandwidth\n");
}

}  // namespace
}  // namespace ridge
