// Which devices are usable with given backends on given hardware, and the choice among them. select_device() is choose_device() for this build and machine.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "machine/gpus.h"
#include "ridge/device.h"

namespace ridge {

// The devices other than the CPU for which there is a backend; usable_backends() says which (backend/registry.h).
struct Backends {
  bool cuda = false, metal = false;
  std::string cuda_missing = {};  // what CUDA needs in addition to its driver, and how to get it
  std::string no_cudnn = {};      // the same for cuDNN, without which only convolutions are slower
};

struct KnownDevice {
  Device device;
  std::string name;          // "NVIDIA H200"
  std::string missing = {};  // why it cannot be used; empty: it can
  int64_t memory_free = 0;
};

// One row per device, and one for each kind without a device. The CPU is last and always usable.
std::vector<KnownDevice> known_devices(const GpuScan& scan, const Backends& backends);

struct DeviceRequest {
  bool automatic = false;
  Device::Kind kind = Device::Kind::cpu;
  std::optional<int> index = {};  // cuda:N
};
DeviceRequest parse_device(std::string_view text);

DeviceChoice choose_device(std::string_view request, Fallback fallback, const std::vector<KnownDevice>& devices, const StepWork& work = {},
                           std::span<const DeviceCost> costs = {});

}  // namespace ridge
