#include "machine/affinity.h"

#include <pthread.h>

#if defined(__linux__)
#include <sched.h>
#endif

namespace ridge {

bool pin_this_thread(int cpu) { return pin_thread(pthread_self(), cpu); }

#if defined(__linux__)

std::vector<int> affinity_mask() {
  for (int size = 1024; size <= 1 << 20; size *= 2) {
    cpu_set_t* set = CPU_ALLOC(size);
    if (!set) break;
    const size_t bytes = CPU_ALLOC_SIZE(size);
    std::vector<int> cpus;
    const bool ok = sched_getaffinity(0, bytes, set) == 0;  // fails while the set is smaller than the kernel's
    for (int c = 0; ok && c < size; ++c)
      if (CPU_ISSET_S(c, bytes, set)) cpus.push_back(c);
    CPU_FREE(set);
    if (ok) return cpus;
  }
  return {};
}

bool pin_thread(std::thread::native_handle_type thread, int cpu) {
  cpu_set_t* set = cpu >= 0 ? CPU_ALLOC(cpu + 1) : nullptr;
  if (!set) return false;
  const size_t bytes = CPU_ALLOC_SIZE(cpu + 1);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(cpu, bytes, set);
  const bool ok = pthread_setaffinity_np(thread, bytes, set) == 0;
  CPU_FREE(set);
  return ok;
}

#else

std::vector<int> affinity_mask() { return {}; }
bool pin_thread(std::thread::native_handle_type, int) { return false; }

#endif

}  // namespace ridge
