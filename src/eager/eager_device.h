// The device on which expressions of eager tensors are computed, with their memory there.
#pragma once
#include <memory>
#include <string>

#include "ridge/device.h"
#include "runtime/arena.h"
#include "runtime/buffer_pool.h"

namespace ridge {

class Backend;

namespace detail {

// All work of a device is one queue, so memory that is given back may be used again at once: whoever gets it comes later. For the same
// reason all programs share one arena.
struct EagerDevice {
  Device device;
  std::string name;
  std::shared_ptr<Backend> backend;
  std::unique_ptr<BufferPool> pool;
  std::shared_ptr<Arena> arena;  // null on the host, where expressions may be computed at the same time
};

EagerDevice& eager_device();  // stays as long as the process
EagerDevice& host_device();
EagerDevice& eager_device(const Device& device);  // that one, whichever expressions are computed on; ErrorCode::unsupported names what it lacks

}  // namespace detail
}  // namespace ridge
