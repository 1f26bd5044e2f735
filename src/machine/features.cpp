#include "machine/features.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#if defined(__linux__) && defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "base/error.h"

namespace ridge {
namespace {

// The tiers that kernels exist for on this kind of CPU and that this CPU runs, lowest first.
std::vector<IsaTier> available_tiers() {
  std::vector<IsaTier> tiers = {IsaTier::scalar};
#if defined(__x86_64__)
  __builtin_cpu_init();
  // AES and CLMUL: Highway's SSE4 and AVX2 targets are compiled with them.
  bool sse4 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
  bool avx2 = sse4 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd");
  if (sse4) tiers.push_back(IsaTier::sse4);
  if (avx2) tiers.push_back(IsaTier::avx2);
  if (avx512) tiers.push_back(IsaTier::avx512);
#elif defined(__aarch64__)
  tiers.push_back(IsaTier::neon);
#if defined(__linux__)
  if (getauxval(AT_HWCAP) & HWCAP_SVE) tiers.push_back(IsaTier::sve);
#endif
#endif
  return tiers;
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
    case IsaTier::neon: return "neon";
    case IsaTier::sve: return "sve";
  }
  return "unknown";
}

IsaTier isa_tier() {
  static const IsaTier chosen = [] {
    std::vector<IsaTier> tiers = available_tiers();
    const char* wish = std::getenv("RIDGE_ISA");
    if (!wish || !*wish) return tiers.back();
    auto found = std::find_if(tiers.begin(), tiers.end(), [&](IsaTier t) { return name(t) == wish; });
    if (found == tiers.end()) fail(ErrorCode::usage, "[features] RIDGE_ISA={} is not a tier that this CPU runs; valid: {}", wish, list(tiers));
    return *found;
  }();
  return chosen;
}

bool cpu_has_avx512_bf16() {
#if defined(__x86_64__)
  static const bool has = (__builtin_cpu_init(), __builtin_cpu_supports("avx512bf16"));
  return has && isa_tier() == IsaTier::avx512;
#else
  return false;
#endif
}

}  // namespace ridge
