// Number formats for activations and matmuls: what a device computes natively, what it only emulates, what is unstable, and which to take.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/precision.h"
#include "machine/gpus.h"
#include "ridge/device.h"

namespace ridge {

// What decides about formats on a device.
struct ArithmeticUnit {
  Device device;
  std::string name;        // "this CPU", "NVIDIA H200"
  int capability = 0;      // CUDA's compute capability × 10
  bool bf16_unit = false;  // a CPU with instructions for bf16 products
};
ArithmeticUnit arithmetic_of(const Device& device, const GpuScan& scan);

// The rate of Ridge's own matmul on a device in some unit, as measured; empty: not measured.
using RateLookup = std::function<std::optional<double>(const Device& device, Precision precision)>;

enum class Support { native, emulated, absent };
std::string_view name(Support support);

// A notice for trainings alone: what is only read has no gradients.
inline constexpr const char* kFp16Range = "fp16 overflows above 65504 and loses gradients below 6e-8: the loss is scaled, by a factor that the run finds";

struct PrecisionFacts {
  Precision precision = Precision::fp32;
  Support support = Support::native;
  bool unstable = false;        // gradients may leave the format's range
  std::optional<double> speed;  // relative to fp32, measured
  std::string warning = {};     // "bf16 has no native unit on this CPU: expect 0.60×, measured"; empty: nothing to say
};
PrecisionFacts facts_of(Precision precision, const ArithmeticUnit& unit, const RateLookup& rates = {});

struct PrecisionChoice {
  Precision precision = Precision::fp32;
  std::string reason;
  std::string runner_up = {};
  bool fell_back = false;            // it is not the one that was asked for
  std::vector<std::string> notices;  // warnings, for the user to see and for the run's record
};

// auto takes the fastest measured native format that trains safely, and fp32 where none is at least 1.15× as fast or none was measured;
// on an NVIDIA GPU of which nothing was measured bf16, or before Ampere fp16.
// A format that the device lacks becomes fp32 or, with Fallback::forbid, ErrorCode::unsupported.
PrecisionChoice choose_precision(std::string_view request, Fallback fallback, const ArithmeticUnit& unit, const RateLookup& rates = {});

}  // namespace ridge
