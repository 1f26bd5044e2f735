// Number formats for activations and matmuls: which ones a device computes natively or only emulates, which are unstable, and which to use.
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

// The facts that determine a device's formats.
struct ArithmeticUnit {
  Device device;
  std::string name;        // "this CPU", "NVIDIA H200"
  int capability = 0;      // CUDA's compute capability × 10
  bool bf16_unit = false;  // a CPU with instructions for bf16 products
};
ArithmeticUnit arithmetic_of(const Device& device, const GpuScan& scan);

// The measured rate of Ridge's own matmul on a device, in some unit; empty: not measured.
using RateLookup = std::function<std::optional<double>(const Device& device, Precision precision)>;

enum class Support { native, emulated, absent };
std::string_view name(Support support);

// A notice for training only: inference has no gradients.
inline constexpr const char* kFp16Range = "fp16 overflows above 65504 and loses gradients below 6e-8: the loss is scaled, by a factor that the run finds";

struct PrecisionFacts {
  Precision precision = Precision::fp32;
  Support support = Support::native;
  bool unstable = false;        // gradients may leave the format's range
  std::optional<double> speed;  // relative to fp32, measured
  std::string warning = {};     // "bf16 has no native unit on this CPU: expect 0.60×, measured"; empty: no warning
};
PrecisionFacts facts_of(Precision precision, const ArithmeticUnit& unit, const RateLookup& rates = {});

struct PrecisionChoice {
  Precision precision = Precision::fp32;
  std::string reason;
  std::string runner_up = {};
  bool fell_back = false;            // it is not the requested format
  std::vector<std::string> notices;  // warnings for the user and the run's record
};

// auto takes the fastest measured native format that trains safely, or fp32 if none is at least 1.15× as fast or none was measured; on an NVIDIA GPU without
// measurements it takes bf16, or fp16 before Ampere. A format that the device lacks becomes fp32 or, with Fallback::forbid, ErrorCode::unsupported.
PrecisionChoice choose_precision(std::string_view request, Fallback fallback, const ArithmeticUnit& unit, const RateLookup& rates = {});

}  // namespace ridge
