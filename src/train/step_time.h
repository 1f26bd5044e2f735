// How long a step is expected to take, from the kernels that it launches and rates of such kernels measured on this machine.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "machine/utilisation.h"
#include "step/step.h"

namespace ridge {

class Profile;
class ThreadTeam;

struct KernelRates {
  double fma_gflops = 0, copy_gbs = 0;                         // ceilings
  double matmul_gflops = 0, attention_gflops = 0;              // of kernels as a small step has them
  double large_matmul_gflops = 0, large_attention_gflops = 0;  // and a large one
  double cached_gbs = 0;                                       // of elementwise and row kernels whose data lie in a cache
  double launch_us = 0;                                        // from kernel to kernel
  double correction = 1;                                       // of small kernels, for what others do to their caches
  double others = 0;                                           // share of the cores that others kept busy meanwhile
  std::string source;                                          // where they come from
};

// Of kernels in that format. Takes about half a second and no more memory than said, some MiB apart.
KernelRates measure_kernel_rates(ThreadTeam& team, int64_t memory, Precision precision = Precision::fp32);
// Those of a machine that others kept busy are measured again as soon as it is quiet, and in any case after ten minutes.
bool believed(const KernelRates& rates, int64_t age_seconds, const std::function<double()>& others_now);
void keep_kernel_rates(ThreadTeam& team, int64_t memory, Precision precision, const KernelRates& rates);
// The same from the profile; empty: it holds none that are believed. And measured now and kept in that case.
std::optional<KernelRates> kept_kernel_rates(ThreadTeam& team, int64_t memory, Precision precision = Precision::fp32,
                                             const std::function<double()>& others_now = ridge::others_now);
KernelRates known_kernel_rates(ThreadTeam& team, int64_t memory, Precision precision = Precision::fp32);

// What is kept for this team, for people: "fp32 and bf16, 2 sets, …"; empty: nothing.
std::string kept_rates_text(const Profile& profile, int threads);

double expected_seconds(std::span<const KernelRun> kernels, const KernelRates& rates);

}  // namespace ridge
