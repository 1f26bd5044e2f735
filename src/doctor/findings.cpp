// Problems of a machine, each with its number and its fix.
#include <algorithm>
#include <cstdlib>

#include <fmt/core.h>

#include "base/text.h"
#include "doctor/report.h"
#include "machine/utilisation.h"

namespace ridge {
namespace {

using Level = Finding::Level;
constexpr int64_t kMiB = int64_t(1) << 20, kGiB = int64_t(1) << 30;

class Examination {
 public:
  explicit Examination(const DoctorReport& report) : report_(report), facts_(report.facts), limits_(report.facts.machine.limits) {}

  std::vector<Finding> run() {
    cpus();
    clocks();
    load();
    memory();
    gpus();
    choices();
    for (const std::string& remark : facts_.machine.topology.remarks) note(remark);
    for (const std::string& remark : facts_.remarks) note(remark);
    std::stable_sort(findings_.begin(), findings_.end(), [](const Finding& a, const Finding& b) { return a.level < b.level; });
    return std::move(findings_);
  }

 private:
  void add(Level level, std::string what, std::string number, std::string remedy) {
    findings_.push_back({level, std::move(what), std::move(number), std::move(remedy)});
  }
  void warn(std::string what, std::string number, std::string remedy) { add(Level::warning, std::move(what), std::move(number), std::move(remedy)); }
  void note(std::string what, std::string number = {}, std::string remedy = {}) { add(Level::note, std::move(what), std::move(number), std::move(remedy)); }

  void cpus() {
    const int online = int(limits_.online.size()), allowed = int(limits_.cpus.size());
    if (limits_.cpu_quota > 0 && limits_.cpu_quota < allowed)
      warn("a quota limits the process to fewer CPUs than it sees", fmt::format("{:g} of {} CPUs", limits_.cpu_quota, allowed),
           "raise the container's CPU limit (docker --cpus, Kubernetes limits.cpu), or give it whole CPUs by a cpuset");
    if (online > allowed)
      warn("an affinity mask or cpuset excludes CPUs", fmt::format("{} of {} CPUs", allowed, online),
           "start it without taskset or numactl, or widen the container's --cpuset-cpus");
    if (!limits_.offline.empty())
      note("CPUs are switched off", fmt::format("CPUs {}", format_cpu_list(limits_.offline)),
           fmt::format("echo 1 | sudo tee /sys/devices/system/cpu/cpu{}/online", limits_.offline.front()));
    if (facts_.health.throttled > 0.05)
      warn("the quota stops this control group often", fmt::format("in {:.0f} % of the periods", 100 * facts_.health.throttled),
           "use no more threads than the quota has CPUs, or raise it");
  }

  void clocks() {
    const Health& h = facts_.health;
    // With these drivers powersave is the default governor, and the energy preference decides.
    const bool by_preference = h.clock_driver == "intel_pstate" || h.clock_driver == "amd-pstate-epp";
    if (h.governor == "powersave" && !by_preference)
      warn("the clock governor keeps CPUs slow", "powersave", "sudo cpupower frequency-set -g performance (or schedutil)");
    else if (by_preference && (h.energy_preference == "power" || h.energy_preference == "balance_power"))
      warn("the CPU is set to save energy", h.energy_preference, "powerprofilesctl set performance, or write performance to energy_performance_preference");
    if (h.clock_cap < 0.95)
      warn("the CPU's highest clock is capped", fmt::format("{:.0f} % of the chip's maximum", 100 * h.clock_cap),
           "sudo cpupower frequency-set -u with the chip's clock; on a laptop, choose the performance profile");
    if (h.on_battery) warn("the machine runs on its battery", "discharging", "plug it in: most laptops halve their clocks on battery");
  }

  void load() {
    const Health& h = facts_.health;
    const int cpus = std::max<int>(1, int(limits_.online.size()));
    if (h.load > 1.2 * cpus)
      warn("the machine is overloaded by other programs", fmt::format("load {:.1f} on {} CPUs", h.load, cpus),
           "stop them (top shows which), or expect to share");
    else if (h.load > 0.5 * cpus)
      note("other programs are running", fmt::format("load {:.1f} on {} CPUs", h.load, cpus), "figures measured now may be low");
    if (h.stolen > 0.05)
      warn("the hypervisor gives CPU time of this machine to others", fmt::format("{:.0f} % stolen since the start", 100 * h.stolen),
           "choose an instance with dedicated CPUs");
  }

  void memory() {
    const Health& h = facts_.health;
    const int64_t total = limits_.memory_total;
    if (limits_.memory_limit > 0 && limits_.memory_limit < 2 * kGiB)
      warn("the memory limit is small", size_text(limits_.memory_limit),
           "raise the container's memory limit (docker --memory, Kubernetes limits.memory) or ulimit -v");
    else if (limits_.memory_limit > 0 && total > 0 && limits_.memory_limit < total / 2)
      note("a limit excludes most of the memory", fmt::format("{} of {}", size_text(limits_.memory_limit), size_text(total)), "raise it if models do not fit");
    const int64_t whole = limits_.memory_limit > 0 ? limits_.memory_limit : total;
    if (whole > 0 && limits_.memory_available > 0 && limits_.memory_available < whole / 5)
      warn("most of the memory is in use", fmt::format("{} of {} left", size_text(limits_.memory_available), size_text(whole)),
           "close programs that use it, or use a smaller batch");
    const int64_t swapped = limits_.swap_total - limits_.swap_free;
    if (h.memory_pressure && *h.memory_pressure > 0.05)
      warn("programs are waiting for memory", fmt::format("{:.0f} % of the last 10 s", 100 * *h.memory_pressure),
           "lower memory_fraction, or close programs that use memory");
    else if (swapped > kGiB && swapped > limits_.swap_total / 4)
      note("a lot of memory has been swapped out", fmt::format("{} of {}", size_text(swapped), size_text(limits_.swap_total)),
           "swapping it in may slow other programs, not Ridge, whose memory is touched before the first step");
    if (h.huge_pages == "never")
      warn("huge pages are off: large matrices miss in the TLB", "never", "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled");
    if (limits_.open_files && *limits_.open_files < 256)
      warn("few files may be open at once", fmt::format("ulimit -n {}", *limits_.open_files), "ulimit -n 4096");
    if (report_.budget.bytes < 64 * kMiB)
      add(Level::error, "there is not enough memory to run anything", size_text(report_.budget.bytes),
          "free some, or raise the limit: " + report_.budget.reason);
  }

  void gpus() {
    const GpuScan& scan = facts_.gpus;
    if (scan.broken) warn("CUDA cannot be used", scan.driver.empty() ? "no driver answered" : "driver " + scan.driver, scan.no_cuda);
    for (const std::string& remark : scan.remarks)
      if (!remark.starts_with("CUDA: ")) note(remark);
    for (const KnownDevice& known : report_.devices)
      if (!known.missing.empty() && !known.name.empty()) note(fmt::format("{} is not used", known.name), to_string(known.device), known.missing);
    if (facts_.backends.cuda_missing.empty() && !facts_.backends.no_cudnn.empty())
      note("some convolutions are slower without cuDNN", {}, facts_.backends.no_cudnn);
    for (const Gpu& gpu : scan.gpus) {
      if (gpu.ordinal < 0 && gpu.vendor != Gpu::Vendor::nvidia) note(fmt::format("{} is not used", gpu.name), {}, "not available in this build of Ridge");
      if (gpu.ordinal < 0) continue;
      if (gpu.memory_free > 0 && gpu.memory_free < gpu.memory_total / 2)
        warn(fmt::format("other programs use the memory of cuda:{}", gpu.ordinal),
             fmt::format("{} of {} free", size_text(gpu.memory_free), size_text(gpu.memory_total)), "nvidia-smi shows which; stop them, or choose another GPU");
      if (gpu.celsius >= 85) warn(fmt::format("cuda:{} is hot and will slow down", gpu.ordinal), fmt::format("{} °C", gpu.celsius), "check fans and air flow");
    }
  }

  std::string instead(const std::string& name) const {
    return facts_.fallback == Fallback::forbid ? std::string("fallbacks are forbidden") : name + " is used instead";
  }

  void choices() {
    const bool forbidden = facts_.fallback == Fallback::forbid;
    if (report_.device.fell_back)
      add(forbidden ? Level::error : Level::warning,
          fmt::format("{} was asked for but is not available: {}", facts_.device, instead(to_string(report_.device.device))), facts_.device_source,
          report_.device.notices.front());
    if (report_.precision.fell_back)
      add(forbidden ? Level::error : Level::warning, fmt::format("{} was asked for but is not available: {}", facts_.precision, instead("fp32")),
          facts_.precision_source, report_.precision.notices.front());
    else if (!report_.precision.notices.empty())
      warn(report_.precision.notices.front(), fmt::format("precision {}: {}", facts_.precision, facts_.precision_source),
           "precision=auto chooses the fastest that is safe");
    if (!facts_.configuration.empty())
      add(Level::error, "the configuration cannot be used, and is ignored here", facts_.configuration, "ridge config check FILE names every mistake");
    for (const std::string& notice : report_.budget.notices) warn(notice, facts_.memory_source, "lower memory, or leave it to auto");
    if (!facts_.ceilings) note("nothing has been measured on this machine yet", {}, "ridge probe --quick takes 5 s, and its results are kept");
    if (facts_.ceilings && facts_.ceilings->others > kQuiet)
      note("the ceilings were measured on a busy machine and may be too low", fmt::format("others used {:.0f} %", 100 * facts_.ceilings->others),
           "ridge probe, when it is quiet");
  }

  const DoctorReport& report_;
  const DoctorFacts& facts_;
  const Limits& limits_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> findings_of(const DoctorReport& report) { return Examination(report).run(); }

}  // namespace ridge
