// The CUDA-specific parts of kernels: what they can use while they are loaded, and the stream that they launch into.
#pragma once
#include <functional>

#include "backend/cuda/chip.h"
#include "backend/gpu/kernel.h"
#include "drivers/cuda_driver.h"

namespace ridge::cuda {

using namespace gpu;

class CublasLt;
class Cudnn;

class Loader : public gpu::Loader {
 public:
  virtual const Driver& driver() const = 0;
  virtual const Chip& chip() const = 0;
  virtual const CublasLt* cublas_lt() const = 0;  // null: not installed
  virtual const Cudnn* cudnn() const { return nullptr; }
  virtual void as_library_memory(const std::function<void()>& body) { body(); }  // counts the device memory that `body` takes as library memory
  virtual StreamHandle stream() const = 0;                                       // for timing; idle
  virtual FunctionHandle function(const KernelText& text) = 0;
  KernelFunction loaded(const KernelText& text) final { return function(text); }
};

class StreamSink final : public LaunchSink {
 public:
  // check: wait after every kernel. overlap: kernels may start before those in front have ended, for which their texts were compiled.
  StreamSink(const Driver& driver, StreamHandle stream, bool check = false, bool overlap = false)
      : driver_(driver), stream_(stream), check_(check), overlap_(overlap) {}
  StreamHandle stream() const { return stream_; }

  void launch(KernelFunction function, int64_t blocks, int threads, int64_t shared, std::span<const std::byte> arguments) override;
  void copy(Address to, Address from, int64_t bytes) override;
  void fill_with_zeros(Address to, int64_t bytes) override;
  void end_kernel() override;
  [[noreturn]] void fail_in(const std::string& kernel, const Error& error) const override;

 private:
  const Driver& driver_;
  StreamHandle stream_;
  bool check_, overlap_;
  bool behind_kernel_ = false;  // the last thing put into the stream through this was a kernel
};

// CUDA programs are only ever loaded and launched with these classes, so the casts are safe.
inline Loader& cuda_loader(gpu::Loader& loader) { return static_cast<Loader&>(loader); }
inline StreamHandle stream_of(const LaunchSink& sink) { return static_cast<const StreamSink&>(sink).stream(); }

}  // namespace ridge::cuda
