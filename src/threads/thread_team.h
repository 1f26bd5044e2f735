// The CPU's thread team: enters a program once, shares each task's units, and sleeps when idle.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "threads/task.h"

namespace ridge {

// What an idle thread does: spin for a while (starts quickly, but occupies a processor), or sleep immediately.
enum class Wait { automatic, active, passive };

struct TeamOptions {
  int threads = 0;                  // 0: one per entry of cpus, or else as many as the process may use (affinity mask, cgroup quota)
  Wait wait = Wait::automatic;      // active, unless there are more threads than processors
  double spin_us = 2000;            // how long an actively waiting thread spins before it parks
  std::vector<int> cpus = {};       // one per thread: pins all but the caller's thread; empty: none is pinned
  std::vector<double> speeds = {};  // relative, one per thread: its share of the work; empty: all equal
};

class ThreadTeam {
 public:
  explicit ThreadTeam(const TeamOptions& options = {});
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;

  int size() const;
  // How the work of runs from now on is handed out: to the first threads only, the others sleep; in grains of this many times the usual length. Neither can
  // change a result, as a unit's result depends on its index only.
  struct Sharing {
    int threads = 0;  // 0: all
    int coarseness = 1;
  };
  void use(const Sharing& sharing);
  Wait wait() const;                               // active or passive
  void reserve_scratch(int64_t bytes_per_thread);  // touched now, so that a run does not allocate
  int64_t scratch_bytes() const;                   // per thread

  // Time that the threads have spent inside tasks, summed over all threads. Waiting, spinning and handing out work do not count; being preempted does.
  double kernel_seconds() const;
  void kernel_seconds(std::span<double> by_thread) const;

  // Runs all tasks in order and returns when the last has finished. Denormals are flushed meanwhile. One caller at a time. An exception thrown by a task is
  // rethrown here, after all threads have stopped.
  void run(std::span<const cpu::Task> program, std::byte* const* bases, cpu::Fault& fault);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

int usable_cpus();  // affinity mask and cgroup quota, rounded up

}  // namespace ridge
