// CUDA's view of the simulated device: streams that do their work at once or record it, a clock, and the driver's codes.
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

using Work = std::function<int()>;  // a code of the driver; 0: done

struct Capture;
struct Stream {
  Capture* capture = nullptr;  // records, instead of working
  size_t recorded = 0;         // pieces of work in the capture when this stream last added one
};

std::recursive_mutex& device_mutex();

// Does the work, or records it; it takes so many seconds of the device's clock.
int enqueue(Stream* stream, double seconds, Work work);

// Tells on stderr, and makes all later calls fail with the code, as a device does whose context is broken.
int break_down(int code, const std::string& words);

}  // namespace simulator
