#include "machine/chips.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

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

TEST(Chips, AreThoseOfTheTable) {
  ASSERT_EQ(known_chips().size(), 4u);
  const ChipGuess* max = find_chip("Apple M1 Max");
  ASSERT_TRUE(max);
  EXPECT_EQ(max->batch, (Range{128, 256}));
  EXPECT_EQ(max->hidden, (Range{256, 512}));
  EXPECT_EQ(max->backbone_units, 256);
  EXPECT_EQ(max->backbone_layers, 2);
  EXPECT_EQ(max->tflops, 8);
  EXPECT_EQ(max->gbs, 300);
  EXPECT_FALSE(find_chip("Apple M2"));
  EXPECT_FALSE(find_chip(""));
}

TEST(Chips, ScalingMeetsEveryKnownChip) {
  for (const ChipGuess& chip : known_chips()) {
    const ChipGuess guess = scaled_guess(chip.tflops, chip.gbs);
    EXPECT_EQ(guess.batch, chip.batch) << chip.chip;
    EXPECT_EQ(guess.hidden, chip.hidden);
    EXPECT_EQ(guess.backbone_units, chip.backbone_units);
    // What there is plenty of changes nothing.
    EXPECT_EQ(scaled_guess(10 * chip.tflops, chip.gbs).hidden, chip.hidden);
    EXPECT_EQ(scaled_guess(chip.tflops, 10 * chip.gbs).hidden, chip.hidden);
  }
}

TEST(Chips, ScalingGrowsWithTheMachine) {
  ChipGuess last = scaled_guess(1e-6, 1e-3);
  EXPECT_GE(last.batch.low, 1);
  EXPECT_GE(last.hidden.low, 8);
  for (double scale = 1e-3; scale < 1e6; scale *= 1.3) {
    const ChipGuess guess = scaled_guess(2 * scale, 50 * scale);
    EXPECT_GE(guess.batch.low, last.batch.low);
    EXPECT_GE(guess.hidden.high, last.hidden.high);
    EXPECT_LE(guess.batch.low, guess.batch.high);
    EXPECT_EQ(guess.hidden.low % 8, 0);
    last = guess;
  }
  EXPECT_LE(last.batch.high, 1 << 17);
  for (double bad : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(scaled_guess(bad, 50), Error);
    EXPECT_THROW(scaled_guess(2, bad), Error);
  }
}

TEST(Chips, EveryGuessSaysThatItIsOne) {
  const MachineCeilings measured = ceilings_of(4000, 150), nothing;
  for (const ChipGuess& guess : {guess_for("Apple M1 Pro"), guess_for("AMD EPYC"), guess_for("AMD EPYC", &measured), guess_for("", &nothing)})
    EXPECT_EQ(guess.label.find("guess"), 0u) << guess.label;
  EXPECT_EQ(guess_for("AMD EPYC", &measured).batch, (Range{64, 128}));
  EXPECT_NE(guess_for("AMD EPYC", &measured).label.find("measured"), std::string::npos);
  EXPECT_EQ(guess_for("Apple M1 Ultra", &measured).batch, (Range{256, 512}));
}

TEST(Chips, TargetsAreTheChipsOrThoseGiven) {
  const MachineCeilings c = ceilings_of(4000, 150);
  std::vector<Target> all = targets(machine_of("Apple M1 Pro"), c, {});
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

TEST(Chips, GpusCountForTheBest) {
  MachineCeilings c = ceilings_of(4000, 150);
  EXPECT_EQ(best_tflops(c), 4);  // of all threads, fp32 alone
  EXPECT_EQ(best_memory_gbs(c), 150);
  c.gpus.push_back({.name = "gpu", .matmul = {{Precision::fp32, {.median = 50000}}, {Precision::bf16, {.median = 900000}}}, .copy_gbs = {.median = 3000}});
  EXPECT_EQ(best_tflops(c), 50);
  EXPECT_EQ(best_memory_gbs(c), 3000);
}

}  // namespace
}  // namespace ridge
