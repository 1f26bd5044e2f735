// Which CPUs a thread may run on, and binding it to one. On systems without affinity the mask is empty and binding fails.
#pragma once
#include <thread>
#include <vector>

namespace ridge {

std::vector<int> affinity_mask();  // of the calling thread; the kernel keeps it within the cpuset

bool pin_thread(std::thread::native_handle_type thread, int cpu);
bool pin_this_thread(int cpu);

}  // namespace ridge
