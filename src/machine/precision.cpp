#include "machine/precision.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "machine/features.h"

namespace ridge {
namespace {

constexpr int kFirstTensorCores = 70, kFirstAmpere = 80;

// Tensor cores support fp16 from 7.0, bf16 and tf32 from 8.0.
Support support_on_cuda(Precision precision, int capability) {
  switch (precision) {
    case Precision::fp32: return Support::native;
    case Precision::tf32: return capability >= kFirstAmpere ? Support::native : Support::absent;
    case Precision::bf16: return capability >= kFirstAmpere ? Support::native : Support::emulated;
    case Precision::fp16: return capability >= kFirstTensorCores ? Support::native : Support::emulated;
  }
  return Support::absent;
}

Support support_on(const ArithmeticUnit& unit, Precision precision) {
  if (precision == Precision::fp32) return Support::native;
  switch (unit.device.kind) {
    case Device::Kind::cuda: return support_on_cuda(precision, unit.capability);
    case Device::Kind::metal: return precision == Precision::fp16 ? Support::native : precision == Precision::tf32 ? Support::absent : Support::emulated;
    case Device::Kind::cpu: break;
  }
  if (precision == Precision::tf32) return Support::absent;
  return precision == Precision::bf16 && unit.bf16_unit ? Support::native : Support::emulated;
}

std::string warning_of(const PrecisionFacts& facts, const ArithmeticUnit& unit) {
  const std::string_view format = name(facts.precision);
  const std::string speed = facts.speed ? fmt::format("expect {:.2f}×, measured", *facts.speed) : std::string("its speed has not been measured yet");
  std::string text;
  if (facts.support == Support::absent)
    text = fmt::format("{} is a mode of NVIDIA's tensor cores from compute capability 8.0 on, and {} has none", format, unit.name);
  else if (facts.support == Support::emulated)
    text = fmt::format("{} has no native unit on {}: {}", format, unit.name, speed);
  else if (facts.speed && *facts.speed < 1)
    text = fmt::format("{} is native on {}, and still slower than fp32: {}", format, unit.name, speed);
  return text;
}

std::string speed_text(const PrecisionFacts& facts) {
  return facts.speed ? fmt::format("{} {:.2f}× of fp32", name(facts.precision), *facts.speed) : fmt::format("{} not measured", name(facts.precision));
}

PrecisionChoice choose_automatically(const ArithmeticUnit& unit, const RateLookup& rates) {
  constexpr double kWorthIt = 1.15;  // a coarser format must be worth it
  PrecisionChoice choice;
  std::vector<PrecisionFacts> measured;
  bool any_native = false;
  for (Precision precision : {Precision::tf32, Precision::bf16, Precision::fp16}) {
    const PrecisionFacts facts = facts_of(precision, unit, rates);
    any_native |= facts.support == Support::native;
    if (facts.speed && facts.support == Support::native) measured.push_back(facts);
    if (facts.speed && facts.support == Support::emulated && choice.runner_up.empty()) choice.runner_up = speed_text(facts) + ", emulated";
  }
  // Stable formats first: fp16 is used only if no other one is faster.
  std::stable_sort(measured.begin(), measured.end(), [](const PrecisionFacts& a, const PrecisionFacts& b) {
    auto pays = [](const PrecisionFacts& facts) { return *facts.speed >= kWorthIt; };
    if (pays(a) != pays(b)) return pays(a);
    if (a.unstable != b.unstable) return !a.unstable;
    return *a.speed > *b.speed;
  });
  if (measured.empty() && unit.device.kind == Device::Kind::cuda && unit.capability >= kFirstTensorCores) {
    // Formats that its matrix units support are many times faster than the others; the choice needs no measurement.
    const bool bf16 = unit.capability >= kFirstAmpere;
    choice.precision = bf16 ? Precision::bf16 : Precision::fp16;
    choice.reason = bf16 ? "the matrix units multiply it, and it has fp32's range" : "the matrix units multiply it; a loss scale keeps gradients in its range";
    choice.runner_up = bf16 ? "fp16, which needs a loss scale" : "fp32, without the matrix units";
  } else if (measured.empty()) {
    choice.reason = any_native ? "no other format is measured here yet" : "no coarser format has kernels of its own here";
  } else if (*measured[0].speed < kWorthIt) {
    choice.reason = fmt::format("no coarser format is at least {:.2f}× as fast here, measured", kWorthIt);
    choice.runner_up = speed_text(measured[0]);
  } else {
    choice.precision = measured[0].precision;
    choice.reason = speed_text(measured[0]) + ", measured";
    choice.runner_up = measured.size() > 1 ? speed_text(measured[1]) : "fp32";
    if (!measured[0].warning.empty()) choice.notices.push_back(measured[0].warning);
    if (measured[0].unstable) choice.notices.push_back(kFp16Range);
  }
  return choice;
}

}  // namespace

std::string_view name(Support support) { return support == Support::native ? "native" : support == Support::emulated ? "emulated" : "absent"; }

ArithmeticUnit arithmetic_of(const Device& device, const GpuScan& scan) {
  ArithmeticUnit unit{.device = device, .name = "this CPU"};
  if (device.kind == Device::Kind::cpu) {
    unit.bf16_unit = has_bf16(isa_tier());
    return unit;
  }
  unit.name = to_string(device);
  for (const Gpu& gpu : scan.gpus) {
    const bool same = device.kind == Device::Kind::cuda ? gpu.ordinal == device.index : gpu.vendor == Gpu::Vendor::apple;
    if (same) unit.name = gpu.name, unit.capability = gpu.capability;
  }
  return unit;
}

PrecisionFacts facts_of(Precision precision, const ArithmeticUnit& unit, const RateLookup& rates) {
  PrecisionFacts facts{.precision = precision, .support = support_on(unit, precision), .unstable = precision == Precision::fp16, .speed = {}};
  if (rates && precision != Precision::fp32 && facts.support != Support::absent) {
    const std::optional<double> own = rates(unit.device, precision), fp32 = rates(unit.device, Precision::fp32);
    if (own && fp32 && *own > 0 && *fp32 > 0) facts.speed = *own / *fp32;
  }
  facts.warning = warning_of(facts, unit);
  return facts;
}

PrecisionChoice choose_precision(std::string_view request, Fallback fallback, const ArithmeticUnit& unit, const RateLookup& rates) {
  const std::optional<Precision> requested = parse_precision(request);
  if (!requested) return choose_automatically(unit, rates);
  const PrecisionFacts facts = facts_of(*requested, unit, rates);
  PrecisionChoice choice{.precision = *requested, .reason = fmt::format("asked for by name ({})", request), .notices = {}};
  if (!facts.warning.empty()) choice.notices.push_back(facts.warning);
  if (facts.unstable) choice.notices.push_back(kFp16Range);
  if (facts.support != Support::absent) return choice;
  if (fallback == Fallback::forbid) fail(ErrorCode::unsupported, "[precision] {}; fallbacks are forbidden: ask for fp32 or auto, or allow them", facts.warning);
  choice.precision = Precision::fp32;
  choice.fell_back = true;
  choice.reason = fmt::format("{} is not available on {}", name(*requested), unit.name);
  choice.notices.push_back(fmt::format("fp32 instead of {}", name(*requested)));
  return choice;
}

}  // namespace ridge
