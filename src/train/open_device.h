// From the name of a device to what runs programs on it.
#pragma once
#include <memory>
#include <string>

#include "machine/precision.h"
#include "ridge/device.h"

namespace ridge {

class Backend;

std::shared_ptr<Backend> open_device(const Device& device);  // null: the CPU. ErrorCode::unsupported names what is missing and how to get it

// Memory of the device in bytes, as its driver counts it; zeros on the CPU.
struct DeviceMemory {
  int64_t total = 0, free = 0;
  int64_t held = 0;  // by this process beside what programs asked for: context, kernels, recordings, libraries
};
DeviceMemory device_memory(const Backend* backend);

// What the device computes in: auto takes bf16 where its matrix units know it, else fp16 with a loss scale. For the CPU see choose_precision(),
// which `rates` are for.
PrecisionChoice device_precision(std::string_view request, Fallback fallback, const Backend* backend, const RateLookup& rates = {});

// In what a GPU takes products of fp32 numbers that is compiled from now on: tf32 with precision=tf32 or matmul_precision=high, bf16 with medium.
void choose_products(Backend* backend, Precision precision, std::string_view matmul_precision);

Precision product_format(const Backend* backend, Precision precision);  // what products of such a step run in, by what was chosen

void use_pinned_memory(Backend* backend, bool wanted);  // for batches and weights on their way to a GPU and back

std::string device_name(const Backend* backend);    // "NVIDIA H200"; empty for the CPU
std::string device_remark(const Backend* backend);  // what is missing on it though work goes on; empty: nothing

}  // namespace ridge
