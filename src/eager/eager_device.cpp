#include "eager/eager_device.h"

#include <atomic>
#include <map>
#include <mutex>

#include "backend/backend.h"
#include "base/error.h"
#include "machine/device_choice.h"
#include "measure/default_team.h"
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
      return nullptr;  // the pool then returns free blocks and tries again
    }
  }
  void put(std::byte* block, int64_t bytes) override { backend_.release(block, bytes); }

 private:
  Backend& backend_;
};

std::atomic<EagerDevice*> current = nullptr;  // null until a device is selected: the host

// Devices are opened once and never closed: tensors anywhere in the program may use their memory until it ends.
EagerDevice* opened(const Device& device) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::string, EagerDevice*>;
  const std::lock_guard lock(mutex);
  EagerDevice*& known = all[to_string(device)];
  if (known) return known;
  auto made = std::make_unique<EagerDevice>();
  made->device = device, made->name = to_string(device);
  made->backend = open_device(device);
  const bool host = made->backend->host_memory();
  made->pool = std::make_unique<BufferPool>(host ? PoolOptions{} : PoolOptions{.source = std::make_shared<DeviceBlocks>(*made->backend)});
  if (!host) made->arena = std::make_shared<Arena>(*made->backend);
  return known = made.release();
}

}  // namespace

EagerDevice& host_device() {
  static EagerDevice& host = *opened({});
  return host;
}

EagerDevice& eager_device(const Device& device) { return *opened(device); }

EagerDevice& eager_device() {
  EagerDevice* device = current;
  return device ? *device : host_device();
}

}  // namespace detail

void use_device(const Device& device) { detail::current = detail::opened(device); }

void use_device(std::string_view name) {
  const DeviceRequest request = parse_device(name);
  use_device(request.automatic ? select_device(name).device : Device{request.kind, request.index.value_or(0)});
}

Device used_device() { return detail::eager_device().device; }

}  // namespace ridge
