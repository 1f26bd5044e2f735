// Whether this process runs under a sanitizer, which needs extra memory and takes many times as long. Checked at run time, because tests may be compiled
// without the engine's instrumentation.
#pragma once

extern "C" {
void __asan_init() __attribute__((weak));
void __tsan_init() __attribute__((weak));
}

namespace ridge::test {

inline bool sanitized() { return __asan_init || __tsan_init; }

}  // namespace ridge::test
