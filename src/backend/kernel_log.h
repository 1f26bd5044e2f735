// Where the time of programs goes, for whoever wants to know: backends report each kernel of each run while a log is set. Without one, a run costs a single
// branch more: no clock is read and nothing is allocated.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/place.h"

namespace ridge {

struct Program;

inline std::atomic<int64_t> log_time_reads{0};  // so far, by all threads

// Seconds of the steady clock.
inline double log_time() {
  log_time_reads.fetch_add(1, std::memory_order_relaxed);
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct LoggedRun {
  struct Span {
    double begin = 0, end = 0;
  };
  const Program* program = nullptr;  // valid during the call
  Span whole;
  std::vector<Span> kernels;  // in the program's order
  int threads = 0;            // 0: a GPU's stream
  std::vector<double> busy;   // threads × kernels: seconds that each thread spent inside the kernel
  int64_t launches = 0;
};

class KernelLog {
 public:
  virtual ~KernelLog() = default;
  virtual void add(const LoggedRun& run) = 0;  // from any thread
  // Whether look() is to be called after each kernel. `read` returns so many bytes of a place of the program, in host memory until its next call.
  using Read = std::function<const std::byte*(const Place& place, int64_t bytes)>;
  virtual bool looks() const { return false; }
  virtual void look(const Program& program, size_t kernel, const Read& read) { (void)program, (void)kernel, (void)read; }
};

inline std::atomic<KernelLog*> kernel_log{nullptr};  // null: off; must outlive the runs that it sees
inline KernelLog* current_log() { return kernel_log.load(std::memory_order_relaxed); }

}  // namespace ridge
