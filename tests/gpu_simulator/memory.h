// The simulated device's memory: allocations with borders that are watched, and memory of the host that the device reaches. Whoever calls holds the
// device's lock.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace simulator {

uint64_t allocate_memory(size_t bytes);        // 0: the system has no room
size_t size_of_memory(uint64_t pointer);       // of an allocation that begins here; 0: there is none
std::string release_memory(uint64_t pointer);  // words about a write beside it; empty: none
std::string check_memory();                    // the same of all allocations
void* allocate_pinned(size_t bytes);           // null: the system has no room
bool release_pinned(void* pointer);            // false: it is none
size_t pinned_bytes();
bool on_device(uint64_t pointer, size_t bytes);  // all these bytes are in one allocation of the device, or of pinned memory

}  // namespace simulator
