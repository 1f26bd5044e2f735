#include "machine/features.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"

namespace ridge {
namespace {

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
  if (avx512 && __builtin_cpu_supports("avx512bf16")) tiers.push_back(IsaTier::avx512bf16);
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
