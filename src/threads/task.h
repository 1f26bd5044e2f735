// What a CPU program is made of: tasks that threads share by units, with operands addressed as (base, offset).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/place.h"

namespace ridge::cpu {

using Ref = Place;

// The first bad index that a kernel met in a run; the runtime turns it into an error afterwards.
struct Fault {
  std::atomic<bool> raised{false};
  int64_t value = 0, limit = 0, position = -1;  // written by the thread that raised it; the position only of a bad class
  void raise(int64_t bad, int64_t size, int64_t at = -1) {
    if (!raised.exchange(true)) value = bad, limit = size, position = at;
  }
};

// A thread's view while it runs units of a task.
struct Worker {
  int id = 0;                         // 0 is the leader
  std::byte* const* bases = nullptr;  // base table of this run
  std::byte* scratch = nullptr;       // this thread's own, 64-byte aligned, Kernel::scratch_bytes at least
  Fault* fault = nullptr;
  template <class T>
  T* at(Ref r) const {
    return reinterpret_cast<T*>(bases[r.base] + r.offset);
  }
};

// Units [begin, end) of `units` may run on any thread in any order; what a unit computes and in which order it sums
// depends on the unit's index alone. A task starts when the one before it has finished.
struct Task {
  void (*run)(const void* args, int64_t begin, int64_t end, Worker& worker) = nullptr;
  const void* args = nullptr;  // owned by the kernel, constant after bind
  int64_t units = 0;
  double unit_ns = 0;  // rough cost of one unit on one core; small tasks stay on the leader
};

// A compiled kernel: sizes are known first, addresses after the memory plan.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual int64_t workspace_bytes() const { return 0; }  // shared by all threads, live only during the kernel
  virtual int64_t scratch_bytes() const { return 0; }    // per thread
  // Operands in the order of the kernel's description: inputs, then outputs. Appends one task or several.
  virtual void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) = 0;
};

}  // namespace ridge::cpu
