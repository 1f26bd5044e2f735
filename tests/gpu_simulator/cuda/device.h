// CUDA's view of the simulated device: streams that run their work immediately or record it, a clock, and the driver's error codes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "../memory.h"

namespace simulator {

constexpr int kInvalid = 1, kOutOfMemory = 2, kInvalidContext = 201, kInvalidImage = 200, kInvalidHandle = 400, kNotFound = 500, kIllegalAddress = 700,
              kLaunchOutOfResources = 701, kCaptureUnsupported = 900, kCaptureInvalidated = 901, kCaptureUnjoined = 904;

using Work = std::function<int()>;  // returns a driver code; 0: success

struct Capture;
struct Stream {
  Capture* capture = nullptr;  // if set, record instead of running
  size_t recorded = 0;         // work items in the capture when this stream last added one
};

std::recursive_mutex& device_mutex();

// Runs or records the work, which advances the device's clock by this many seconds.
int enqueue(Stream* stream, double seconds, Work work);

// Prints to stderr and makes all later calls fail with the code, like a device with a broken context.
int break_down(int code, const std::string& words);

}  // namespace simulator
