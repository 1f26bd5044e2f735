#include "machine/device_choice.h"

#include <gtest/gtest.h>

#include "backend/registry.h"
#include "machine/expect_error.h"

namespace ridge {
namespace {

using Kind = Device::Kind;

const Device kCpu{}, kCuda0{Kind::cuda, 0}, kCuda1{Kind::cuda, 1}, kMetal{Kind::metal, 0};

GpuScan scan_of_two() {
  GpuScan scan;
  scan.gpus = {{.vendor = Gpu::Vendor::nvidia, .name = "Big", .ordinal = 0, .memory_total = 100, .memory_free = 10},
               {.vendor = Gpu::Vendor::nvidia, .name = "Small", .ordinal = 1, .memory_total = 50, .memory_free = 40}};
  return scan;
}

GpuScan scan_of_none() {
  GpuScan scan;
  scan.no_cuda = "no NVIDIA driver";
  return scan;
}

constexpr Backends kAllBackends{.cuda = true, .metal = true};

TEST(DeviceChoice, ReadsEveryName) {
  EXPECT_TRUE(parse_device("auto").automatic);
  EXPECT_TRUE(parse_device("AUTO").automatic);
  EXPECT_EQ(parse_device("Cpu").kind, Kind::cpu);
  EXPECT_EQ(parse_device("cuda").kind, Kind::cuda);
  EXPECT_FALSE(parse_device("cuda").index);
  EXPECT_EQ(parse_device("CUDA:12").index, 12);
  EXPECT_EQ(parse_device("metal").kind, Kind::metal);
  EXPECT_EQ(parse_device("mps").kind, Kind::metal);
  EXPECT_EQ(parse_device("gpu").kind, Kind::cuda);
}

TEST(DeviceChoice, UnknownNamesSuggestTheNearest) {
  struct Typo {
    const char *word, *meant;
  };
  for (const Typo& t : {Typo{"cdua", "'cuda'"}, Typo{"nvidia", "'cuda'"}, Typo{"metl", "'metal'"}, Typo{"atuo", "'auto'"}, Typo{"cpu0", "'cpu'"},
                        Typo{"cuda:", "cuda:0"}, Typo{"cuda:-1", "cuda:0"}, Typo{"cuda:x", "cuda:0"}, Typo{"cuda:1 ", "cuda:0"},
                        Typo{"cuda:99999999999", "cuda:0"}, Typo{"", "valid: auto"}, Typo{"tpu", "valid: auto"}}) {
    const Error error = error_of([&] { parse_device(t.word); });
    EXPECT_EQ(error.code(), ErrorCode::usage) << t.word;
    EXPECT_TRUE(mentions(error.what(), t.meant)) << error.what();
  }
}

TEST(DeviceChoice, TakesAnAvailableDevice) {
  const auto devices = known_devices(scan_of_two(), kAllBackends);
  for (auto [word, device] : {std::pair{"cuda:0", kCuda0}, {"cuda:1", kCuda1}, {"cuda", kCuda1}, {"cpu", kCpu}}) {
    const DeviceChoice choice = choose_device(word, Fallback::forbid, devices);
    EXPECT_EQ(choice.device, device) << word;
    EXPECT_FALSE(choice.fell_back);
    EXPECT_TRUE(choice.notices.empty());
    EXPECT_TRUE(mentions(choice.reason, word));
  }
  EXPECT_TRUE(mentions(choose_device("cuda", Fallback::allow, devices).reason, "most free memory"));
}

TEST(DeviceChoice, AMissingNumberFallsBackToItsKind) {
  const auto devices = known_devices(scan_of_two(), kAllBackends);
  const DeviceChoice choice = choose_device("cuda:7", Fallback::allow, devices);
  EXPECT_EQ(choice.device, kCuda1);
  EXPECT_TRUE(choice.fell_back);
  ASSERT_EQ(choice.notices.size(), 2u);
  EXPECT_EQ(choice.notices[0], "there is no cuda:7; the nearest is cuda:1");
  const Error error = error_of([&] { (void)choose_device("cuda:7", Fallback::forbid, devices); });
  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  EXPECT_TRUE(mentions(error.what(), "nearest is cuda:1"));
}

TEST(DeviceChoice, WithoutABackendFallsBackToTheCpu) {
  for (const char* word : {"cuda", "cuda:1", "cuda:9", "mps", "metal"})
    for (const GpuScan& scan : {scan_of_two(), scan_of_none()}) {
      const auto devices = known_devices(scan, {});
      const DeviceChoice choice = choose_device(word, Fallback::allow, devices);
      EXPECT_EQ(choice.device, kCpu) << word;
      EXPECT_TRUE(choice.fell_back);
      ASSERT_EQ(choice.notices.size(), 2u) << word;
      EXPECT_TRUE(mentions(choice.notices[1], std::string("cpu runs instead of ") + word)) << choice.notices[1];
      EXPECT_EQ(error_of([&] { (void)choose_device(word, Fallback::forbid, devices); }).code(), ErrorCode::unsupported);
    }
  EXPECT_TRUE(mentions(choose_device("cuda", Fallback::allow, known_devices(scan_of_two(), {})).notices[0], "not available in this build"));
  EXPECT_TRUE(mentions(choose_device("cuda", Fallback::allow, known_devices(scan_of_none(), {})).notices[0], "no NVIDIA driver"));
}

TEST(DeviceChoice, AGpuWithoutLibrariesIsNamedButNotUsed) {
  const auto devices = known_devices(scan_of_two(), {.cuda = true, .metal = false, .cuda_missing = "no NVRTC; pip install it"});
  DeviceChoice choice = choose_device("auto", Fallback::forbid, devices);
  EXPECT_EQ(choice.device, kCpu);
  EXPECT_TRUE(mentions(choice.notices.at(0), "pip install it"));
  EXPECT_TRUE(mentions(error_of([&] { (void)choose_device("cuda", Fallback::forbid, devices); }).what(), "pip install it"));
  EXPECT_TRUE(usable_backends(scan_of_none()).cuda_missing.empty()) << "nothing is looked for where there is no device";
}

TEST(DeviceChoice, MetalFallsBackToCudaBeforeTheCpu) {
  std::vector<KnownDevice> devices = {{kCuda0, "Big"}, {kMetal, "", "needs macOS"}, {kCpu, ""}};
  EXPECT_EQ(choose_device("mps", Fallback::allow, devices).device, kCuda0);
  devices[0].missing = "broken";
  EXPECT_EQ(choose_device("mps", Fallback::allow, devices).device, kCpu);
}

TEST(DeviceChoice, SmallWorkStaysOnTheCpu) {
  const auto devices = known_devices(scan_of_two(), kAllBackends);
  const DeviceCost costs[] = {{kCpu, 2e11, 4e10, 2e-7, 0, true}, {kCuda0, 4e14, 4e12, 5e-6, 2e10, true}, {kCuda1, 1e14, 1e12, 5e-6, 2e10, false}};
  const StepWork small{.flops = 1e6, .bytes = 1e5, .launches = 20, .transfer_bytes = 1e4};
  DeviceChoice choice = choose_device("auto", Fallback::allow, devices, small, costs);
  EXPECT_EQ(choice.device, kCpu);
  EXPECT_TRUE(mentions(choice.runner_up, "cuda:0")) << choice.runner_up;
  EXPECT_TRUE(mentions(choice.reason, "measured"));
  const StepWork large{.flops = 1e13, .bytes = 1e10, .launches = 500, .transfer_bytes = 1e6};
  choice = choose_device("auto", Fallback::allow, devices, large, costs);
  EXPECT_EQ(choice.device, kCuda0);
  EXPECT_TRUE(mentions(choice.runner_up, "cuda:1"));
  EXPECT_TRUE(mentions(choice.runner_up, "guess"));
  EXPECT_FALSE(choice.fell_back);
}

TEST(DeviceChoice, PrefersTheCpuAmongEquals) {
  const std::vector<KnownDevice> devices = {{kCuda0, "Big"}, {kCpu, ""}};
  const StepWork work{.flops = 1e9};
  for (double ratio : {0.9, 1.0, 1.04, 1.06, 2.0}) {
    const DeviceCost costs[] = {{kCpu, 1e9, 0, 0, 0, true}, {kCuda0, 1e9 * ratio, 0, 0, 0, true}};
    EXPECT_EQ(choose_device("auto", Fallback::allow, devices, work, costs).device, ratio > 1.05 ? kCuda0 : kCpu) << ratio;
  }
}

TEST(DeviceChoice, AutoTakesAvailableDevices) {
  DeviceChoice choice = choose_device("auto", Fallback::forbid, known_devices(scan_of_none(), {}));
  EXPECT_EQ(choice.device, kCpu);
  EXPECT_FALSE(choice.fell_back);
  EXPECT_TRUE(choice.notices.empty());
  choice = choose_device("auto", Fallback::allow, known_devices(scan_of_two(), {}));  // GPUs that the build cannot use are named
  EXPECT_EQ(choice.device, kCpu);
  EXPECT_EQ(choice.notices.size(), 2u);
  choice = choose_device("auto", Fallback::allow, known_devices(scan_of_two(), kAllBackends));  // nothing to compare
  EXPECT_EQ(choice.device, kCuda1);
  EXPECT_TRUE(mentions(choice.reason, "no expected times"));
}

TEST(DeviceChoice, ExpectedTimesAddUp) {
  const DeviceCost cost{kCuda0, 1e12, 1e11, 1e-5, 1e10, true};
  EXPECT_DOUBLE_EQ(expected_seconds({.flops = 1e12, .bytes = 1e10}, cost), 1.0);
  EXPECT_DOUBLE_EQ(expected_seconds({.flops = 1e10, .bytes = 1e11}, cost), 1.0);
  EXPECT_DOUBLE_EQ(expected_seconds({.launches = 100, .transfer_bytes = 1e9}, cost), 0.101);
  EXPECT_EQ(expected_seconds({}, cost), 0);
}

TEST(DeviceChoice, ThisMachineHasADevice) {
  EXPECT_EQ(select_device("cpu", Fallback::forbid).device, kCpu);
  const DeviceChoice choice = select_device();
  EXPECT_FALSE(choice.reason.empty());
  EXPECT_EQ(to_string(kCuda1), "cuda:1");
  EXPECT_EQ(to_string(kMetal), "metal");
}

}  // namespace
}  // namespace ridge
