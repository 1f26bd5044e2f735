#include "drivers/cuda_driver.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <memory>
#include <vector>

#include <fmt/core.h>

#include "backend/cuda/probe_kernels.h"
#include "drivers/guarded_call.h"
#include "support/errors.h"
#include "support/fake_drivers.h"
#include "support/variable.h"

namespace ridge::cuda {
namespace {

using test::error_of, test::has, test::Variable;

std::string fake() { return test::fake_driver("gpu"); }

TEST(CudaDriver, OpensAndStarts) {
  const Driver driver(fake());
  EXPECT_EQ(driver.version(), 12040);
  int count = 0;
  driver.device_count(&count);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(driver.attribute(75, 5), 9);
}

TEST(CudaDriver, ABrokenLibraryReportsItsProblem) {
  const auto absent = error_of([] { Driver("libno-such-driver.so.1"); });
  EXPECT_TRUE(has(absent, "no NVIDIA driver (libno-such-driver.so.1 was not found)"));
  EXPECT_EQ(absent->code(), ErrorCode::unsupported);
  EXPECT_TRUE(has(error_of([] { Driver("/proc/self/maps"); }), "cannot be loaded"));
  const auto old = error_of([] { Driver(test::fake_driver("old_gpu")); });
  EXPECT_TRUE(has(old, "lacks cuDeviceGetCount"));
  EXPECT_TRUE(has(old, "install a driver"));
}

struct Start {
  const char *fault, *says;
};

TEST(CudaDriver, InitializationErrorsNameCallCodeAndRemedy) {
  for (const auto& [fault, says] : {Start{"cuInit=100", "CUDA_VISIBLE_DEVICES"},
                                    {"cuInit=803", "different versions"},
                                    {"cuInit=34", "stub library"},
                                    {"cuInit=999", "reboot"},
                                    {"cuDriverGetVersion=36", "too old"}}) {
    const Variable broken("FAKE_GPU", fault);
    const auto error = error_of([] { Driver driver(fake()); });
    EXPECT_TRUE(has(error, says)) << fault;
    EXPECT_TRUE(has(error, std::string(fault).starts_with("cuInit") ? "[cuInit] CUDA_ERROR_FAKE (" : "[cuDriverGetVersion]")) << fault;
    EXPECT_TRUE(has(error, "a fault of the test")) << fault;
  }
}

TEST(CudaDriver, OutOfMemoryReportsTheRequestedSize) {
  const Driver driver(fake());
  const Context context = use_device(driver, 5);
  const DeviceMemory half = allocate(driver, 128 << 20);
  const auto error = error_of([&] { allocate(driver, 160 << 20); });
  ASSERT_TRUE(has(error, "[cuMemAlloc_v2] CUDA_ERROR_OUT_OF_MEMORY (2) for 160 MiB: out of memory"));
  EXPECT_EQ(error->code(), ErrorCode::memory);
  const Variable locked("FAKE_GPU", "cuMemHostAlloc=2");
  EXPECT_TRUE(has(error_of([&] { allocate_pinned(driver, 1 << 20); }), "1 MiB of pinned memory"));
}

TEST(CudaDriver, ReleasesEverything) {
  const Driver driver(fake());
  const Context context = use_device(driver, 5);
  for (int i = 0; i < 20; ++i) {  // 20 × 128 MiB do not fit together
    DeviceMemory memory = allocate(driver, 128 << 20);
    DeviceMemory other = std::move(memory);
    EXPECT_NE(other.get(), 0u);
  }
  allocate(driver, 200 << 20);
}

TEST(CudaDriver, DetectsALostDevice) {
  const Driver driver(fake());
  auto lost = [&](const char* fault) {
    const Variable broken("FAKE_GPU", fault);
    try {
      driver.stream_wait(nullptr);
    } catch (const DriverError& error) {
      return error.lost();
    }
    ADD_FAILURE() << fault;
    return false;
  };
  for (const char* fault : {"cuStreamSynchronize=700", "cuStreamSynchronize=719", "cuStreamSynchronize=999", "cuStreamSynchronize=46"})
    EXPECT_TRUE(lost(fault));
  for (const char* fault : {"cuStreamSynchronize=1", "cuStreamSynchronize=2", "cuStreamSynchronize=400"}) EXPECT_FALSE(lost(fault));
}

TEST(CudaDriver, ReportsUnknownErrors) {
  const Driver driver(fake());
  EXPECT_TRUE(has(error_of([&] { driver.refuse("cuNew", -7); }), "[cuNew] unknown error (-7)"));
}

// Copies through the real driver. Returns a description of the failure; empty if all is well or there is no device.
std::string copy_through_the_driver() {
  std::unique_ptr<Driver> driver;
  try {
    driver = std::make_unique<Driver>();
  } catch (const Error& error) {
    return *error.what() ? "" : "an error without words";
  }
  int device = 0;
  driver->device_get(&device, 0);
  const Context context = use_device(*driver, device);
  const Stream stream = make_stream(*driver);
  const Module module = load_module(*driver, kProbePtx);
  constexpr unsigned kBlocks = 8;
  constexpr size_t kBytes = kBlocks * kCopyBlockBytes, kWords = kBytes / 4;
  const DeviceMemory from = allocate(*driver, kBytes), to = allocate(*driver, kBytes);
  std::vector<uint32_t> sent(kWords), got(kWords);
  for (size_t i = 0; i < kWords; ++i) sent[i] = uint32_t(i * 2654435761u);
  driver->copy_to_device(from.get(), sent.data(), kBytes, stream.get());
  driver->copy_to_device(to.get(), got.data(), kBytes, stream.get());
  DevicePointer a = to.get(), b = from.get();
  void* params[] = {&a, &b};
  driver->launch(function_of(*driver, module, "probe_copy"), kBlocks, 1, 1, kProbeThreads, 1, 1, 0, stream.get(), params, nullptr);
  driver->copy_to_host(got.data(), to.get(), kBytes, stream.get());
  driver->stream_wait(stream.get());
  if (got != sent) return "the copy differs";

  // Random numbers between -1 and 1, uniform, in all three formats.
  for (unsigned sort : {0u, 1u, 2u}) {
    void* fill[] = {&a, &sort};
    driver->launch(function_of(*driver, module, "probe_fill"), unsigned(kWords) / kProbeThreads, 1, 1, kProbeThreads, 1, 1, 0, stream.get(), fill, nullptr);
    driver->copy_to_host(got.data(), to.get(), kBytes, stream.get());
    driver->stream_wait(stream.get());
    std::vector<double> numbers;
    for (uint32_t word : got) {
      if (sort == 0) numbers.push_back(std::bit_cast<float>(word));
      if (sort == 1) numbers.push_back(std::bit_cast<float>(word << 16)), numbers.push_back(std::bit_cast<float>(word & 0xFFFF0000u));
      if (sort == 2)
        for (uint32_t half : {word & 0xFFFFu, word >> 16}) {
          const int exponent = int(half >> 10 & 31), fraction = int(half & 1023);
          const double size = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
          numbers.push_back(half >> 15 ? -size : size);
        }
    }
    double sum = 0, squares = 0;
    for (double x : numbers) {
      if (!(std::abs(x) <= 1)) return fmt::format("{} is not between -1 and 1 (sort {})", x, sort);
      sum += x, squares += x * x;
    }
    const double n = double(numbers.size());
    if (std::abs(sum / n) > 5 * std::sqrt(1 / (3 * n)) + 0.002 || std::abs(squares / n - 1.0 / 3) > 0.01)
      return fmt::format("mean {}, mean square {} (sort {})", sum / n, squares / n, sort);
  }
  return "";
}

// Needs a GPU. Runs in a child, because a process that has started CUDA can no longer fork for it.
TEST(CudaDriver, CopiesOnTheRealDevice) {
  const ChildAnswer answer = ask_children({[](ChildOutput& output) {
                                            try {
                                              output.line("says " + copy_through_the_driver());
                                            } catch (const Error& error) {
                                              output.line(error.what());
                                            }
                                          }},
                                          60)[0];
  EXPECT_EQ(answer.lines, std::vector<std::string>{"says "}) << describe(answer);
}

}  // namespace
}  // namespace ridge::cuda
