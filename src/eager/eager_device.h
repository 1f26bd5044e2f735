// The device that evaluates expressions of eager tensors, and their memory on it.
#pragma once
#include <memory>
#include <string>

#include "ridge/device.h"
#include "runtime/arena.h"
#include "runtime/buffer_pool.h"

namespace ridge {

class Backend;

namespace detail {

// All work of a device runs in one queue, so released memory can be reused immediately: its next user runs later. For the same reason all
// programs share one arena.
struct EagerDevice {
  Device device;
  std::string name;
  std::shared_ptr<Backend> backend;
  std::unique_ptr<BufferPool> pool;
  std::shared_ptr<Arena> arena;  // null on the host, where expressions may be evaluated concurrently
};

EagerDevice& eager_device();  // valid until the process ends
EagerDevice& host_device();
EagerDevice& eager_device(const Device& device);  // the given device, even if it is not the current one; ErrorCode::unsupported says what is missing

}  // namespace detail
}  // namespace ridge
