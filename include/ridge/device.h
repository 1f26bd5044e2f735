// Where programs run: a device by name, or the one on which a step is expected to take the least time. Every refusal is explained.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ridge {

struct Device {
  enum class Kind { cpu, cuda, metal } kind = Kind::cpu;
  int index = 0;  // cuda:1 has index 1
  bool operator==(const Device&) const = default;
};

std::string to_string(const Device& device);  // "cpu", "cuda:1", "metal"

// What one step does, and what a device can do in a second. A step takes max(flops ÷ rate, bytes ÷ bandwidth) + launches + transfers.
struct StepWork {
  double flops = 0, bytes = 0;
  double launches = 0;
  double transfer_bytes = 0;  // between host and device
};
struct DeviceCost {
  Device device;
  double flops_per_second = 0, bytes_per_second = 0;
  double launch_seconds = 0;
  double transfer_bytes_per_second = 0;  // 0: nothing has to be moved
  bool measured = false;                 // else a guess, and called one
};
double expected_seconds(const StepWork& work, const DeviceCost& cost);

enum class Fallback { allow, forbid };

struct DeviceChoice {
  Device device;
  std::string reason;                // why this one
  std::string runner_up = {};        // which other one could have run it, and why it does not; empty: there was none
  bool fell_back = false;            // it is not the device that was asked for
  std::vector<std::string> notices;  // one line for each device passed over: print them, and keep them with the run
};

// request: auto, cpu, cuda or gpu (the one with the most free memory), cuda:N, metal or mps, in any case. A device that cannot be had is
// replaced by the next of its chain (others of its kind, other GPUs, the CPU) or, with Fallback::forbid, refused with
// ErrorCode::unsupported. Any other word is ErrorCode::usage. auto compares expected times where costs are given.
[[nodiscard]] DeviceChoice select_device(std::string_view request = "auto", Fallback fallback = Fallback::allow, const StepWork& work = {},
                                         std::span<const DeviceCost> costs = {});

// Whether a device of that name can be used: this build has a backend for it, the machine has it, and its libraries are there. Words as for
// select_device(); `auto` and `cpu` always are. select_device() says what is missing.
[[nodiscard]] bool is_available(std::string_view device);
[[nodiscard]] bool is_available(const Device& device);

}  // namespace ridge
