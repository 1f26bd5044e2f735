// Shares the numbers from `begin` to `end` among the threads of a team.
#pragma once
#include <cstdint>

#include "threads/thread_team.h"

namespace ridge {

// Calls act(from, to) for ranges that cover all numbers once, several at a time. `unit_ns`: about how long one number takes, which decides how many threads
// are worth waking.
template <class Act>
void each_range(ThreadTeam& team, int64_t begin, int64_t end, double unit_ns, const Act& act) {
  struct Args {
    const Act& act;
    int64_t begin;
  } args{act, begin};
  cpu::Task task;
  task.run = [](const void* a, int64_t from, int64_t to, cpu::Worker&) {
    const auto& args = *static_cast<const Args*>(a);
    args.act(args.begin + from, args.begin + to);
  };
  task.args = &args, task.units = end - begin, task.unit_ns = unit_ns;
  cpu::Fault fault;
  team.run({&task, 1}, nullptr, fault);
}

}  // namespace ridge
