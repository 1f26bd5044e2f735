#include "backend/cuda/kernel.h"

#include <utility>

#include <fmt/core.h>

namespace ridge::cuda {

void StreamSink::launch(KernelFunction function, int64_t blocks, int threads, int64_t shared, std::span<const std::byte> arguments) {
  void* parameters[] = {const_cast<std::byte*>(arguments.data())};
  if (overlap_ && std::exchange(behind_kernel_, true)) {
    LaunchAttribute overlap;
    overlap.value.allowed = 1;
    const LaunchConfig config{.blocks = {unsigned(blocks), 1, 1},
                              .threads = {unsigned(threads), 1, 1},
                              .shared = unsigned(shared),
                              .stream = stream_,
                              .attributes = &overlap,
                              .count = 1};
    if (const int code = driver_.launch_ex()(&config, static_cast<FunctionHandle>(function), parameters, nullptr)) driver_.refuse("cuLaunchKernelEx", code);
    return;
  }
  driver_.launch(static_cast<FunctionHandle>(function), unsigned(blocks), 1, 1, unsigned(threads), 1, 1, unsigned(shared), stream_, parameters, nullptr);
}

void StreamSink::copy(Address to, Address from, int64_t bytes) {
  behind_kernel_ = false;
  driver_.copy_on_device(to, from, size_t(bytes), stream_);
}
void StreamSink::fill_with_zeros(Address to, int64_t bytes) {
  behind_kernel_ = false;
  driver_.fill_bytes(to, 0, size_t(bytes), stream_);
}

void StreamSink::end_kernel() {
  if (check_) driver_.stream_wait(stream_);
}

void StreamSink::fail_in(const std::string& kernel, const Error& error) const {
  if (const auto* own = dynamic_cast<const DriverError*>(&error)) throw DriverError(own->result(), fmt::format("{}: {}", kernel, error.what()));
  LaunchSink::fail_in(kernel, error);
}

}  // namespace ridge::cuda
