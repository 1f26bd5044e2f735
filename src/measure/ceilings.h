// What this machine can do at most, measured: multiply-add rate, memory bandwidth and fork-join latency of a thread team. Of several
// ways to move memory (streaming or normal stores, one or more streams, tiles, prefetching), the best counts.
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

// GFLOP/s of independent multiply-adds in registers. The variant says whether the CPU has instructions for the type. No samples: it cannot.
Measured measure_fma(ThreadTeam& team, double seconds = 0.2, DType dtype = DType::f32);

// copy a = b, triad a = b + s * c, read sum(a). Bytes are those that the program reads and writes.
enum class Movement { copy, triad, read };
std::string_view name(Movement movement);
int arrays_of(Movement movement);

// Bytes of each array when all together take as much as a working set: those of a working set far beyond the caches are no larger than needed.
int64_t array_bytes_of(Movement movement, int64_t working_set);

// GB/s over arrays of so many bytes each, shared by the team; 0: far beyond the last-level cache.
Measured measure_bandwidth(ThreadTeam& team, Movement movement, double seconds = 0.5, int64_t bytes = 0);

// GB/s when each thread goes over arrays of its own again and again, all together so many bytes for each thread: the bandwidth of
// whichever cache holds them.
Measured measure_cache(ThreadTeam& team, Movement movement, int64_t bytes_per_thread, double seconds = 0.05);

// µs from the start of a task until every thread has taken part in it and the leader goes on.
Measured measure_fork_join(ThreadTeam& team, double seconds = 0.05);

// Short measurements to be run just before and after a kernel: speeds move, and the ratio to the ceiling of the same
// moment is what a kernel can be judged by.
class FmaWindow {
 public:
  explicit FmaWindow(ThreadTeam& team, double us = 300, DType dtype = DType::f32);  // calibrates itself
  ~FmaWindow();
  double gflops();  // of one window, now

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Which variant is best depends on where the system has put the threads and the pages just then: on a virtual machine this changes
// within seconds, and bandwidth by a factor of two with it. So a window tries the best variants of late and one other, and its best counts.
class BandwidthWindow {
 public:
  BandwidthWindow(ThreadTeam& team, Movement movement, double seconds = 0.3, int64_t bytes = 0, BufferPool* pool = nullptr);  // ranks the variants
  ~BandwidthWindow();
  double gbs();                      // now
  void rank();                       // all variants anew, for when a kernel was faster than this
  const Measured& measured() const;  // while the variants were ranked
  std::string variant() const;       // the best of late

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
