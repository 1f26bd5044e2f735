// Estimates the time of a step from its kernels and from rates of such kernels measured on this machine.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "machine/utilisation.h"
#include "step/train_step.h"

namespace ridge {

class MeasurementStore;
class ThreadTeam;

struct KernelRates {
  double fma_gflops = 0, copy_gbs = 0;                         // ceilings
  double matmul_gflops = 0, attention_gflops = 0;              // of kernels typical of a small step
  double large_matmul_gflops = 0, large_attention_gflops = 0;  // and of a large step
  double cached_gbs = 0;                                       // of elementwise and row kernels with data in cache
  double launch_us = 0;                                        // between kernels
  double correction = 1;                                       // for small kernels, whose cached data other kernels evict
  double others = 0;                                           // share of the cores used by other programs during the measurement
  std::string source;                                          // where the rates come from
};

// Measures kernels in that format. Takes about half a second and at most `memory` bytes plus a few MiB.
KernelRates measure_kernel_rates(ThreadTeam& team, int64_t memory, Precision precision = Precision::fp32);
// Whether stored rates are still trusted. Rates measured on a busy machine expire as soon as it is quiet, and in any case after ten minutes.
bool are_trusted(const KernelRates& rates, int64_t age_seconds, const std::function<double()>& others_now);
void keep_kernel_rates(ThreadTeam& team, int64_t memory, Precision precision, const KernelRates& rates);
// kept_: rates from the measurement store; empty if it has none that are trusted. known_: the same, but measures and stores them in that case.
std::optional<KernelRates> kept_kernel_rates(ThreadTeam& team, int64_t memory, Precision precision = Precision::fp32,
                                             const std::function<double()>& others_now = ridge::others_now);
KernelRates known_kernel_rates(ThreadTeam& team, int64_t memory, Precision precision = Precision::fp32);

// Human-readable summary of the rates stored for this team: "fp32 and bf16, 2 sets, …"; empty: none.
std::string kept_rates_text(const MeasurementStore& store, int threads);

double expected_seconds(std::span<const KernelRun> kernels, const KernelRates& rates);

}  // namespace ridge
