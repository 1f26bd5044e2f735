// The simulated device's memory: allocations with guarded borders, and host memory that the device can access. Callers hold the device's lock.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace simulator {

uint64_t allocate_memory(size_t bytes);        // 0: out of memory
size_t size_of_memory(uint64_t pointer);       // of the allocation that begins here; 0: there is none
std::string release_memory(uint64_t pointer);  // describes a write out of bounds; empty: none
std::string check_memory();                    // the same for all allocations
void* allocate_pinned(size_t bytes);           // null: out of memory
bool release_pinned(void* pointer);            // false: not a pinned allocation
size_t pinned_bytes();
bool on_device(uint64_t pointer, size_t bytes);  // whether one device or pinned allocation contains all these bytes

}  // namespace simulator
