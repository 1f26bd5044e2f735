#include "machine/health.h"

#include <sys/utsname.h>

#include <algorithm>
#include <charconv>

#if defined(__GLIBC__)
#include <gnu/libc-version.h>
#endif

#include "machine/system_files.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

// A word from a small file, for display: printable, and not long.
std::string word_of(const fs::path& path) {
  const std::string text = read_system_file(path);
  std::string_view rest = text;
  std::string word(take_word(rest).substr(0, 40));
  const bool clean = std::all_of(word.begin(), word.end(), [](unsigned char c) { return c > 32 && c < 127; });
  return clean ? word : std::string();
}

std::optional<double> real_of(std::string_view text) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 && value < 1e9 ? std::optional(value) : std::nullopt;
}

// The number after a name at the start of a line: "nr_periods 42".
int64_t field(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    std::string_view line = take_line(text);
    if (take_word(line) == name) return parse_number(line).value_or(0);
  }
  return 0;
}

// The most restrictive governor, and the lowest clock cap.
void read_clocks(const fs::path& root, Health& health) {
  constexpr int kMaxCpus = 4096;
  auto rank = [](const std::string& governor) { return governor == "powersave" ? 2 : governor == "conservative" || governor == "userspace" ? 1 : 0; };
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    const fs::path folder = root / "sys/devices/system/cpu" / ("cpu" + std::to_string(cpu));
    std::error_code error;
    if (!fs::exists(folder, error)) break;
    const fs::path clock = folder / "cpufreq";
    const std::string governor = word_of(clock / "scaling_governor");
    if (governor.empty()) continue;
    if (health.governor.empty() || rank(governor) > rank(health.governor)) {
      health.governor = governor;
      health.clock_driver = word_of(clock / "scaling_driver");
      health.energy_preference = word_of(clock / "energy_performance_preference");
    }
    const int64_t now = parse_number(read_system_file(clock / "scaling_max_freq")).value_or(0);
    const int64_t most = parse_number(read_system_file(clock / "cpuinfo_max_freq")).value_or(0);
    if (now > 0 && most > now) health.clock_cap = std::min(health.clock_cap, double(now) / double(most));
  }
}

bool on_battery(const fs::path& root) {
  std::error_code error;
  bool battery = false, mains = false, plugged = false;
  for (fs::directory_iterator at(root / "sys/class/power_supply", error), end; !error && at != end; at.increment(error)) {
    const std::string type = word_of(at->path() / "type");
    if (type == "Battery" && word_of(at->path() / "status") == "Discharging" && word_of(at->path() / "scope") != "Device") battery = true;
    if (type == "Mains" || type == "USB") {
      mains = true;
      plugged = plugged || word_of(at->path() / "online") == "1";
    }
  }
  return battery && !(mains && plugged);
}

// "always [madvise] never" → "madvise"
std::string chosen_word(const std::string& text) {
  const size_t begin = text.find('['), end = text.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin || end - begin > 20) return {};
  const std::string word = text.substr(begin + 1, end - begin - 1);
  return word == "always" || word == "madvise" || word == "never" ? word : std::string();
}

// cpu  user nice system idle iowait irq softirq steal …
double stolen_share(const fs::path& root) {
  const std::string text = read_system_file(root / "proc/stat");
  std::string_view rest = text, line = take_line(rest);
  if (take_word(line) != "cpu") return 0;
  constexpr int kSteal = 7;
  double total = 0, stolen = 0;
  for (int i = 0; i <= kSteal; ++i) {
    const double ticks = double(parse_number(take_word(line)).value_or(0));
    total += ticks;
    if (i == kSteal) stolen = ticks;
  }
  return total > 0 ? stolen / total : 0;
}

// "some avg10=1.23 avg60=…"
std::optional<double> pressure_of(const fs::path& path) {
  const std::string text = read_system_file(path);
  std::string_view rest = text;
  if (take_word(rest) != "some") return {};
  std::string_view word = take_word(rest);
  if (!word.starts_with("avg10=")) return {};
  const std::optional<double> percent = real_of(word.substr(6));
  return percent && *percent <= 100 ? std::optional(*percent / 100) : std::nullopt;
}

std::string system_name(const fs::path& root) {
  const std::string text = read_system_file(root / "etc/os-release");
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view line = take_line(rest);
    if (!line.starts_with("PRETTY_NAME=")) continue;
    std::string name(line.substr(12, 80));
    std::erase_if(name, [](unsigned char c) { return c == '"' || c == '\'' || c < 32 || c > 126; });
    return name;
  }
  return {};
}

}  // namespace

Health read_health(const fs::path& root) {
  Health health;
  health.system = system_name(root);
  if (utsname names{}; ::uname(&names) == 0) {
    health.kernel = names.release;
    if (health.system.empty()) health.system = names.sysname;
  }
#if defined(__GLIBC__)
  health.libc = ::gnu_get_libc_version();
#endif
  std::error_code error;
  health.container = fs::exists(root / ".dockerenv", error) || fs::exists(root / "run/.containerenv", error);
  health.virtual_machine = read_system_file(root / "proc/cpuinfo").find(" hypervisor") != std::string::npos;

  read_clocks(root, health);
  health.on_battery = on_battery(root);
  health.huge_pages = chosen_word(read_system_file(root / "sys/kernel/mm/transparent_hugepage/enabled"));
  const std::string load = read_system_file(root / "proc/loadavg");
  std::string_view rest = load;
  health.load = real_of(take_word(rest)).value_or(0);
  health.stolen = stolen_share(root);
  const std::string group = read_system_file(root / "sys/fs/cgroup/cpu.stat");
  if (const int64_t periods = field(group, "nr_periods"); periods > 0) health.throttled = std::min(1.0, double(field(group, "nr_throttled")) / double(periods));
  health.memory_pressure = pressure_of(root / "proc/pressure/memory");
  return health;
}

}  // namespace ridge
