// Which Highway targets a kernel file is compiled for. Include before hwy/foreach_target.h.
#pragma once

// The x86-64-v2 baseline has SSE4.2 without AES; no kernel uses AES, so SSE4 is the lowest target compiled.
#ifndef HWY_DISABLE_PCLMUL_AES
#define HWY_DISABLE_PCLMUL_AES
#endif
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
