#include "machine/features.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"

namespace ridge {
namespace {

#if defined(__x86_64__) && defined(__linux__) && !defined(RIDGE_ONE_TIER)
// Whether the CPU has matrix units for bf16 and the kernel lets this process use them, which every process must ask for.
bool may_use_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  if (!(d & kBf16) || !(d & kTile)) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, the component of the registers' state
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#elif defined(__x86_64__)
bool may_use_amx() { return false; }
#endif

// The tiers that kernels are compiled for and that this CPU supports, lowest first.
std::vector<IsaTier> available_tiers() {
#if defined(RIDGE_ONE_TIER)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) fail(ErrorCode::unsupported, "[features] this build runs on CPUs with AVX2 only");
  return {IsaTier::avx2};
#elif defined(__x86_64__)
  __builtin_cpu_init();
  std::vector<IsaTier> tiers = {IsaTier::sse4};  // x86-64-v2, the baseline of the whole build
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
              __builtin_cpu_supports("f16c");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512bw");
  if (avx2) tiers.push_back(IsaTier::avx2);
  if (avx512) tiers.push_back(IsaTier::avx512);
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  if (bf16) tiers.push_back(IsaTier::avx512bf16);
  if (bf16 && may_use_amx()) tiers.push_back(IsaTier::amx);
  return tiers;
#elif defined(__aarch64__)
  return {IsaTier::neon};  // kernels are not compiled for SVE
#else
  return {IsaTier::scalar};
#endif
}

std::string list(const std::vector<IsaTier>& tiers) {
  std::string text;
  for (IsaTier tier : tiers) text += (text.empty() ? "" : ", ") + std::string(name(tier));
  return text;
}

}  // namespace

std::string_view name(IsaTier tier) {
  switch (tier) {
    case IsaTier::scalar: return "scalar";
    case IsaTier::sse4: return "sse4";
    case IsaTier::avx2: return "avx2";
    case IsaTier::avx512: return "avx512";
    case IsaTier::avx512bf16: return "avx512bf16";
    case IsaTier::amx: return "amx";
    case IsaTier::neon: return "neon";
    case IsaTier::sve: return "sve";
  }
  return "unknown";
}

IsaTier isa_tier() {
  static const IsaTier chosen = [] {
    std::vector<IsaTier> tiers = available_tiers();
    const char* requested = std::getenv("RIDGE_ISA");
    if (!requested || !*requested) return tiers.back();
    auto found = std::find_if(tiers.begin(), tiers.end(), [&](IsaTier t) { return name(t) == requested; });
    if (found == tiers.end()) fail(ErrorCode::usage, "[features] RIDGE_ISA={} is not a tier that this CPU runs; valid: {}", requested, list(tiers));
    return *found;
  }();
  return chosen;
}

}  // namespace ridge
