// The machine's measured limits: multiply-add rate, memory bandwidth and fork-join latency of a thread team. Of several ways to move memory (streaming or
// normal stores, one or more streams, tiles, prefetching), the fastest counts.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "machine/gpu_ceilings.h"
#include "ridge/dtype.h"

namespace ridge {

class BufferPool;
class ThreadTeam;

// GFLOP/s of independent multiply-adds in registers. The variant says whether the CPU has instructions for the type. No samples: unsupported.
Measured measure_fma(ThreadTeam& team, double seconds = 0.2, DType dtype = DType::f32);

// copy a = b, triad a = b + s * c, read sum(a). Counts the bytes that the program reads and writes.
enum class Movement { copy, triad, read };
std::string_view name(Movement movement);
int arrays_of(Movement movement);

// Bytes per array if all arrays together are as large as a working set, capped for working sets far beyond the caches.
int64_t array_bytes_of(Movement movement, int64_t working_set);

// GB/s over arrays of this many bytes each, shared by the team; 0: far beyond the last-level cache.
Measured measure_bandwidth(ThreadTeam& team, Movement movement, double seconds = 0.5, int64_t bytes = 0);

// GB/s when each thread repeatedly traverses its own arrays, with this many bytes per thread in total: the bandwidth of the cache that holds them.
Measured measure_cache(ThreadTeam& team, Movement movement, int64_t bytes_per_thread, double seconds = 0.05);

// µs from the start of a task until every thread has taken part and the leader continues.
Measured measure_fork_join(ThreadTeam& team, double seconds = 0.05);

// Short measurements to run just before and after a kernel: the machine's speed varies, so a kernel is judged by its ratio to the ceiling at the same moment.
class FmaWindow {
 public:
  explicit FmaWindow(ThreadTeam& team, double us = 300, DType dtype = DType::f32);  // calibrates itself
  ~FmaWindow();
  double gflops();  // of one window, now

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The best variant depends on where the system has placed the threads and pages: on a virtual machine this changes within seconds, and bandwidth by a factor of
// two with it. So a window tries the recently best variants and one other, and its best result counts.
class BandwidthWindow {
 public:
  BandwidthWindow(ThreadTeam& team, Movement movement, double seconds = 0.3, int64_t bytes = 0, BufferPool* pool = nullptr);  // ranks the variants
  ~BandwidthWindow();
  double gbs();                      // measured now
  void rank();                       // ranks all variants again, for when a kernel was faster than this
  const Measured& measured() const;  // from ranking the variants
  std::string variant() const;       // the best recently

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
