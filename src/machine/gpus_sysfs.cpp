#include "machine/gpus_sysfs.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include <fmt/core.h>

#include "machine/system_files.h"

#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace ridge {
namespace {

namespace fs = std::filesystem;

// The first line of a small file, made safe for messages; empty if unreadable.
std::string first_line(const fs::path& path) {
  const std::string text = read_system_file(path);
  std::string line = text.substr(0, std::min<size_t>(text.find('\n'), 200));
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 32 || c > 126; }, ' ');
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

// "0x10de" → 0x10de; 0 for anything else.
unsigned hex_of(std::string_view text) {
  if (text.starts_with("0x")) text.remove_prefix(2);
  unsigned value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return error == std::errc() && end == text.data() + text.size() ? value : 0;
}

int64_t bytes_of(const fs::path& path) {
  const int64_t value = parse_number(read_system_file(path)).value_or(0);
  return value < (int64_t(1) << 50) ? value : 0;
}

// Only vendors of GPUs that can compute: servers and virtual machines have display adapters as well.
bool known_vendor(unsigned id, Gpu::Vendor& vendor) {
  switch (id) {
    case 0x10de: vendor = Gpu::Vendor::nvidia; return true;
    case 0x1002: vendor = Gpu::Vendor::amd; return true;
    case 0x8086: vendor = Gpu::Vendor::intel; return true;
    case 0x106b: vendor = Gpu::Vendor::apple; return true;
    default: return false;
  }
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end && entries.size() < 4096; at.increment(error)) entries.push_back(at->path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

void add_pci(const fs::path& root, std::vector<Gpu>& gpus) {
  for (const fs::path& device : entries_of(root / "sys/bus/pci/devices")) {
    constexpr unsigned kDisplay = 0x03;  // the PCI class of display controllers, including 3D ones
    if (hex_of(first_line(device / "class")) >> 16 != kDisplay) continue;
    Gpu gpu;
    if (!known_vendor(hex_of(first_line(device / "vendor")), gpu.vendor)) continue;
    gpu.pci = canonical_pci(device.filename().string());
    gpu.name = first_line(device / "product_name");
    if (gpu.name.empty()) gpu.name = fmt::format("{} GPU {:04x}", name(gpu.vendor), hex_of(first_line(device / "device")));
    gpu.memory_total = bytes_of(device / "mem_info_vram_total");
    if (gpu.memory_total) gpu.memory_free = std::max<int64_t>(0, gpu.memory_total - bytes_of(device / "mem_info_vram_used"));
    gpus.push_back(gpu);
  }
}

// Integrated GPUs have no bus address; their driver's name identifies them.
void add_on_chip(const fs::path& root, std::vector<Gpu>& gpus) {
  for (const fs::path& card : entries_of(root / "sys/class/drm")) {
    const std::string entry = card.filename().string();
    if (!entry.starts_with("card") || entry.find('-') != std::string::npos) continue;
    if (!first_line(card / "device/vendor").empty()) continue;  // on the PCI bus, already listed
    const std::string uevent = read_system_file(card / "device/uevent");
    for (std::string_view rest = uevent; !rest.empty();) {
      const std::string_view line = take_line(rest);
      if (line == "DRIVER=asahi") gpus.push_back({.vendor = Gpu::Vendor::apple, .name = "Apple GPU"});
      if (line == "DRIVER=msm" || line == "DRIVER=msm_dpu") gpus.push_back({.name = "Adreno GPU"});
      if (line == "DRIVER=panfrost" || line == "DRIVER=panthor") gpus.push_back({.name = "Mali GPU"});
    }
  }
}

}  // namespace

std::string canonical_pci(std::string_view text) {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  int used = 0;
  const std::string copy(text.substr(0, 64));
  if (copy.find_first_not_of("0123456789abcdefABCDEF:.") != std::string::npos) return {};
  if (std::sscanf(copy.c_str(), "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &used) != 4 || size_t(used) != copy.size()) return {};
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function);
}

std::string nvidia_kernel_driver(const fs::path& root) {
  const std::string version = first_line(root / "sys/module/nvidia/version");
  if (!version.empty()) return version;
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue …"
  const std::string line = first_line(root / "proc/driver/nvidia/version");
  for (size_t at = 0; at < line.size();) {
    const size_t end = std::min(line.find(' ', at), line.size());
    const std::string word = line.substr(at, end - at);
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
    at = end + 1;
  }
  return {};
}

std::vector<Gpu> gpus_of_system(const fs::path& root) {
  std::vector<Gpu> gpus;
#if defined(__APPLE__) && defined(__aarch64__)
  char chip[128] = {};
  size_t size = sizeof chip - 1;
  int64_t memory = 0;
  size_t memory_size = sizeof memory;
  ::sysctlbyname("machdep.cpu.brand_string", chip, &size, nullptr, 0);
  ::sysctlbyname("hw.memsize", &memory, &memory_size, nullptr, 0);
  gpus.push_back({.vendor = Gpu::Vendor::apple, .name = fmt::format("{} GPU", *chip ? chip : "Apple"), .memory_total = memory});
#endif
  add_pci(root, gpus);
  add_on_chip(root, gpus);
  return gpus;
}

}  // namespace ridge
