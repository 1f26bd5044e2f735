#include "machine/macos.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include <fmt/core.h>

#if defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>

#include <array>
#endif

namespace ridge {
namespace {

constexpr int kMaxLevels = 16, kMaxCores = 4096;

class Keys {
 public:
  explicit Keys(std::string_view text) {
    while (!text.empty()) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      if (const size_t colon = line.find(':'); colon != line.npos) values_.try_emplace(trim(line.substr(0, colon)), trim(line.substr(colon + 1)));
    }
  }

  std::string_view text(const std::string& key) const {
    const auto at = values_.find(key);
    return at == values_.end() ? std::string_view() : at->second;
  }

  // 0 if missing or implausible.
  int64_t number(const std::string& key, int64_t most) const {
    const std::string_view t = text(key);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(t.data(), t.data() + t.size(), value);
    return error == std::errc() && end == t.data() + t.size() && value > 0 && value <= most ? value : 0;
  }

 private:
  static std::string_view trim(std::string_view t) {
    constexpr std::string_view kBlank = " \t\r\"";
    const size_t begin = t.find_first_not_of(kBlank);
    return begin == t.npos ? std::string_view() : t.substr(begin, t.find_last_not_of(kBlank) - begin + 1);
  }

  std::map<std::string_view, std::string_view, std::less<>> values_;
};

// One performance level, or a whole chip without levels: the keys differ by prefix.
void add_level(Topology& t, const Keys& keys, const std::string& prefix, int reported, double guess) {
  constexpr int64_t kMaxCache = int64_t(1) << 40;
  int cores = int(keys.number(prefix + "physicalcpu", kMaxCores));
  if (cores == 0) cores = int(keys.number(prefix + "physicalcpu_max", kMaxCores));
  const int threads = std::max(cores, int(keys.number(prefix + "logicalcpu", kMaxCores)));
  const int per_l2 = std::max(1, std::min(cores, int(keys.number(prefix + "cpusperl2", kMaxCores))));
  const int per_l3 = std::max(1, std::min(cores, int(keys.number(prefix + "cpusperl3", kMaxCores))));
  std::vector<Cache> caches;
  for (const Cache& c : {Cache{1, keys.number(prefix + "l1dcachesize", kMaxCache), 1}, Cache{2, keys.number(prefix + "l2cachesize", kMaxCache), per_l2},
                         Cache{3, keys.number(prefix + "l3cachesize", kMaxCache), per_l3}})
    if (c.bytes > 0) caches.push_back(c);
  int cpu = t.thread_count();
  const int first_cluster = t.cores.empty() ? 0 : t.cores.back().cluster + 1;
  for (int i = 0; i < cores; ++i) {
    Core& core = t.cores.emplace_back();
    core.cluster = first_cluster + i / per_l2;
    core.reported = reported, core.guess = guess;
    core.caches = caches;
    for (int n = threads / cores + (i < threads % cores); n > 0; --n) core.cpus.push_back(cpu++);
  }
}

}  // namespace

Topology topology_from_sysctl(std::string_view text) {
  const Keys keys(text);
  Topology t;
  t.cpu_name = keys.text("machdep.cpu.brand_string");
  t.architecture = keys.number("hw.optional.arm64", 1) || t.cpu_name.starts_with("Apple") ? "arm64" : "x86-64";
  t.memory_bytes = keys.number("hw.memsize", int64_t(1) << 60);
  t.packages = std::max(1, int(keys.number("hw.packages", 64)));

  const int levels = int(keys.number("hw.nperflevels", kMaxLevels));
  std::string names;
  for (int level = 0; level < levels; ++level) {
    const std::string prefix = fmt::format("hw.perflevel{}.", level);
    // macOS does not report a level's speed: each is assumed to have 0.6 of the speed of the one before until measured.
    add_level(t, keys, prefix, levels - 1 - level, std::pow(0.6, level));
    names += fmt::format("{}{}", names.empty() ? "" : ", ", keys.text(prefix + "name"));
  }
  if (t.cores.empty()) {
    // Only without levels: on a chip with several kinds, the keys without a level describe the slowest cores.
    add_level(t, keys, "hw.", -1, 0);
    if (levels > 0) t.remarks.push_back(fmt::format("sysctl reports {} performance levels without cores; all cores are treated as equal", levels));
  }
  if (levels > 2) t.remarks.push_back(fmt::format("the system names its kinds of cores, fastest first: {}", names));
  if (!t.cores.empty()) set_kinds_by_hints(t);
  return t;
}

#if defined(__APPLE__)

std::string read_sysctl() {
  std::string text;
  auto add_text = [&](const std::string& key) {
    std::array<char, 256> value{};
    size_t size = value.size() - 1;
    if (sysctlbyname(key.c_str(), value.data(), &size, nullptr, 0) == 0) text += key + ": " + value.data() + "\n";
  };
  auto add_number = [&](const std::string& key) {
    int64_t value = 0;  // the call writes 4 or 8 bytes, little-endian
    size_t size = sizeof value;
    if (sysctlbyname(key.c_str(), &value, &size, nullptr, 0) == 0) text += key + ": " + std::to_string(value) + "\n";
    return value;
  };
  add_text("machdep.cpu.brand_string");
  for (const char* key : {"hw.memsize", "hw.packages", "hw.optional.arm64"}) add_number(key);
  std::vector<std::string> prefixes{"hw."};
  const int64_t levels = std::min<int64_t>(add_number("hw.nperflevels"), kMaxLevels);
  for (int64_t i = 0; i < levels; ++i) prefixes.push_back("hw.perflevel" + std::to_string(i) + ".");
  for (const std::string& prefix : prefixes) {
    if (prefix != "hw.") add_text(prefix + "name");
    for (const char* key : {"physicalcpu", "physicalcpu_max", "logicalcpu", "l1dcachesize", "l2cachesize", "l3cachesize", "cpusperl2", "cpusperl3"})
      add_number(prefix + key);
  }
  return text;
}

int64_t macos_available_memory() {
  vm_statistics64_data_t statistics{};
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  if (host_statistics64(mach_host_self(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&statistics), &count) != KERN_SUCCESS) return 0;
  return int64_t(statistics.free_count + statistics.inactive_count + statistics.purgeable_count) * int64_t(vm_kernel_page_size);
}

#endif

}  // namespace ridge
