// The parts of a CPU program: tasks whose units threads share, with operands addressed as (base, offset).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/place.h"

namespace ridge::cpu {

using Ref = Place;

// The first bad index that a kernel encountered in a run; the runtime turns it into an error afterwards.
struct Fault {
  std::atomic<bool> raised{false};
  int64_t value = 0, limit = 0, position = -1;  // written by the thread that raised it; position is set only for a bad class
  void raise(int64_t bad, int64_t size, int64_t at = -1) {
    if (!raised.exchange(true)) value = bad, limit = size, position = at;
  }
};

// What a thread sees while it runs a task's units.
struct Worker {
  int id = 0;                         // 0 is the leader
  std::byte* const* bases = nullptr;  // base table of this run
  std::byte* scratch = nullptr;       // this thread's own, 64-byte aligned, at least Kernel::scratch_bytes
  Fault* fault = nullptr;
  template <class T>
  T* at(Ref r) const {
    return reinterpret_cast<T*>(bases[r.base] + r.offset);
  }
};

// Units [begin, end) of `units` may run on any thread in any order; a unit's result and its summation order depend only on the unit's index. A task starts
// after the previous one has finished.
struct Task {
  void (*run)(const void* args, int64_t begin, int64_t end, Worker& worker) = nullptr;
  const void* args = nullptr;  // owned by the kernel, constant after bind
  int64_t units = 0;
  double unit_ns = 0;  // rough cost of one unit on one core; small tasks stay on the leader
};

// A compiled kernel: sizes are known first, addresses only after memory planning.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual int64_t workspace_bytes() const { return 0; }  // shared by all threads, live only during the kernel
  virtual int64_t scratch_bytes() const { return 0; }    // per thread
  // Operands in the order of the kernel's description: inputs, then outputs. Appends one or more tasks.
  virtual void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) = 0;
  // How many of the first tasks need not run again while the operands marked in `fixed` and the workspace keep their values.
  virtual int64_t tasks_once(std::span<const char> /*fixed*/) const { return 0; }
};

}  // namespace ridge::cpu
