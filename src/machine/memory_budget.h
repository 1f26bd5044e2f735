// How much memory Ridge may plan with on a device: the lowest applicable limit minus a reserve, explained line by line.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "machine/gpus.h"
#include "machine/limits.h"

namespace ridge {

constexpr double kDefaultMemoryFraction = 0.9;

// Sizes in bytes; 0: unknown, or no such limit.
struct BudgetFacts {
  std::string device = "cpu";
  int64_t total = 0;      // of the machine or the GPU
  int64_t limit = 0;      // of control groups and ulimits, below the total
  int64_t available = 0;  // currently available within the limit
  int64_t held = 0;       // already held by this process: part of the budget
  int64_t requested = 0;  // memory=2GiB
  double fraction = kDefaultMemoryFraction;
};

struct BudgetLine {
  std::string what;      // "available now"
  int64_t bytes = 0;     // negative: subtracted
  std::string source;    // "MemAvailable within the limits"
  bool decides = false;  // the lowest of all
};

struct MemoryBudget {
  int64_t bytes = 0;
  std::vector<BudgetLine> lines;
  std::string reason;                // one line: what decided
  std::vector<std::string> notices;  // a request that cannot be met
};

// memory_fraction outside (0, 1] is ErrorCode::usage; a machine about which nothing is known gets 1 GiB, with a notice.
MemoryBudget memory_budget(const BudgetFacts& facts);

BudgetFacts budget_facts(const Limits& limits, int64_t held);  // held: resident_bytes() for the calling process
BudgetFacts budget_facts(const Gpu& gpu);

int64_t resident_bytes();       // of this process; 0: unknown
int64_t peak_resident_bytes();  // the most so far
void release_heap_memory();     // returns the heap's free memory to the system, if possible

}  // namespace ridge
