#include "backend/cuda/driver.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "backend/cuda/probe_kernels.h"
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

TEST(CudaDriver, ABrokenLibrarySaysWhatIsWrong) {
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

TEST(CudaDriver, AnErrorAtTheStartNamesCallCodeAndRemedy) {
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

TEST(CudaDriver, OutOfMemorySaysHowMuchWasAsked) {
  const Driver driver(fake());
  const Context context = use_device(driver, 5);
  const DeviceMemory half = allocate(driver, 128 << 20);
  const auto error = error_of([&] { allocate(driver, 160 << 20); });
  ASSERT_TRUE(has(error, "[cuMemAlloc_v2] CUDA_ERROR_OUT_OF_MEMORY (2) for 160 MiB: out of memory"));
  EXPECT_EQ(error->code(), ErrorCode::memory);
  const Variable locked("FAKE_GPU", "cuMemHostAlloc=2");
  EXPECT_TRUE(has(error_of([&] { allocate_pinned(driver, 1 << 20); }), "1 MiB of pinned memory"));
}

TEST(CudaDriver, GivesBackWhatItTook) {
  const Driver driver(fake());
  const Context context = use_device(driver, 5);
  for (int i = 0; i < 20; ++i) {  // 20 × 128 MiB do not fit at the same time
    DeviceMemory memory = allocate(driver, 128 << 20);
    DeviceMemory other = std::move(memory);
    EXPECT_NE(other.get(), 0u);
  }
  allocate(driver, 200 << 20);
}

TEST(CudaDriver, KnowsALostDevice) {
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

TEST(CudaDriver, ANamelessErrorIsStillAnError) {
  const Driver driver(fake());
  EXPECT_TRUE(has(error_of([&] { driver.refuse("cuNew", -7); }), "[cuNew] unknown error (-7)"));
}

// On a machine with a GPU, the same through the real driver; elsewhere there is none to ask.
TEST(CudaDriver, TheRealDeviceCopiesWhatItWasGiven) {
  std::unique_ptr<Driver> driver;
  try {
    driver = std::make_unique<Driver>();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()), "");
    return;
  }
  int device = 0;
  driver->device_get(&device, 0);
  const Context context = use_device(*driver, device);
  const Stream stream = make_stream(*driver);
  const Module module = load_module(*driver, kProbePtx);
  constexpr int64_t kBytes = 8 * kCopyBlockBytes;
  const DeviceMemory from = allocate(*driver, kBytes), to = allocate(*driver, kBytes);
  std::vector<uint32_t> sent(kBytes / 4), got(sent.size());
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = uint32_t(i * 2654435761u);
  driver->copy_to_device(from.get(), sent.data(), size_t(kBytes), stream.get());
  driver->copy_to_device(to.get(), got.data(), size_t(kBytes), stream.get());
  DevicePointer a = to.get(), b = from.get();
  void* params[] = {&a, &b};
  driver->launch(function_of(*driver, module, "probe_copy"), 8, 1, 1, kProbeThreads, 1, 1, 0, stream.get(), params, nullptr);
  driver->copy_to_host(got.data(), to.get(), size_t(kBytes), stream.get());
  driver->stream_wait(stream.get());
  EXPECT_EQ(got, sent);

  // Random numbers: between -1 and 1, of all sizes, none of them the same as its neighbour's.
  unsigned sort = 0;
  void* fill[] = {&a, &sort};
  driver->launch(function_of(*driver, module, "probe_fill"), unsigned(kBytes / 4 / kProbeThreads), 1, 1, kProbeThreads, 1, 1, 0, stream.get(), fill, nullptr);
  std::vector<float> numbers(sent.size());
  driver->copy_to_host(numbers.data(), to.get(), size_t(kBytes), stream.get());
  driver->stream_wait(stream.get());
  double sum = 0, squares = 0;
  for (float x : numbers) {
    EXPECT_LE(std::abs(x), 1.0f);
    sum += x, squares += double(x) * x;
  }
  const double n = double(numbers.size());
  EXPECT_NEAR(sum / n, 0, 5 * std::sqrt(1 / (3 * n)));
  EXPECT_NEAR(squares / n, 1.0 / 3, 0.01);
}

}  // namespace
}  // namespace ridge::cuda
