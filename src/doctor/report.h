// The report of ridge doctor: the machine, its limits and devices, what Ridge would use and why, and problems with their fixes. A pure function of facts, so
// that tests can examine machines that we do not have.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "base/decision.h"
#include "machine/gpus.h"
#include "machine/health.h"
#include "machine/machine.h"
#include "machine/memory_budget.h"
#include "machine/precision.h"
#include "measure/probe.h"

namespace ridge {

struct Finding {
  enum class Level { error, warning, note } level = Level::note;  // error: Ridge cannot run
  std::string what;                                               // "the clock governor saves power"
  std::string number;                                             // "powersave", "1.5 of 64 CPUs"
  std::string remedy;                                             // what to do; may be empty for a note
};
std::string_view name(Finding::Level level);

struct DoctorFacts {
  Machine machine;
  GpuScan gpus;
  Health health;
  std::string version, isa;                 // of Ridge; "avx512"
  std::optional<MachineCeilings> ceilings;  // empty: nothing was measured
  std::string measured;                     // when and by what: "just now", "2 hours ago"
  std::string kernels;                      // the kernel rates that plans and trainings have measured; empty: none yet
  RateLookup rates;                         // of Ridge's matmul, by precision
  Decision threads;
  std::string device = "auto", precision = "auto";  // as requested
  std::string device_source = "default", precision_source = "default", memory_source = "default";
  int64_t memory = 0;  // requested; 0: auto
  double memory_fraction = kDefaultMemoryFraction;
  int64_t held = 0;  // memory of this process
  Fallback fallback = Fallback::allow;
  Backends backends = usable_backends({});
  std::string configuration;         // problems with it; empty: none
  std::vector<std::string> remarks;  // of the measurement store and other checks, one per line
};

struct DoctorReport {
  DoctorFacts facts;
  std::vector<KnownDevice> devices;
  DeviceChoice device;
  PrecisionChoice precision;
  std::vector<PrecisionFacts> precisions;  // on the chosen device
  MemoryBudget budget;                     // of the chosen device
  std::vector<Decision> decisions;         // device, threads, precision, memory
  std::vector<Finding> findings;           // most serious first
  double seconds = 0;                      // time taken

  bool can_run() const;  // no finding is an error
};

DoctorReport examine(DoctorFacts facts);
std::vector<Finding> findings_of(const DoctorReport& report);  // called by examine()

struct ReportStyle {
  int width = 100;
  bool colours = false;
};
std::string to_text(const DoctorReport& report, const ReportStyle& style = {});
std::string to_json(const DoctorReport& report);  // a single document
std::string to_svg(const DoctorReport& report);

// Text that both the terminal report and the picture use.
std::vector<Finding> problems_of(const DoctorReport& report);            // findings other than notes
std::string verdict(const DoctorReport& report);                         // "No problems", "2 problems", "Ridge cannot run here: 1 problem"
std::string finding_text(const Finding& finding);                        // with its number
std::string measured_text(const DoctorFacts& facts);                     // "2 hours ago, others used 40 %"
std::string core_summary(const Topology& topology);                      // "6 performance + 8 efficiency cores, 20 threads"
std::string cache_summary(const CoreKind& kind);                         // "L1 32 KiB, L2 1 MiB, L3 32 MiB for 8 cores"
std::string gpu_summary(const Gpu& gpu);                                 // "compute 9.0, 132 processors, 139 of 140 GiB free"
std::string measured_summary(const DoctorFacts& facts, const Gpu& gpu);  // "bf16 780 TFLOP/s, copy 4240 GB/s"; empty: never measured

}  // namespace ridge
