#include "machine/utilisation.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/core.h>

#include "drivers/nvml.h"
#include "machine/system_files.h"

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;

// The sampler's maximum share of a core.
constexpr double kMaxCost = 0.0005;

double cpu_seconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// A /proc file that stays open, so that each reading is one system call.
class CounterFile {
 public:
  explicit CounterFile(const std::filesystem::path& path, size_t bytes) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)), text_(bytes, '\0') {}
  ~CounterFile() {
    if (fd_ >= 0) close(fd_);
  }
  CounterFile(const CounterFile&) = delete;

  // As much of its beginning as fits; empty if unreadable.
  std::string_view read() {
    const ssize_t n = fd_ < 0 ? -1 : pread(fd_, text_.data(), text_.size(), 0);
    return {text_.data(), size_t(std::max<ssize_t>(n, 0))};
  }

 private:
  int fd_;
  std::string text_;
};

struct CpuTicks {
  int64_t busy = 0, stolen = 0, total = 0;
};

// Counters since the system or the process started.
struct Counters {
  Clock::time_point when;
  double process = 0;
  std::vector<CpuTicks> cpus;  // of each watched CPU
  bool counted = false;        // for all of them
  int64_t resident = 0, available = 0;
};

// A line of /proc/stat after its name: user nice system idle iowait irq softirq steal; guest time is included in user.
CpuTicks parse_ticks(std::string_view line) {
  CpuTicks t;
  for (int field = 0; field < 8; ++field) {
    const int64_t n = parse_number(take_word(line)).value_or(0);
    t.total += n;
    if (field == 7)
      t.stolen = n;
    else if (field != 3 && field != 4)
      t.busy += n;
  }
  return t;
}

double share(int64_t part, int64_t whole) { return whole > 0 ? std::clamp(double(part) / double(whole), 0.0, 1.0) : 0; }

}  // namespace

std::string_view short_kind(std::string_view kind) {
  if (kind == "performance") return "P";
  if (kind == "efficiency") return "E";
  if (kind == "low-power") return "LP";
  return kind;
}

ReadGpus gpu_reader(std::shared_ptr<const Nvml> nvml) {
  return [nvml = std::move(nvml)] {
    std::vector<GpuUse> gpus;
    for (int i = 0; i < nvml->count(); ++i) {
      const NvmlReading r = nvml->read(i);
      gpus.push_back({nvml->name(i), r.busy < 0 ? -1.0 : r.busy / 100.0, r.memory_total - r.memory_free, r.memory_total});
    }
    return gpus;
  };
}

std::vector<CpuGroup> cpu_groups(const Machine& machine) {
  std::vector<CpuGroup> groups;
  for (const CoreKind& kind : machine.usable) {
    CpuGroup& g = groups.emplace_back(CpuGroup{std::string(short_kind(kind.name)), kind.cpus});
    g.cpus.insert(g.cpus.end(), kind.siblings.begin(), kind.siblings.end());
  }
  return groups;
}

double Utilisation::others() const {
  if (!counted || cpus.empty()) return 0;
  return std::clamp(busy + stolen - process / double(cpus.size()), 0.0, 1.0);
}

OthersWatch::OthersWatch() : sampler_(cpu_groups(detect_machine({}))) {}

double others_now() {
  using Clock = std::chrono::steady_clock;
  constexpr auto kPollInterval = std::chrono::milliseconds(100), kFresh = std::chrono::milliseconds(5000);
  static std::mutex mutex;
  static std::optional<std::pair<Clock::time_point, double>> last;
  const std::lock_guard lock(mutex);
  if (!last || Clock::now() - last->first > kFresh) {
    OthersWatch watch;
    std::this_thread::sleep_for(kPollInterval);
    last = {Clock::now(), watch.others()};
  }
  return last->second;
}

std::string Utilisation::summary() const {
  std::string text = fmt::format("CPU {:.0f} %", 100 * busy);
  if (counted && groups.size() > 1) {
    text += " (";
    for (size_t i = 0; i < groups.size(); ++i) text += fmt::format("{} {:.0f} %, ", names[i], 100 * groups[i]);
    text += fmt::format("balance {:.2f}×)", balance);
  } else if (!counted) {
    text += " by this process";
  }
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i].busy < 0) continue;
    text += gpus.size() > 1 ? fmt::format(", GPU {} {:.0f} %", i, 100 * gpus[i].busy) : fmt::format(", GPU {:.0f} %", 100 * gpus[i].busy);
  }
  return text;
}

struct UtilisationSampler::State {
  std::vector<CpuGroup> groups;
  std::map<int, size_t> index;  // of a CPU in the list of watched ones
  ReadGpus read_gpus;
  CounterFile stat, statm, meminfo;
  int64_t bytes = 0, page = sysconf(_SC_PAGESIZE);
  Counters first, last;
  std::vector<GpuUse> gpu_sums;  // sums over all samples
  int64_t samples = 0;

  // A line of /proc/stat has at most ten numbers of 20 digits; typical ones are a third of that.
  State(std::vector<CpuGroup> g, ReadGpus gpus, const std::filesystem::path& root, size_t stat_bytes)
      : groups(std::move(g)),
        read_gpus(std::move(gpus)),
        stat(root / "proc/stat", stat_bytes),
        statm(root / "proc/self/statm", 256),
        meminfo(root / "proc/meminfo", 512) {
    for (const CpuGroup& group : groups)
      for (int cpu : group.cpus) index.emplace(cpu, index.size());
    first.cpus.resize(index.size());
    read(first);
    last = first;
  }

  void read(Counters& c) {
    c.when = Clock::now();
    c.process = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
    std::string_view text = stat.read();
    bytes += int64_t(text.size());
    size_t found = 0;
    // CPUs come first; a last line without a newline was truncated by the buffer.
    while (text.find('\n') != text.npos) {
      std::string_view line = take_line(text), word = take_word(line);
      if (word.substr(0, 3) != "cpu") break;
      const auto cpu = parse_number(word.substr(3));
      const auto at = cpu && word.size() > 3 ? index.find(int(std::min<int64_t>(*cpu, 1 << 30))) : index.end();
      if (at == index.end()) continue;
      c.cpus[at->second] = parse_ticks(line);
      ++found;
    }
    c.counted = found > 0 && found == index.size();

    std::string_view sizes = statm.read();
    bytes += int64_t(sizes.size());
    take_word(sizes);
    c.resident = parse_number(take_word(sizes)).value_or(0) * page;

    std::string_view memory = meminfo.read();
    bytes += int64_t(memory.size());
    c.available = 0;
    while (!memory.empty()) {
      std::string_view line = take_line(memory);
      if (take_word(line) == "MemAvailable:") c.available = parse_number(take_word(line)).value_or(0) * 1024;
    }
  }

  Utilisation between(const Counters& a, const Counters& b) const {
    Utilisation u;
    u.seconds = std::chrono::duration<double>(b.when - a.when).count();
    u.process = u.seconds > 0 ? std::max(0.0, (b.process - a.process) / u.seconds) : 0;
    u.counted = a.counted && b.counted;
    CpuTicks all;
    size_t at = 0;
    double most = 0, least = 1;
    for (const CpuGroup& group : groups) {
      CpuTicks sum;
      for (size_t i = 0; i < group.cpus.size() && at < b.cpus.size(); ++i, ++at) {
        // The counters of a CPU that was offline meanwhile may go backwards.
        const int64_t total = std::max<int64_t>(0, b.cpus[at].total - a.cpus[at].total),
                      busy = std::clamp<int64_t>(b.cpus[at].busy - a.cpus[at].busy, 0, total);
        u.cpus.push_back(share(busy, total));
        sum.busy += busy, sum.total += total;
        sum.stolen += std::max<int64_t>(0, b.cpus[at].stolen - a.cpus[at].stolen);
      }
      u.groups.push_back(share(sum.busy, sum.total));
      u.names.push_back(group.name);
      most = std::max(most, u.groups.back()), least = std::min(least, u.groups.back());
      all.busy += sum.busy, all.stolen += sum.stolen, all.total += sum.total;
    }
    u.busy = u.counted ? share(all.busy, all.total) : std::min(1.0, u.process / double(std::max<size_t>(1, b.cpus.size())));
    u.stolen = share(all.stolen, all.total);
    constexpr double kIdle = 0.01;  // a ratio between idle groups is meaningless
    if (u.counted) u.balance = std::max(most, kIdle) / std::max(least, kIdle);
    u.resident = b.resident, u.available = b.available;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
#if defined(__APPLE__)
    u.peak_resident = usage.ru_maxrss;
#else
    u.peak_resident = int64_t(usage.ru_maxrss) * 1024;
#endif
    return u;
  }
};

UtilisationSampler::UtilisationSampler(std::vector<CpuGroup> groups, ReadGpus gpus, const std::filesystem::path& root) {
  // Every CPU comes before the last watched one.
  int last = 0;
  for (const CpuGroup& g : groups)
    for (int cpu : g.cpus) last = std::max(last, cpu);
  state_ = std::make_unique<State>(std::move(groups), std::move(gpus), root, 1024 + 128 * size_t(last + 1));
}

UtilisationSampler::~UtilisationSampler() = default;

Utilisation UtilisationSampler::sample() {
  State& s = *state_;
  Counters now = s.last;
  s.read(now);
  Utilisation u = s.between(s.last, now);
  s.last = std::move(now);
  ++s.samples;
  if (s.read_gpus) {
    u.gpus = s.read_gpus();
    s.gpu_sums.resize(std::max(s.gpu_sums.size(), u.gpus.size()));
    for (size_t i = 0; i < u.gpus.size(); ++i) {
      const double sum = s.gpu_sums[i].busy + std::max(0.0, u.gpus[i].busy);
      s.gpu_sums[i] = u.gpus[i];
      s.gpu_sums[i].busy = sum;
    }
  }
  return u;
}

Utilisation UtilisationSampler::overall() const {
  const State& s = *state_;
  Utilisation u = s.between(s.first, s.last);
  u.gpus = s.gpu_sums;
  for (GpuUse& g : u.gpus) g.busy /= double(std::max<int64_t>(1, s.samples));
  return u;
}

int64_t UtilisationSampler::bytes_read() const { return state_->bytes; }

struct UtilisationWatch::State {
  mutable std::mutex mutex;
  std::condition_variable wake;
  bool stop = false;
  mutable UtilisationSampler sampler;
  Utilisation latest;
  double period;
  std::thread thread;

  State(std::vector<CpuGroup> groups, ReadGpus gpus, double period_s) : sampler(std::move(groups), std::move(gpus)), period(period_s) {
    thread = std::thread([this] { run(); });
  }

  void run() {
    std::unique_lock lock(mutex);
    double pause = period;
    while (!wake.wait_for(lock, std::chrono::duration<double>(pause), [&] { return stop; })) {
      const double before = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
      latest = sampler.sample();
      pause = std::max(period, (cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - before) / kMaxCost);
    }
  }
};

UtilisationWatch::UtilisationWatch(std::vector<CpuGroup> groups, ReadGpus gpus, double period_s)
    : state_(std::make_unique<State>(std::move(groups), std::move(gpus), period_s)) {}

UtilisationWatch::~UtilisationWatch() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  state_->thread.join();
}

Utilisation UtilisationWatch::latest() const {
  std::lock_guard lock(state_->mutex);
  return state_->latest;
}

Utilisation UtilisationWatch::overall() const {
  std::lock_guard lock(state_->mutex);
  state_->sampler.sample();
  return state_->sampler.overall();
}

}  // namespace ridge
