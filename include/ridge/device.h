// Selects the device that programs run on: by name, or the one expected to run a step fastest. Explains why a device was rejected.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ridge {

// A device by kind and number.
struct Device {
  enum class Kind { cpu, cuda, metal } kind = Kind::cpu;
  int index = 0;  // cuda:1 has index 1
  bool operator==(const Device&) const = default;
};

std::string to_string(const Device& device);  // "cpu", "cuda:1", "metal"

// The work of one step, and the speed of a device. A step takes max(flops ÷ rate, bytes ÷ bandwidth) + launches + transfers.
struct StepWork {
  double flops = 0, bytes = 0;
  double launches = 0;
  double transfer_bytes = 0;  // between host and device
};
struct DeviceCost {
  Device device;
  double flops_per_second = 0, bytes_per_second = 0;
  double launch_seconds = 0;
  double transfer_bytes_per_second = 0;  // 0: no transfers needed
  bool measured = false;                 // false: an estimate, reported as such
};
double expected_seconds(const StepWork& work, const DeviceCost& cost);  // of one step with this work

// Whether another device may be used if the requested one is unavailable.
enum class Fallback { allow, forbid };

// The result of select_device(): the device, and why.
struct DeviceChoice {
  Device device;
  std::string reason;                // why this device was chosen
  std::string runner_up = {};        // the next best device, and why it was not chosen; empty: there was none
  bool fell_back = false;            // not the requested device
  std::vector<std::string> notices;  // one line per rejected device; print them and record them with the run
};

// request: auto, cpu, cuda or gpu (the one with the most free memory), cuda:N, metal or mps; case-insensitive. If the device is unavailable,
// falls back to the next candidate (others of its kind, other GPUs, the CPU) or, with Fallback::forbid, throws
// ErrorCode::unsupported. Any other word is ErrorCode::usage. auto compares expected times if costs are given.
[[nodiscard]] DeviceChoice select_device(std::string_view request = "auto", Fallback fallback = Fallback::allow, const StepWork& work = {},
                                         std::span<const DeviceCost> costs = {});

// Whether the device can be used: this build has a backend for it, the machine has the device, and its libraries are installed. Accepts the same
// names as select_device(), which also reports what is missing; `auto` and `cpu` are always available.
[[nodiscard]] bool is_available(std::string_view device);
[[nodiscard]] bool is_available(const Device& device);

}  // namespace ridge
