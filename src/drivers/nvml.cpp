#include "drivers/nvml.h"

#include <array>
#include <cstdlib>
#include <vector>

#include <fmt/core.h>

#include "drivers/dynamic_library.h"

namespace ridge {
namespace {

// The subset of the library's types that is used.
using NvmlHandle = void*;
struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
struct PciInfo {
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

constexpr int kMaxNvmlDevices = 256;
constexpr unsigned kTextSize = 96;

}  // namespace

struct Nvml::State {
  DynamicLibrary library;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*get_count)(unsigned*) = nullptr;
  int (*get_handle)(unsigned, NvmlHandle*) = nullptr;
  int (*get_name)(NvmlHandle, char*, unsigned) = nullptr;
  int (*get_memory)(NvmlHandle, Memory*) = nullptr;
  // Not available in every version or on every GPU.
  int (*get_driver)(char*, unsigned) = nullptr;
  int (*get_pci)(NvmlHandle, PciInfo*) = nullptr;
  int (*get_utilization)(NvmlHandle, Utilization*) = nullptr;
  int (*get_temperature)(NvmlHandle, int, unsigned*) = nullptr;
  int (*get_power)(NvmlHandle, unsigned*) = nullptr;
  int (*get_power_limit)(NvmlHandle, unsigned*) = nullptr;
  std::vector<NvmlHandle> handles;

  bool bind_all() {
    library.bind(get_driver, "nvmlSystemGetDriverVersion");
    library.bind(get_pci, "nvmlDeviceGetPciInfo_v3");
    library.bind(get_utilization, "nvmlDeviceGetUtilizationRates");
    library.bind(get_temperature, "nvmlDeviceGetTemperature");
    library.bind(get_power, "nvmlDeviceGetPowerUsage");
    library.bind(get_power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    return library.bind(init, "nvmlInit_v2") && library.bind(shutdown, "nvmlShutdown") && library.bind(get_count, "nvmlDeviceGetCount_v2") &&
           library.bind(get_handle, "nvmlDeviceGetHandleByIndex_v2") && library.bind(get_name, "nvmlDeviceGetName") &&
           library.bind(get_memory, "nvmlDeviceGetMemoryInfo");
  }
};

Nvml::Nvml(std::unique_ptr<State> state) : state_(std::move(state)) {}
Nvml::~Nvml() { state_->shutdown(); }

std::unique_ptr<Nvml> Nvml::open(const std::string& path, std::string& why) {
  auto state = std::make_unique<State>();
  state->library = DynamicLibrary(path);
  if (!state->library) {
    why = state->library.error();
    return nullptr;
  }
  if (!state->bind_all()) {
    why = fmt::format("{} lacks required functions", path);
    return nullptr;
  }
  if (const int code = state->init(); code != 0) {
    why = fmt::format("{} could not be started (NVML error {})", path, code);
    return nullptr;
  }
  unsigned count = 0;
  if (state->get_count(&count) != 0) count = 0;
  for (unsigned i = 0; i < std::min<unsigned>(count, kMaxNvmlDevices); ++i) {
    NvmlHandle handle = nullptr;
    state->get_handle(i, &handle);  // a GPU that fell off the bus keeps its index
    state->handles.push_back(handle);
  }
  return std::unique_ptr<Nvml>(new Nvml(std::move(state)));
}

int Nvml::count() const { return int(state_->handles.size()); }

std::string Nvml::driver() const {
  std::array<char, kTextSize> text{};
  if (!state_->get_driver || state_->get_driver(text.data(), kTextSize - 1) != 0) return {};
  return text.data();
}

std::string Nvml::name(int index) const {
  std::array<char, kTextSize> text{};
  NvmlHandle handle = state_->handles.at(size_t(index));
  if (!handle || state_->get_name(handle, text.data(), kTextSize - 1) != 0) return {};
  return text.data();
}

std::string Nvml::pci(int index) const {
  PciInfo info{};
  NvmlHandle handle = state_->handles.at(size_t(index));
  if (!handle || !state_->get_pci || state_->get_pci(handle, &info) != 0) return {};
  info.bus_id[sizeof info.bus_id - 1] = 0;
  return info.bus_id;
}

NvmlReading Nvml::read(int index) const {
  NvmlReading reading;
  NvmlHandle handle = state_->handles.at(size_t(index));
  if (!handle) return reading;
  if (Memory memory{}; state_->get_memory(handle, &memory) == 0) reading.memory_total = int64_t(memory.total), reading.memory_free = int64_t(memory.free);
  if (Utilization load{}; state_->get_utilization && state_->get_utilization(handle, &load) == 0) reading.busy = int(load.gpu);
  if (unsigned celsius = 0; state_->get_temperature && state_->get_temperature(handle, 0, &celsius) == 0) reading.celsius = int(celsius);
  if (unsigned milliwatts = 0; state_->get_power && state_->get_power(handle, &milliwatts) == 0) reading.watts = 1e-3 * milliwatts;
  if (unsigned milliwatts = 0; state_->get_power_limit && state_->get_power_limit(handle, &milliwatts) == 0) reading.watts_limit = 1e-3 * milliwatts;
  return reading;
}

std::string nvml_library() {
  const char* path = std::getenv("RIDGE_NVML_LIBRARY");
  return path && *path ? path : "libnvidia-ml.so.1";
}

}  // namespace ridge
