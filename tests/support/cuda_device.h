// A device for running single CUDA kernels in tests: the machine's GPU if it has one, else the simulated one.
#pragma once
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/cubins.h"
#include "drivers/cudnn.h"
#include "drivers/nvrtc.h"
#include "machine/gpus.h"
#include "support/simulator.h"
#include "support/variable.h"

namespace ridge::test {

// Whether tests use the machine's GPU: if there is one, unless RIDGE_TEST_GPU says 0 or 1.
inline bool tests_real_gpu() {
  static const bool real = [] {
    const char* value = std::getenv("RIDGE_TEST_GPU");
    if (value && std::string(value) != "1") return false;
    // A child process probes the devices; this has to happen before this process uses one.
    if (value || std::filesystem::exists("/dev/nvidiactl")) gpus();
    if (value) return true;
    try {
      const cuda::Driver driver;
      int devices = 0;
      driver.device_count(&devices);
      return devices > 0;
    } catch (const Error&) {
      return false;
    }
  }();
  return real;
}

class CudaDevice final : public cuda::Loader {
 public:
  static CudaDevice& the() {  // shared by all tests of a program; never destroyed, because the driver may be unloaded first
    static CudaDevice* device = new CudaDevice;
    return *device;
  }

  const cuda::Driver& driver() const override { return *driver_; }
  const cuda::Chip& chip() const override { return chip_; }
  const cuda::CublasLt* cublas_lt() const override { return nullptr; }
  const cuda::Cudnn* cudnn() const override { return cudnn_.get(); }  // used by kernels on chips that have it
  cuda::StreamHandle stream() const override { return stream_->get(); }
  cuda::FunctionHandle function(const cuda::KernelText& text) override {
    cuda::FunctionHandle& f = functions_[text.entry + "\n" + text.body];
    if (!f) {
      modules_.push_back(cuda::load_module(*driver_, cubins_->get(text)->data()));
      f = cuda::function_of(*driver_, modules_.back(), text.entry.c_str());
      if (text.shared > 0) driver_->function_set(f, 8, int(text.shared));  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    }
    return f;
  }
  std::string choice(const std::string&) override { return {}; }
  void keep_choice(const std::string&, const std::string&) override {}
  void record_choice(const std::string&, const std::string&) override {}
  void ask(std::span<const cuda::KernelText> texts) { cubins_->ask(texts); }
  void enqueue(const cuda::Kernel& kernel, cuda::Bases bases) const {
    cuda::StreamSink sink(*driver_, stream_->get());
    kernel.enqueue(bases, sink);
  }
  void wait() const { driver_->stream_wait(stream_->get()); }

  // Allocates device memory initialized with these bytes.
  cuda::DeviceMemory memory(const void* bytes, int64_t size) const {
    cuda::DeviceMemory m = cuda::allocate(*driver_, std::max<int64_t>(size, 1));
    if (size > 0) driver_->copy_to_device(m.get(), bytes, size_t(size), stream_->get());
    wait();
    return m;
  }
  std::vector<std::byte> read(const cuda::DeviceMemory& memory, int64_t size) const {
    std::vector<std::byte> bytes(static_cast<size_t>(size));
    if (size > 0) driver_->copy_to_host(bytes.data(), memory.get(), size_t(size), stream_->get());
    wait();
    return bytes;
  }

 private:
  CudaDevice() {
    std::optional<Simulator> simulator;  // its libraries stay loaded once opened
    if (!tests_real_gpu()) simulator.emplace(SimulatorOptions{.cudnn = true});
    driver_ = std::make_unique<cuda::Driver>();
    context_.emplace(cuda::use_device(*driver_, 0));
    chip_ = cuda::chip_of(*driver_, 0);
    stream_.emplace(cuda::make_stream(*driver_));
    nvrtc_ = std::make_unique<cuda::Nvrtc>(cuda::library_search(driver_->version()));
    try {
      cudnn_ = std::make_unique<cuda::Cudnn>(cuda::library_search(driver_->version()));
      cudnn_->handle();  // opened now, while the simulated library's folder still exists
    } catch (const Error&) {
      cudnn_.reset();
    }
    cuda::CubinOptions options;
    if (simulator) options.folder.clear();
    cubins_ = std::make_unique<cuda::Cubins>(*nvrtc_, chip_.target(), options);
  }

  std::unique_ptr<cuda::Driver> driver_;
  std::optional<cuda::Context> context_;
  cuda::Chip chip_;
  std::optional<cuda::Stream> stream_;
  std::unique_ptr<cuda::Nvrtc> nvrtc_;
  std::unique_ptr<cuda::Cudnn> cudnn_;
  std::unique_ptr<cuda::Cubins> cubins_;
  std::vector<cuda::Module> modules_;
  std::map<std::string, cuda::FunctionHandle> functions_;
};

// Base of tests that run kernels; without a GPU they need a compiler for the simulated one.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!tests_real_gpu() && !simulator_works()) GTEST_SKIP() << "no compiler for the simulated GPU";
  }
};

}  // namespace ridge::test
