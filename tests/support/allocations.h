// Counts heap allocations of the whole process between start and stop: on every thread, from C and C++.
#pragma once
#include <cstdint>

namespace ridge::test {

void count_allocations();
int64_t allocations_counted();  // since count_allocations(); stops counting

}  // namespace ridge::test
