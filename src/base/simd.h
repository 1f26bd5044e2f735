// Which Highway targets a kernel file is compiled for. Include before hwy/foreach_target.h.
#pragma once

// The x86-64-v2 baseline has SSE4.2 without AES; no kernel uses AES, so SSE4 is the lowest target compiled.
#ifndef HWY_DISABLE_PCLMUL_AES
#define HWY_DISABLE_PCLMUL_AES
#endif
// RIDGE_TIERS: SSE4, AVX2 and AVX-512 are all compiled, and one is chosen at run time. Otherwise there is one target: NEON, or AVX2 in sanitizer builds, where
// all three would show the same errors.
#if defined(__x86_64__) && !defined(RIDGE_ONE_TIER)
#define RIDGE_TIERS 1
#elif defined(__x86_64__)
#define RIDGE_TIERS 0
#define RIDGE_ONLY_TARGET N_AVX2
#else
#define RIDGE_TIERS 0
#define RIDGE_ONLY_TARGET N_NEON
#endif
#ifndef HWY_DISABLED_TARGETS
#ifdef RIDGE_ONE_TIER
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
#endif
