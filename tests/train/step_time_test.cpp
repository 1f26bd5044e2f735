#include "train/step_time.h"

#include <gtest/gtest.h>

#include "machine/caches.h"
#include "machine/machine.h"
#include "machine/measurement_store.h"
#include "measure/ceilings.h"
#include "measure/default_team.h"
#include "support/temp_folder.h"
#include "support/variable.h"
#include "tasks/gpt/format_trial.h"
#include "train/run_device.h"

namespace ridge {
namespace {

KernelRates rates() {
  KernelRates r;
  r.fma_gflops = 400, r.copy_gbs = 20, r.cached_gbs = 80, r.launch_us = 1, r.correction = 1.5;
  r.matmul_gflops = 100, r.large_matmul_gflops = 200, r.attention_gflops = 50, r.large_attention_gflops = 150;
  return r;
}

double expected_ms(const std::string& name, double flops, double bytes, int64_t times = 1) {
  const KernelRun runs[] = {{KernelReport{.name = name, .flops = flops, .bytes = bytes}, times}};
  return 1e3 * expected_seconds(runs, rates());
}

TEST(StepTime, SmallKernelsSlowDownAndLargeOnesDoNot) {
  EXPECT_NEAR(expected_ms("matmul", 1e8, 0), 1.5 * (1 + 1e-3), 1e-9);
  EXPECT_NEAR(expected_ms("matmul", 6e8, 0), 3 + 1e-3, 1e-9);
  EXPECT_NEAR(expected_ms("matmul", 6e10, 0), 300 + 1e-3, 1e-9);
  EXPECT_NEAR(expected_ms("attention", 1e7, 0), 1.5 * (0.2 + 1e-3), 1e-9);
  EXPECT_NEAR(expected_ms("attention_grad", 1.5e9, 0), 10 + 1e-3, 1e-9);
}

TEST(StepTime, NeverFallsWhenAKernelGrows) {
  for (const char* name : {"matmul", "attention", "map[5]"})
    for (double flops = 1e6, last = 0; flops < 1e11; flops *= 1.1) {
      const double now = expected_ms(name, flops, flops / 10);
      EXPECT_GT(now, last) << name << " of " << flops;
      last = now;
    }
}

TEST(StepTime, MovementKernelsDependOnWhereTheirBytesAre) {
  const double cache = double(last_level_cache_bytes());
  EXPECT_NEAR(expected_ms("map[5]", 1e12, 8e4), 1.5 * (1e-3 + 1e-3), 1e-9) << "its arithmetic is hidden";
  EXPECT_NEAR(expected_ms("map[5]", 0, 2 * cache), 1e3 * 2 * cache / 20e9 + 1e-3, 1e-6);
  EXPECT_NEAR(expected_ms("map[5]", 0, 8e4, 7), 7 * expected_ms("map[5]", 0, 8e4), 1e-9);
}

TEST(StepTime, RatesOfABusyMachineAreMarkedAndExpire) {
  const test::TempFolder folder;
  const test::Variable cache("RIDGE_CACHE", folder / "cache");
  KernelRates quiet = rates(), busy = rates();
  quiet.others = 0.05, busy.others = 0.63;
  auto quiet_now = [] { return 0.02; };
  auto busy_now = [] { return 0.5; };
  EXPECT_TRUE(are_trusted(quiet, 1 << 30, [] { return ADD_FAILURE() << "nobody needs to look", 0.0; }));
  EXPECT_TRUE(are_trusted(busy, 60, busy_now));
  EXPECT_FALSE(are_trusted(busy, 60, quiet_now)) << "it can be measured better now";
  EXPECT_FALSE(are_trusted(busy, 3600, busy_now));
  EXPECT_FALSE(kept_kernel_rates(default_team(), 1 << 24));
  keep_kernel_rates(default_team(), 1 << 24, Precision::fp32, busy);
  EXPECT_EQ(kept_kernel_rates(default_team(), 1 << 24, Precision::fp32, busy_now)->source,
            "kernels measured on this machine before, while others kept 63 % of it busy");
  EXPECT_FALSE(kept_kernel_rates(default_team(), 1 << 24, Precision::fp32, quiet_now));
  const MeasurementStore store(fingerprint(detect_machine({})));
  EXPECT_NE(kept_rates_text(store, default_team().size()).find("kernels in fp32; while others kept 63 %"), std::string::npos);
  keep_kernel_rates(default_team(), 1 << 24, Precision::fp32, quiet);
  EXPECT_EQ(kept_kernel_rates(default_team(), 1 << 24)->source, "kernels measured on this machine before");
  EXPECT_EQ(kept_kernel_rates(default_team(), 1 << 24)->correction, quiet.correction);
}

// optimize_perf=false: the measurement store has no influence.
TEST(StepTime, StoredRatesAreIgnoredWithoutTuning) {
  const test::TempFolder folder;
  const test::Variable cache("RIDGE_CACHE", folder / "cache");
  constexpr int64_t kMemory = 1 << 24;
  keep_kernel_rates(default_team(), kMemory, Precision::fp32, rates());
  EXPECT_GT(measured_balance(default_backend(), Precision::fp32, kMemory, Figures::kept), 0);
  EXPECT_EQ(measured_balance(default_backend(), Precision::fp32, kMemory, Figures::none), 0);
  EXPECT_FALSE(known_gpu_ceilings("a GPU", Figures::none));
  EXPECT_FALSE(try_formats(GptConfig{.vocab = 64, .block = 64, .layers = 2, .heads = 4, .width = 128}, 4, default_team(), kMemory, Figures::none).rates);
}

}  // namespace
}  // namespace ridge
