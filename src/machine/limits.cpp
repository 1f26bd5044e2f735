#include "machine/limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <thread>

#include <fmt/core.h>

#include "machine/affinity.h"
#include "machine/control_groups.h"
#if defined(__APPLE__)
#include "machine/macos.h"
#endif

namespace ridge {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kImplausible = int64_t(1) << 60;  // bytes

// The value in a file of "key: value …" lines, as a word.
std::string value_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    std::string_view line = take_line(text);
    if (!line.starts_with(key)) continue;
    line.remove_prefix(key.size());
    if (line.starts_with(':')) line.remove_prefix(1);
    return std::string(take_word(line));
  }
  return "";
}

int64_t kilobytes(std::string_view text, std::string_view key) {
  const int64_t value = parse_number(value_of(text, key)).value_or(0);
  return value < kImplausible / 1024 ? value * 1024 : 0;
}

// Intersects a with b; returns false and leaves a unchanged if they are disjoint or b excludes nothing.
bool intersect(std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  if (both.empty() || both.size() == a.size()) return false;
  a = std::move(both);
  return true;
}

class Reading {
 public:
  explicit Reading(const fs::path& root) : root_(root), real_(root == "/"), groups_(read_control_groups(root)) {}

  Limits read() {
    cpus();
    quota();
    ulimits();
    memory();
    return std::move(out_);
  }

 private:
  std::string text(const char* file) const { return read_system_file(root_ / file); }

  template <class... Args>
  void add_line(fmt::format_string<Args...> format, Args&&... args) {
    out_.reasons.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void cpus() {
    const std::vector<int> mask = real_ ? affinity_mask() : parse_cpu_list(value_of(text("proc/self/status"), "Cpus_allowed_list"));
    out_.online = parse_cpu_list(text("sys/devices/system/cpu/online"));
    if (real_ || out_.online.empty()) {  // the kernel's mask contains only online CPUs, while a container's files may count from 0
      std::vector<int> all;
      std::set_union(out_.online.begin(), out_.online.end(), mask.begin(), mask.end(), std::back_inserter(all));
      out_.online = std::move(all);
    }
    if (out_.online.empty() && real_)
      for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) out_.online.push_back(int(i));
    if (out_.online.empty()) out_.online = {0};
    std::vector<int> present = parse_cpu_list(text("sys/devices/system/cpu/present"));
    std::set_difference(present.begin(), present.end(), out_.online.begin(), out_.online.end(), std::back_inserter(out_.offline));
    if (!out_.offline.empty()) add_line("CPUs {} are offline (/sys/devices/system/cpu/online)", format_cpu_list(out_.offline));

    out_.cpus = out_.online;
    for (const auto& set : groups_.cpusets)
      if (intersect(out_.cpus, set.cpus)) add_line("CPUs {} only: {}", format_cpu_list(out_.cpus), set.source);
    if (intersect(out_.cpus, mask)) add_line("CPUs {} only: affinity mask of the process", format_cpu_list(out_.cpus));
  }

  void quota() {
    const std::string* source = nullptr;
    for (const auto& q : groups_.quotas)
      if (q.cpus < double(out_.online.size()) && (out_.cpu_quota == 0 || q.cpus < out_.cpu_quota)) out_.cpu_quota = q.cpus, source = &q.source;
    if (source) add_line("{:.4g} CPUs' time: {}", out_.cpu_quota, *source);
  }

  void ulimits() {
    const std::string limits = real_ ? "" : text("proc/self/limits");
    auto get = [&](const char* name, int resource) -> std::optional<int64_t> {
      if (!real_) return parse_number(value_of(limits, name));
      rlimit limit{};
      if (getrlimit(resource, &limit) != 0 || limit.rlim_cur >= rlim_t(kImplausible)) return std::nullopt;
      return int64_t(limit.rlim_cur);
    };
    out_.address_space = get("Max address space", RLIMIT_AS);
    out_.resident = get("Max resident set", RLIMIT_RSS);
    out_.locked = get("Max locked memory", RLIMIT_MEMLOCK);
    out_.open_files = get("Max open files", RLIMIT_NOFILE);
  }

  void memory() {
    machine_memory();
    const std::string* source = nullptr;
    static const std::string kAddressSpace = "ulimit -v";
    auto consider = [&](int64_t limit, int64_t used, const std::string& from) {
      if (out_.memory_total && limit >= out_.memory_total) return;
      if (out_.memory_limit == 0 || limit < out_.memory_limit) out_.memory_limit = limit, source = &from;
      const int64_t left = std::max<int64_t>(limit - used, 1);  // 0 would mean unknown
      if (out_.memory_available == 0 || left < out_.memory_available) out_.memory_available = left;
    };
    for (const auto& m : groups_.memory) consider(m.limit, m.used, m.source);
    if (out_.address_space && *out_.address_space > 0) {
      const std::string statm = text("proc/self/statm");
      std::string_view rest = statm;
      const int64_t pages = parse_number(take_word(rest)).value_or(0);
      consider(*out_.address_space, std::min(pages, kImplausible >> 20) * int64_t(sysconf(_SC_PAGESIZE)), kAddressSpace);
    }
    if (source) add_line("{:.4g} GiB of memory: {}", double(out_.memory_limit) / (1 << 30), *source);
  }

  void machine_memory() {
    const std::string info = text("proc/meminfo");
    out_.memory_total = kilobytes(info, "MemTotal");
    out_.memory_available = kilobytes(info, "MemAvailable");
    out_.swap_total = kilobytes(info, "SwapTotal");
    out_.swap_free = std::min(out_.swap_total, kilobytes(info, "SwapFree"));
    if (out_.memory_available == 0)  // kernels before 3.14
      out_.memory_available = kilobytes(info, "MemFree") + kilobytes(info, "Buffers") + kilobytes(info, "Cached");
#if defined(__APPLE__)
    if (real_) {
      out_.memory_total = topology_from_sysctl(read_sysctl()).memory_bytes;
      out_.memory_available = macos_available_memory();
    }
#elif defined(_SC_AVPHYS_PAGES)
    if (real_ && out_.memory_total == 0) {
      const int64_t page = sysconf(_SC_PAGESIZE);
      out_.memory_total = std::max<int64_t>(0, page * int64_t(sysconf(_SC_PHYS_PAGES)));
      out_.memory_available = std::max<int64_t>(0, page * int64_t(sysconf(_SC_AVPHYS_PAGES)));
    }
#endif
    if (out_.memory_total) out_.memory_available = std::min(out_.memory_available, out_.memory_total);
  }

  fs::path root_;
  bool real_;  // the running system, which can also be queried directly
  GroupLimits groups_;
  Limits out_;
};

}  // namespace

int Limits::threads() const {
  const double most = cpu_quota > 0 ? std::ceil(cpu_quota - 1e-9) : double(cpus.size());
  return std::max(1, int(std::min(most, double(cpus.size()))));
}

Limits read_limits(const fs::path& root) { return Reading(root).read(); }

}  // namespace ridge
