#include "backend/registry.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>

#include "backend/cpu/backend.h"
#include "backend/cuda/backend.h"
#include "backend/cuda/probe.h"
#include "backend/reference/backend.h"
#include "base/error.h"
#include "drivers/cuda_libraries.h"

namespace ridge {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Backend> (*open)(int index, const TeamSource& team);
  std::function<GpuFindings()> (*begin_probe)(bool rates_only, bool quick);  // null: the backend has no GPUs
};

const Entry kBackends[] = {
    {"cpu", [](int, const TeamSource& team) -> std::unique_ptr<Backend> { return std::make_unique<cpu::CpuBackend>(team); }, nullptr},
    {"cuda", [](int index, const TeamSource&) -> std::unique_ptr<Backend> { return cuda::make_cuda_backend(index); },
     [](bool rates_only, bool quick) { return cuda::begin_gpu_probe({.rates_only = rates_only}, quick); }},
    {"reference", [](int, const TeamSource&) -> std::unique_ptr<Backend> { return std::make_unique<reference::ReferenceBackend>(); }, nullptr},
};

}  // namespace

std::vector<std::string_view> backend_names() {
  std::vector<std::string_view> names;
  for (const Entry& entry : kBackends) names.push_back(entry.name);
  return names;
}

Backends usable_backends(const GpuScan& scan) {
  const std::vector<std::string_view> built = backend_names();
  auto has = [&](const char* name) { return std::find(built.begin(), built.end(), name) != built.end(); };
  Backends backends{.cuda = has("cuda"), .metal = has("metal")};
  if (scan.cuda_devices() == 0) return backends;
  const cuda::LibrarySearch search = cuda::library_search(scan.cuda);
  backends.cuda_missing = cuda::open_library(cuda::Library::nvrtc, search).missing;
  backends.no_cudnn = cuda::open_library(cuda::Library::cudnn, search).missing;
  return backends;
}

DeviceChoice select_device(std::string_view request, Fallback fallback, const StepWork& work, std::span<const DeviceCost> costs) {
  const DeviceRequest parsed = parse_device(request);
  if (!parsed.automatic && parsed.kind == Device::Kind::cpu) return choose_device(request, fallback, known_devices({}, {}), work, costs);
  // A GPU requested by name gets more time for its driver to answer than an automatic choice.
  constexpr double kPatience = 10;
  auto known_now = [](const GpuScan& scan) { return known_devices(scan, usable_backends(scan)); };
  if (!parsed.automatic && gpus().slow) return choose_device(request, fallback, known_now(scan_gpus({.seconds = kPatience})), work, costs);
  return choose_device(request, fallback, known_now(gpus()), work, costs);
}

bool is_available(std::string_view device) {
  const DeviceRequest asked = parse_device(device);
  if (asked.automatic || asked.kind == Device::Kind::cpu) return true;
  const std::vector<KnownDevice> devices = known_devices(gpus(), usable_backends(gpus()));
  return std::any_of(devices.begin(), devices.end(), [&](const KnownDevice& d) {
    return d.device.kind == asked.kind && d.missing.empty() && (!asked.index || d.device.index == *asked.index);
  });
}

bool is_available(const Device& device) { return bool(available(device)); }

std::unique_ptr<Backend> open_backend(std::string_view name, const TeamSource& team) {
  const size_t colon = std::min(name.find(':'), name.size());
  const std::string_view number = name.substr(std::min(colon + 1, name.size()));
  int index = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
  const bool numbered = colon == name.size() || (error == std::errc() && end == number.data() + number.size() && index >= 0);
  const auto entry = std::find_if(std::begin(kBackends), std::end(kBackends), [&](const Entry& e) { return e.name == name.substr(0, colon); });
  if (!numbered || entry == std::end(kBackends)) {
    std::string names;
    for (std::string_view known : backend_names()) names += fmt::format("{}{}", names.empty() ? "" : ", ", known);
    fail(ErrorCode::unsupported, "[device] this build of Ridge has no kernels for {}; its backends are {}", name, names);
  }
  return entry->open(index, team);
}

std::unique_ptr<Backend> open_backend(const Device& device, const TeamSource& team) { return open_backend(to_string(device), team); }

std::unique_ptr<Backend> cpu_backend(ThreadTeam& team) { return std::make_unique<cpu::CpuBackend>(team); }

Availability available(const Device& device) {
  if (device.kind == Device::Kind::cpu) return {};
  for (const KnownDevice& known : known_devices(gpus(), usable_backends(gpus())))
    if (known.device == device) return {known.missing};
  return {fmt::format("there is no {} here", to_string(device))};
}

std::vector<GpuProbe> gpu_probes() {
  std::vector<GpuProbe> probes;
  for (const Entry& entry : kBackends)
    if (entry.begin_probe) probes.push_back([begin = entry.begin_probe](bool quick) { return begin(false, quick)(); });
  return probes;
}

std::function<GpuFindings()> begin_gpu_rates() {
  std::vector<std::function<GpuFindings()>> begun;
  for (const Entry& entry : kBackends)
    if (entry.begin_probe) begun.push_back(entry.begin_probe(true, true));
  return [begun] {
    GpuFindings all;
    for (const auto& finish : begun) {
      GpuFindings found = finish();
      all.gpus.insert(all.gpus.end(), found.gpus.begin(), found.gpus.end());
      if (all.none.empty()) all.none = std::move(found.none);
    }
    if (!all.gpus.empty()) all.none.clear();
    return all;
  };
}

}  // namespace ridge
