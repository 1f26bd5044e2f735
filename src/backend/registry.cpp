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
#include "machine/device_choice.h"

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
