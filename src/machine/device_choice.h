// Which devices this build and this machine have together, and the choice among them. select_device() is choose_device() on this machine.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "machine/gpus.h"
#include "ridge/device.h"

namespace ridge {

// The devices for which this build has a backend, besides the CPU.
struct Backends {
  bool cuda = false, metal = false;
  std::string cuda_missing = {};  // what a CUDA device lacks besides its driver, and how to get it
  std::string no_cudnn = {};      // the same of cuDNN, without which only convolutions are slower
};
Backends built_backends();
Backends usable_backends(const GpuScan& scan);  // the same, with a look for the libraries where there are devices

struct KnownDevice {
  Device device;
  std::string name;          // "NVIDIA H200"
  std::string missing = {};  // why it cannot be used; empty: it can
  int64_t memory_free = 0;
};

// One row for each device, and one for each kind of which there is none. The CPU is last and can always be used.
std::vector<KnownDevice> known_devices(const GpuScan& scan, const Backends& backends = built_backends());

struct DeviceRequest {
  bool automatic = false;
  Device::Kind kind = Device::Kind::cpu;
  std::optional<int> index = {};  // cuda:N
};
DeviceRequest parse_device(std::string_view text);

DeviceChoice choose_device(std::string_view request, Fallback fallback, const std::vector<KnownDevice>& devices, const StepWork& work = {},
                           std::span<const DeviceCost> costs = {});

}  // namespace ridge
