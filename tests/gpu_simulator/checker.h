// Finds races: two threads of a launch that touch the same byte, one of them writing another value, with no barrier between them. It sees
// every access of texts that were compiled to tell of them (SIMULATED_GPU_CHECK=1). A thread that reads of the device's memory what
// another of its block overwrites is told of only with SIMULATED_GPU_CHECK=2: idle lanes may read what they then do not use.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace simulator::checker {

bool wanted();

void begin_launch(const void* shared, size_t shared_bytes, const void* fixed, size_t fixed_bytes);
void begin_block(uint64_t block);
void barrier();       // all threads of the block have met
void meet(int warp);  // all threads of this warp have met

// Words about a race, of this access or the last write; empty: none. `thread` is its number in the block.
std::string touch(const void* at, int bytes, bool write, int thread);
std::string last_write();

}  // namespace simulator::checker
