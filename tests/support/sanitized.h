// Whether this process runs under a sanitizer, which holds memory of its own and takes many times as long. Asked at run time, as tests may be compiled
// without what the engine is instrumented with.
#pragma once

extern "C" {
void __asan_init() __attribute__((weak));
void __tsan_init() __attribute__((weak));
}

namespace ridge::test {

inline bool sanitized() { return __asan_init || __tsan_init; }

}  // namespace ridge::test
