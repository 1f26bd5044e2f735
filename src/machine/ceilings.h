// What this machine can do at most, measured: multiply-add rate and memory bandwidth of a thread team. Of several ways to
// move memory (streaming or normal stores, one or more streams, prefetching), the best counts.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ridge {

class ThreadTeam;

struct Measured {
  double median = 0;
  double spread = 0;  // between the quartiles, as a fraction of the median
  int samples = 0;
  std::string variant;  // the way that won
};

Measured summarize(std::vector<double> samples);  // median and spread

// GFLOP/s of independent f32 multiply-adds in registers.
Measured measure_fma(ThreadTeam& team, double seconds = 0.2);

// copy a = b, triad a = b + s * c, read sum(a). Bytes are those that the program reads and writes.
enum class Movement { copy, triad, read };
std::string_view name(Movement movement);

// GB/s over arrays of so many bytes each; 0: four times the last-level cache.
Measured measure_bandwidth(ThreadTeam& team, Movement movement, double seconds = 0.5, int64_t bytes = 0);

// Short measurements to be run just before and after a kernel: speeds move, and the ratio to the ceiling of the same
// moment is what a kernel can be judged by.
class FmaWindow {
 public:
  explicit FmaWindow(ThreadTeam& team, double us = 300);  // calibrates itself
  ~FmaWindow();
  double gflops();  // of one window, now

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class BandwidthWindow {
 public:
  BandwidthWindow(ThreadTeam& team, Movement movement, double seconds = 0.3, int64_t bytes = 0);  // finds the best variant
  ~BandwidthWindow();
  double gbs();                      // of one pass, now
  const Measured& measured() const;  // while the best variant was sought

 private:
  struct State;
  std::unique_ptr<State> state_;
};

int64_t last_level_cache_bytes();  // 32 MiB when the system does not say

}  // namespace ridge
