#include "machine/device_choice.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <tuple>

#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"

namespace ridge {
namespace {

constexpr std::string_view kKindNames[] = {"cpu", "cuda", "metal"};
constexpr std::string_view kValid = "auto, cpu, cuda (or gpu), cuda:N, metal (or mps)";

std::string_view name(Device::Kind kind) { return kKindNames[int(kind)]; }

[[noreturn]] void unknown_device(std::string_view text, std::string_view hint) {
  fail(ErrorCode::usage, "[device] unknown device '{}'; {}; valid: {}", text, hint, kValid);
}

// Common words for a device that edit distance would not match.
std::string hint_for(std::string_view word) {
  struct Meaning {
    std::string_view word, device;
  };
  constexpr Meaning meanings[] = {{"nvidia", "cuda"}, {"apple", "metal"}, {"default", "auto"}};
  for (const Meaning& m : meanings)
    if (word == m.word) return fmt::format("did you mean '{}'?", m.device);
  constexpr std::array<std::string_view, 6> names = {"auto", "cpu", "cuda", "gpu", "metal", "mps"};
  return nearest_hint(word.substr(0, word.find(':')), names);
}

// Text such as "12.3 ms", for comparing expected times.
std::string time_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  return seconds >= 1e-3 ? fmt::format("{:.2f} ms", 1e3 * seconds) : fmt::format("{:.1f} µs", 1e6 * seconds);
}

const DeviceCost* cost_of(const Device& device, std::span<const DeviceCost> costs) {
  auto found = std::find_if(costs.begin(), costs.end(), [&](const DeviceCost& cost) { return cost.device == device; });
  return found == costs.end() ? nullptr : &*found;
}

std::string described(const KnownDevice& known) {
  return known.name.empty() ? to_string(known.device) : fmt::format("{} ({})", to_string(known.device), known.name);
}

// The name in a message about a missing device: a kind without devices has no number.
std::string called(const KnownDevice& known) { return known.name.empty() ? std::string(name(known.device.kind)) : described(known); }

DeviceChoice choose_automatically(const std::vector<KnownDevice>& devices, const StepWork& work, std::span<const DeviceCost> costs) {
  struct Candidate {
    const KnownDevice* known;
    const DeviceCost* cost;
    double seconds;  // 0: unknown
  };
  DeviceChoice choice;
  std::vector<Candidate> candidates;
  for (const KnownDevice& known : devices) {
    const DeviceCost* cost = cost_of(known.device, costs);
    if (known.missing.empty())
      candidates.push_back({&known, cost, cost ? expected_seconds(work, *cost) : 0});
    else if (!known.name.empty())
      choice.notices.push_back(fmt::format("{}: {}", described(known), known.missing));
  }
  auto text = [](const Candidate& c) {
    return fmt::format("{} expected to take {} a step ({})", to_string(c.known->device), time_text(c.seconds),
                       c.cost->measured ? "from measured rates" : "a guess");
  };

  auto best = candidates.begin();
  if (candidates.size() == 1) {
    choice.reason = "the only device that this build can use here";
  } else if (std::all_of(candidates.begin(), candidates.end(), [](const Candidate& c) { return c.seconds > 0; })) {
    std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
    // On a tie (within 5 %) the CPU wins: it is always available, and no data has to be moved.
    constexpr double kEqual = 1.05;
    best = std::find_if(candidates.begin(), candidates.end(), [](const Candidate& c) { return c.known->device.kind == Device::Kind::cpu; });
    if (best == candidates.end() || best->seconds > kEqual * candidates.front().seconds) best = candidates.begin();
    choice.reason = text(*best);
    choice.runner_up = text(candidates[best == candidates.begin() ? 1 : 0]);
  } else {
    best = std::max_element(candidates.begin(), candidates.end(),
                            [](const Candidate& a, const Candidate& b) { return a.known->memory_free < b.known->memory_free; });
    choice.reason = "no expected times to compare: the GPU with the most free memory";
    choice.runner_up = "cpu, where small steps may be faster";
  }
  choice.device = best->known->device;
  return choice;
}

bool matches(const DeviceRequest& request, const Device& device) { return device.kind == request.kind && (!request.index || *request.index == device.index); }

// The devices in the order in which they replace the requested one; the CPU is last.
std::vector<const KnownDevice*> chain_of(const DeviceRequest& request, const std::vector<KnownDevice>& devices) {
  std::vector<const KnownDevice*> chain;
  for (const KnownDevice& known : devices) chain.push_back(&known);
  auto rank = [&](const KnownDevice& known) {
    if (matches(request, known.device)) return 0;
    return known.device.kind == request.kind ? 1 : known.device.kind == Device::Kind::cpu ? 3 : 2;
  };
  std::stable_sort(chain.begin(), chain.end(), [&](auto* a, auto* b) {
    return std::tuple(rank(*a), !a->missing.empty(), -a->memory_free) < std::tuple(rank(*b), !b->missing.empty(), -b->memory_free);
  });
  return chain;
}

DeviceChoice choose_named(std::string_view text, const DeviceRequest& request, Fallback fallback, const std::vector<KnownDevice>& devices) {
  const std::vector<const KnownDevice*> chain = chain_of(request, devices);
  const KnownDevice& first = *chain.front();
  DeviceChoice choice;
  if (matches(request, first.device) && first.missing.empty()) {
    choice.device = first.device;
    choice.reason = fmt::format("asked for by name ({})", text);
    if (std::count_if(devices.begin(), devices.end(), [&](const KnownDevice& known) { return matches(request, known.device); }) > 1)
      choice.reason += ", the one of its kind with the most free memory";
    return choice;
  }
  // If there is no device of this kind, say why; otherwise the number does not exist.
  std::string refusal = fmt::format("{} is not available here: {}", called(first), first.missing);
  if (!matches(request, first.device) && !first.name.empty()) {
    const KnownDevice* last = &first;
    for (const KnownDevice* known : chain)
      if (known->device.kind == request.kind && known->device.index > last->device.index) last = known;
    refusal = fmt::format("there is no {}; the nearest is {}", text, to_string(last->device));
  }
  if (fallback == Fallback::forbid) fail(ErrorCode::unsupported, "[device] {}; fallbacks are forbidden: ask for cpu or auto, or allow them", refusal);
  const KnownDevice& next = **std::find_if(chain.begin(), chain.end(), [](const KnownDevice* known) { return known->missing.empty(); });
  choice.device = next.device;
  choice.fell_back = true;
  choice.reason = fmt::format("{} is not available here", text);
  choice.notices = {refusal, fmt::format("{} runs instead of {}", described(next), text)};
  return choice;
}

}  // namespace

std::string to_string(const Device& device) {
  return device.kind == Device::Kind::cuda ? fmt::format("cuda:{}", device.index) : std::string(name(device.kind));
}

double expected_seconds(const StepWork& work, const DeviceCost& cost) {
  auto time = [](double amount, double rate) { return rate > 0 ? amount / rate : 0; };
  return std::max(time(work.flops, cost.flops_per_second), time(work.bytes, cost.bytes_per_second)) + work.launches * cost.launch_seconds +
         time(work.transfer_bytes, cost.transfer_bytes_per_second);
}

std::vector<KnownDevice> known_devices(const GpuScan& scan, const Backends& backends) {
  std::vector<KnownDevice> devices;
  const std::string not_built = "not available in this build of Ridge";
  for (const Gpu& gpu : scan.gpus)
    if (gpu.ordinal >= 0) devices.push_back({{Device::Kind::cuda, gpu.ordinal}, gpu.name, backends.cuda ? backends.cuda_missing : not_built, gpu.memory_free});
  if (devices.empty())
    devices.push_back({{Device::Kind::cuda, 0}, "", backends.cuda ? scan.no_cuda : not_built + (scan.no_cuda.empty() ? "" : "; and " + scan.no_cuda)});

  const auto apple = std::find_if(scan.gpus.begin(), scan.gpus.end(), [](const Gpu& gpu) { return gpu.vendor == Gpu::Vendor::apple; });
#if defined(__APPLE__)
  const bool macos = true;
#else
  const bool macos = false;
#endif
  if (apple != scan.gpus.end() && macos)
    devices.push_back({{Device::Kind::metal, 0}, apple->name, backends.metal ? "" : not_built, apple->memory_free});
  else
    devices.push_back({{Device::Kind::metal, 0}, "", "Metal needs macOS on Apple silicon"});
  devices.push_back({{}, ""});
  return devices;
}

DeviceRequest parse_device(std::string_view text) {
  const std::string word = lower_case(text);
  if (word == "auto") return {.automatic = true};
  if (word == "cpu") return {};
  if (word == "cuda" || word == "gpu") return {.kind = Device::Kind::cuda};
  if (word == "metal" || word == "mps") return {.kind = Device::Kind::metal};
  if (word.starts_with("cuda:")) {
    int index = -1;
    const char* end = word.data() + word.size();
    auto [stop, error] = std::from_chars(word.data() + 5, end, index);
    constexpr int kMax = 1023;
    if (error != std::errc() || stop != end || index < 0 || index > kMax) unknown_device(text, "a GPU is named by its number: cuda:0");
    return {.kind = Device::Kind::cuda, .index = index};
  }
  unknown_device(text, hint_for(word));
}

DeviceChoice choose_device(std::string_view request, Fallback fallback, const std::vector<KnownDevice>& devices, const StepWork& work,
                           std::span<const DeviceCost> costs) {
  const DeviceRequest parsed = parse_device(request);
  return parsed.automatic ? choose_automatically(devices, work, costs) : choose_named(request, parsed, fallback, devices);
}

}  // namespace ridge
