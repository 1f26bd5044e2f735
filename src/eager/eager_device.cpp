#include "eager/eager_device.h"

#include <atomic>
#include <map>
#include <mutex>

#include "backend/cuda/backend.h"
#include "base/error.h"
#include "machine/device_choice.h"
#include "ridge/tensor.h"

namespace ridge {
namespace detail {
namespace {

class DeviceBlocks : public BlockSource {
 public:
  explicit DeviceBlocks(Backend& backend) : backend_(backend) {}
  std::byte* get(int64_t bytes, bool& zeroed) override {
    zeroed = true;
    try {
      return backend_.allocate(bytes);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::memory) throw;
      return nullptr;  // the pool gives back what is free and asks again
    }
  }
  void put(std::byte* block, int64_t bytes) override { backend_.release(block, bytes); }

 private:
  Backend& backend_;
};

std::atomic<EagerDevice*> current = nullptr;

// Devices are opened once and stay: tensors anywhere in the program may have their memory there until its end.
EagerDevice* opened(const Device& device) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::string, EagerDevice*>;
  const std::lock_guard lock(mutex);
  EagerDevice*& known = all[to_string(device)];
  if (known) return known;
  if (device.kind != Device::Kind::cuda)
    fail(ErrorCode::unsupported, "[device] tensors are computed on cpu or cuda; there is no backend for {}", to_string(device));
  auto made = std::make_unique<EagerDevice>();
  made->device = device, made->name = to_string(device);
  made->backend = cuda::make_cuda_backend(device.index);
  made->pool = std::make_unique<BufferPool>(PoolOptions{.source = std::make_shared<DeviceBlocks>(*made->backend)});
  made->arena = std::make_shared<Arena>(made->backend.get());
  return known = made.release();
}

}  // namespace

EagerDevice* eager_device() { return current; }

}  // namespace detail

void use_device(const Device& device) { detail::current = device.kind == Device::Kind::cpu ? nullptr : detail::opened(device); }

void use_device(std::string_view name) {
  const DeviceRequest request = parse_device(name);
  use_device(request.automatic ? select_device(name).device : Device{request.kind, request.index.value_or(0)});
}

Device used_device() {
  const detail::EagerDevice* device = detail::eager_device();
  return device ? device->device : Device{};
}

}  // namespace ridge
