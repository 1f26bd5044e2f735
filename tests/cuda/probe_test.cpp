#include "backend/cuda/probe.h"

#include <gtest/gtest.h>

#include "support/fake_drivers.h"
#include "support/temp_folder.h"
#include "support/variable.h"

namespace ridge::cuda {
namespace {

using test::Variable;

// The fake device, measured with a few samples; its cuBLASLt is the same library under another name.
GpuFindings measure(bool with_blas = true, bool quick = true, bool rates_only = false) {
  const test::TempFolder folder;
  if (with_blas) std::filesystem::create_symlink(test::fake_driver("gpu"), folder / "libcublasLt.so.12");
  const LibrarySearch search{.first = {folder.path()}, .folders = {}, .system = false, .cuda = 12040};
  GpuProbeOptions options{.driver = test::fake_driver("gpu"), .libraries = search, .quick_seconds = 60, .seconds = 60, .most_samples = 5, .rest = 0};
  options.rates_only = rates_only;
  return gpu_probe(options)(quick);
}

std::string all(const std::vector<std::string>& remarks) {
  std::string text;
  for (const std::string& remark : remarks) text += remark + "\n";
  return text;
}

TEST(CudaProbe, MeasuresTheDevice) {
  const GpuFindings found = measure();
  EXPECT_EQ(found.none, "");
  ASSERT_EQ(found.gpus.size(), 1u);
  const GpuCeilings& gpu = found.gpus[0];
  EXPECT_EQ(gpu.name, "Fake GPU 0");
  EXPECT_EQ(all(gpu.remarks), "");
  // The fake clock is exact; events report floats.
  EXPECT_NEAR(gpu.copy_gbs.median, 100, 0.1);
  EXPECT_EQ(gpu.copy_gbs.variant, "driver's copy");  // the kernel has its launch on top
  EXPECT_NEAR(gpu.launch_us.median, 2, 0.01);
  EXPECT_NEAR(gpu.upload_pinned_gbs.median, 20, 0.1);
  EXPECT_NEAR(gpu.download_pinned_gbs.median, 20, 0.1);
  EXPECT_GT(gpu.round_trip_us.median, 0);
  EXPECT_GT(gpu.upload_pageable_gbs.median, 0);
  EXPECT_GT(gpu.download_pageable_gbs.median, 0);
  for (const Measured* m : {&gpu.copy_gbs, &gpu.launch_us, &gpu.round_trip_us, &gpu.upload_pinned_gbs, &gpu.upload_pageable_gbs}) EXPECT_GE(m->samples, 5);
  const std::pair<Precision, double> rates[] = {{Precision::fp32, 50000}, {Precision::tf32, 200000}, {Precision::bf16, 400000}, {Precision::fp16, 400000}};
  ASSERT_EQ(gpu.matmul.size(), std::size(rates));
  for (size_t i = 0; i < std::size(rates); ++i) {
    EXPECT_EQ(gpu.matmul[i].precision, rates[i].first);
    EXPECT_NEAR(gpu.matmul[i].gflops.median, rates[i].second, 1e-3 * rates[i].second);  // the best algorithm and layout
    EXPECT_EQ(gpu.matmul[i].gflops.variant, "2048 x 2048, TN");
  }
  EXPECT_EQ(gpu.fastest()->precision, Precision::bf16);
}

// A run waits only for the measurements that a step's time depends on.
TEST(CudaProbe, RatesOnlyMeasuresLess) {
  const GpuFindings found = measure(true, true, true);
  ASSERT_EQ(found.gpus.size(), 1u);
  const GpuCeilings& gpu = found.gpus[0];
  EXPECT_NEAR(gpu.copy_gbs.median, 100, 0.1);
  EXPECT_NEAR(gpu.launch_us.median, 2, 0.01);
  EXPECT_NEAR(gpu.upload_pinned_gbs.median, 20, 0.1);
  for (const Measured* m : {&gpu.round_trip_us, &gpu.download_pinned_gbs, &gpu.upload_pageable_gbs, &gpu.download_pageable_gbs}) EXPECT_EQ(m->samples, 0);
  ASSERT_EQ(gpu.matmul.size(), 3u);
  EXPECT_NEAR(gpu.fastest()->gflops.median, 400000, 400);
  const Variable turing("FAKE_GPU_MAJOR", "7");
  EXPECT_EQ(measure(true, true, true).gpus.at(0).fastest()->precision, Precision::fp16);
}

TEST(CudaProbe, EveryDeviceHasItsRow) {
  const Variable three("FAKE_GPU_COUNT", "3");
  const GpuFindings found = measure();
  ASSERT_EQ(found.gpus.size(), 3u);
  EXPECT_EQ(found.gpus[2].name, "Fake GPU 2");
  EXPECT_NEAR(found.gpus[2].copy_gbs.median, 100, 0.1);
}

TEST(CudaProbe, ReportsAMissingDriverInOneLine) {
  const GpuFindings found = gpu_probe({.driver = "libno-such-driver.so.1"})(true);
  EXPECT_TRUE(found.gpus.empty());
  EXPECT_EQ(found.none, "no NVIDIA driver (libno-such-driver.so.1 was not found)");
  const GpuFindings old = gpu_probe({.driver = test::fake_driver("old_gpu")})(true);
  EXPECT_NE(old.none.find("lacks cuDeviceGetCount"), std::string::npos);
}

TEST(CudaProbe, AbandonsAHangingDriver) {
  const Variable hangs("FAKE_GPU", "cuInit=-2");
  const GpuFindings found = gpu_probe({.driver = test::fake_driver("gpu"), .quick_start = 0.1, .quick_seconds = 0.1})(true);
  EXPECT_EQ(found.none, "the NVIDIA driver did not answer in time while it was measured");
}

TEST(CudaProbe, ReportsTheSustainedRate) {
  const GpuFindings found = measure(true, false);
  ASSERT_EQ(found.gpus.size(), 1u);
  ASSERT_EQ(found.gpus[0].matmul.size(), 4u);
  EXPECT_EQ(found.gpus[0].matmul[0].gflops.variant, "2048 x 2048, TN, 50 TFLOP/s sustained");  // the second of three proposals, one of which fails
}

TEST(CudaProbe, WithoutCublasLtTheRestIsMeasured) {
  const GpuFindings found = measure(false);
  ASSERT_EQ(found.gpus.size(), 1u);
  EXPECT_TRUE(found.gpus[0].matmul.empty());
  EXPECT_NEAR(found.gpus[0].copy_gbs.median, 100, 0.1);
  EXPECT_GT(found.gpus[0].download_pageable_gbs.samples, 0);
  ASSERT_EQ(found.gpus[0].remarks.size(), 1u);
  EXPECT_EQ(found.gpus[0].remarks[0].find("matmul: cuBLASLt was not found"), 0u);
}

TEST(CudaProbe, OlderChipsHaveFewerFormats) {
  const Variable turing("FAKE_GPU_MAJOR", "7");
  const GpuFindings found = measure();
  ASSERT_EQ(found.gpus.size(), 1u);
  ASSERT_EQ(found.gpus[0].matmul.size(), 2u);
  EXPECT_EQ(found.gpus[0].matmul[1].precision, Precision::fp16);
}

struct Fault {
  const char *faults, *says;
  bool none;    // no device at all
  bool copied;  // the copy was still measured
};
class BrokenGpu : public testing::TestWithParam<Fault> {};

TEST_P(BrokenGpu, ReportsTheFaultAndKeepsEarlierMeasurements) {
  const Fault& fault = GetParam();
  const Variable broken("FAKE_GPU", fault.faults);
  const GpuFindings found = measure();
  if (fault.none) {
    EXPECT_TRUE(found.gpus.empty());
    EXPECT_NE(found.none.find(fault.says), std::string::npos) << found.none;
    return;
  }
  ASSERT_EQ(found.gpus.size(), 1u);
  EXPECT_NE(all(found.gpus[0].remarks).find(fault.says), std::string::npos) << all(found.gpus[0].remarks);
  EXPECT_EQ(found.gpus[0].copy_gbs.samples > 0, fault.copied);
}

INSTANTIATE_TEST_SUITE_P(Faults, BrokenGpu,
                         testing::Values(Fault{"cuInit=803", "different versions", true, false}, Fault{"cuInit=-1", "crashed", true, false},
                                         Fault{"cuDeviceGetCount=999", "[cuDeviceGetCount]", true, false},
                                         Fault{"cuDevicePrimaryCtxRetain=2", "[cuDevicePrimaryCtxRetain] CUDA_ERROR_OUT_OF_MEMORY", false, false},
                                         Fault{"cuModuleLoadData=222", "the driver is too old", false, false},
                                         Fault{"cuMemAlloc_v2=2", "copy: [cuMemAlloc_v2] CUDA_ERROR_OUT_OF_MEMORY (2) for 32 MiB", false, false},
                                         Fault{"cuMemAlloc_v2=2@3", "bf16 matmul: [cuMemAlloc_v2]", false, true},
                                         Fault{"cuMemHostAlloc=2", "upload from pinned memory: [cuMemHostAlloc]", false, true},
                                         Fault{"cuLaunchKernel=719@100", "[cuLaunchKernel]", false, true},
                                         Fault{"cuStreamSynchronize=999@3", "[cuStreamSynchronize]", false, true},
                                         Fault{"cublasLtCreate=1", "matmul: [cublasLtCreate] CUBLAS_STATUS_FAKE (1)", false, true},
                                         Fault{"cublasLtMatmul=13@2", "bf16 matmul: [cublasLtMatmul]", false, true},
                                         Fault{"cublasLtMatmulAlgoGetHeuristic=15", "fp32 matmul: cuBLASLt has no algorithm", false, true},
                                         Fault{"cuMemcpyDtoHAsync_v2=-1", "crashed", false, true}));

TEST(CudaProbe, ADeviceWithoutFreeMemoryIsNotAFailure) {
  const Variable little("FAKE_GPU_FREE", "1000000");
  const GpuFindings found = measure();
  ASSERT_EQ(found.gpus.size(), 1u);
  EXPECT_NEAR(found.gpus[0].launch_us.median, 2, 0.01);  // needs no memory
  EXPECT_NE(all(found.gpus[0].remarks).find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos);
}

TEST(CudaProbe, ReportsNoDevicesInOneLine) {
  const Variable none("FAKE_GPU_COUNT", "0");
  EXPECT_NE(measure().none.find("reports no device"), std::string::npos);
}

// The real driver, if there is one: figures are consistent with each other, whatever the chip.
TEST(CudaProbe, MeasuresTheRealDevice) {
  const GpuFindings found = gpu_probe({.quick_seconds = 0.3})(true);
  EXPECT_EQ(found.gpus.empty(), !found.none.empty());
  for (const GpuCeilings& gpu : found.gpus) {
    EXPECT_GT(gpu.copy_gbs.median, gpu.upload_pinned_gbs.median);
    EXPECT_GT(gpu.round_trip_us.median, gpu.launch_us.median);
  }
}

}  // namespace
}  // namespace ridge::cuda
