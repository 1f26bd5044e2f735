// The CPU's thread team: it enters a program once, shares each task's units, and sleeps when there is nothing to do.
#pragma once
#include <memory>
#include <span>

#include "backend/cpu/task.h"

namespace ridge {

struct TeamOptions {
  int threads = 0;        // 0: as many as the process may use (affinity mask, cgroup quota)
  double spin_us = 2000;  // how long an idle thread spins before it parks
  bool pin = false;
};

class ThreadTeam {
 public:
  explicit ThreadTeam(const TeamOptions& options = {});
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;

  int size() const;
  void reserve_scratch(int64_t bytes_per_thread);  // touched now, so that a run allocates nothing
  int64_t scratch_bytes() const;                   // per thread

  // Runs all tasks in order and returns when the last has finished. Denormals are flushed meanwhile. One caller at a time.
  // An exception thrown by a task is rethrown here, after all threads have stopped.
  void run(std::span<const cpu::Task> program, std::byte* const* bases, cpu::Fault& fault);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

int usable_cpus();  // affinity mask and cgroup quota, rounded up

}  // namespace ridge
