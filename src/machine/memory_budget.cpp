#include "machine/memory_budget.h"

#include <algorithm>
#include <fstream>

#include <unistd.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "base/error.h"
#include "base/text.h"

namespace ridge {
namespace {

constexpr int64_t kMebibyte = int64_t(1) << 20, kGibibyte = int64_t(1) << 30;

// Reserved for the system and for unplanned allocations: a thirty-second, within bounds.
int64_t reserve_of(int64_t total) { return std::clamp(total / 32, 64 * kMebibyte, 2 * kGibibyte); }

}  // namespace

MemoryBudget memory_budget(const BudgetFacts& facts) {
  if (!(facts.fraction > 0 && facts.fraction <= 1)) fail(ErrorCode::usage, "[memory] memory_fraction={} is not above 0 and at most 1", facts.fraction);
  MemoryBudget budget;
  auto& lines = budget.lines;
  const int64_t whole = facts.limit > 0 && (facts.total == 0 || facts.limit < facts.total) ? facts.limit : facts.total;

  // What each rule allows; the lowest wins.
  if (facts.total > 0) lines.push_back({"installed", facts.total, facts.device == "cpu" ? "the machine's memory" : "the GPU's memory"});
  if (facts.limit > 0) lines.push_back({"limit", facts.limit, "control groups and ulimits"});
  if (whole > 0) lines.push_back({fmt::format("{:g} of {}", facts.fraction, size_text(whole)), int64_t(double(whole) * facts.fraction), "memory_fraction"});
  if (facts.available > 0) {
    std::string source = "available now within the limits";
    if (facts.held > 0) source += fmt::format(", including {} held by this process", size_text(facts.held));
    lines.push_back({"available", facts.available + facts.held, source});
  }
  if (lines.empty()) lines.push_back({"first guess", kGibibyte, "nothing is known about this machine's memory"});

  const auto least = std::min_element(lines.begin(), lines.end(), [](const BudgetLine& a, const BudgetLine& b) { return a.bytes < b.bytes; });
  const BudgetLine decided = *least;
  least->decides = true;
  const int64_t reserve = std::min(reserve_of(whole), decided.bytes / 2);
  lines.push_back({"reserve", -reserve, "for the system, libraries and other growth"});
  budget.bytes = decided.bytes - reserve;
  budget.reason = fmt::format("{}: {}, less a reserve of {}", decided.what, size_text(decided.bytes), size_text(reserve));

  if (facts.requested > 0) {
    lines.push_back({"memory", facts.requested, "asked for"});
    if (facts.requested > budget.bytes) {
      budget.notices.push_back(
          fmt::format("memory={} is more than the {} that can be used: {}", size_text(facts.requested), size_text(budget.bytes), budget.reason));
    } else {
      for (BudgetLine& line : lines) line.decides = false;
      lines.back().decides = true;
      budget.bytes = facts.requested;
      budget.reason = "asked for";
    }
  }
  return budget;
}

int64_t resident_bytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * int64_t(::sysconf(_SC_PAGESIZE));
}

int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return resident_bytes();
}

void release_heap_memory() {
#if defined(__GLIBC__)
  ::malloc_trim(0);
#endif
}

BudgetFacts budget_facts(const Limits& limits, int64_t held) {
  return {.total = limits.memory_total, .limit = limits.memory_limit, .available = limits.memory_available, .held = held};
}

BudgetFacts budget_facts(const Gpu& gpu) {
  return {.device = gpu.ordinal >= 0 ? fmt::format("cuda:{}", gpu.ordinal) : gpu.name, .total = gpu.memory_total, .available = gpu.memory_free};
}

}  // namespace ridge
