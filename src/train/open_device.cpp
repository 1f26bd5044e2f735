#include "train/open_device.h"

#include "backend/backend.h"
#include "base/error.h"

namespace ridge {

std::shared_ptr<Backend> open_device(const Device& device) {
  if (device.kind == Device::Kind::cpu) return nullptr;
  fail(ErrorCode::unsupported, "[device] this build of Ridge has no kernels for {}; ask for cpu", to_string(device));
}

DeviceMemory device_memory(const Backend*) { return {}; }

PrecisionChoice device_precision(std::string_view request, Fallback fallback, const Backend*) {
  return choose_precision(request, fallback, arithmetic_of({}, {}));
}

std::string device_name(const Backend*) { return {}; }

std::string device_remark(const Backend*) { return {}; }

}  // namespace ridge
