// What this machine can do at most, measured: multiply-add rate and memory bandwidth of a thread team. Of several ways to
// move memory (streaming or normal stores, one or more streams, prefetching), the best counts.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ridge {

class ThreadTeam;

struct Measured {
  double median = 0;
  double spread = 0;  // between the quartiles, as a fraction of the median
  int samples = 0;
  double per_sample = 0;  // what one sample moved (bytes) or computed (flops)
  std::string variant;    // the way that won
};

Measured summarize(std::vector<double> samples);  // median and spread

// GFLOP/s of independent f32 multiply-adds in registers.
Measured measure_fma(ThreadTeam& team, double seconds = 0.2);

// GB/s over arrays of so many bytes each; 0: four times the last-level cache. Counts what the program reads and writes:
// copy a = b, triad a = b + s * c, read sum(a).
Measured measure_copy(ThreadTeam& team, double seconds = 0.5, int64_t bytes = 0);
Measured measure_triad(ThreadTeam& team, double seconds = 0.5, int64_t bytes = 0);
Measured measure_read(ThreadTeam& team, double seconds = 0.5, int64_t bytes = 0);

// A short burst of multiply-adds, to be run just before and after a matmul: clocks move, and the ratio to the rate of the
// same millisecond is what a kernel can be judged by.
class FmaWindow {
 public:
  explicit FmaWindow(ThreadTeam& team, double us = 300);  // calibrates itself
  ~FmaWindow();
  double gflops();  // of one window, now

 private:
  struct State;
  std::unique_ptr<State> state_;
};

int64_t last_level_cache_bytes();  // 32 MiB when the system does not say

}  // namespace ridge
