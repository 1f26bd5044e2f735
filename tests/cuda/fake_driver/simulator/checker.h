// Finds races: two threads of a launch that touch the same byte, one of them writing, with no barrier between them. It sees every access
// of texts that were compiled to tell of them (SIMULATED_GPU_CHECK=1).
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

// Words about a race; empty: none. `thread` is its number in the block.
std::string touch(const void* at, int bytes, bool write, int thread);

}  // namespace simulator::checker
