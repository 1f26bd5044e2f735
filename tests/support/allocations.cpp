#include "support/allocations.h"

#include <atomic>
#include <cstddef>

namespace ridge::test {
namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> counted{0};

void note() {
  if (counting.load(std::memory_order_relaxed)) counted.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace
}  // namespace ridge::test

#ifdef RIDGE_SANITIZED
// The sanitizers replace malloc, but offer hooks for it.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, size_t), void (*)(const volatile void*));
static int installed = __sanitizer_install_malloc_and_free_hooks([](const volatile void*, size_t) { ridge::test::note(); }, [](const volatile void*) {});
#else
// Definitions in the executable take precedence over the C library's; operator new calls these too.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  ridge::test::note();
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  ridge::test::note();
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  ridge::test::note();
  return __libc_realloc(old, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  ridge::test::note();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  ridge::test::note();
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  ridge::test::note();
  *out = __libc_memalign(alignment, bytes);
  return *out ? 0 : 12;
}
}
#endif

namespace ridge::test {

void count_allocations() {
  counted = 0;
  counting = true;
}

int64_t allocations_counted() {
  counting = false;
  return counted;
}

}  // namespace ridge::test
