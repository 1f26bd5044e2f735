// Finds races: two threads of a launch that access the same byte with no barrier between them, where one writes a different value. It sees every access of
// texts compiled with instrumentation (SIMULATED_GPU_CHECK=1). A thread reading device memory that another thread of its block overwrites is reported only with
// SIMULATED_GPU_CHECK=2, because idle lanes may read values they never use.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace simulator::checker {

bool wanted();

void begin_launch(const void* shared, size_t shared_bytes, const void* fixed, size_t fixed_bytes);
void begin_block(uint64_t block);
void barrier();                  // all threads of the block, or of the cluster, have reached the barrier
void barrier_of(unsigned rank);  // all threads of one block of the cluster have
void meet(int warp);             // all threads of this warp have synchronized

// Describes a race of this access or the last write; empty: none. `thread` is the thread's index in the block or cluster, `rank` its block's in the cluster.
std::string touch(const void* at, int bytes, bool write, int thread, unsigned rank);
std::string last_write();

}  // namespace simulator::checker
