#include "machine/memory_budget.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "machine/sizes.h"

namespace ridge {
namespace {

const BudgetLine& deciding(const MemoryBudget& budget) {
  const BudgetLine* found = nullptr;
  for (const BudgetLine& line : budget.lines)
    if (line.decides) {
      EXPECT_EQ(found, nullptr) << "two lines decide";
      found = &line;
    }
  EXPECT_NE(found, nullptr);
  static const BudgetLine none;
  return found ? *found : none;
}

TEST(MemoryBudget, TheSmallestLimitDecides) {
  struct Row {
    BudgetFacts facts;
    const char* what;
    int64_t bytes;
  };
  for (const Row& row : {Row{{.total = 64 * kGiB, .available = 60 * kGiB}, "0.9 of 64 GiB", int64_t(0.9 * 64 * kGiB) - 2 * kGiB},
                         Row{{.total = 64 * kGiB, .available = 10 * kGiB}, "available", 8 * kGiB},
                         Row{{.total = 64 * kGiB, .limit = 4 * kGiB, .available = 4 * kGiB}, "0.9 of 4 GiB", int64_t(0.9 * 4 * kGiB) - 128 * kMiB},
                         Row{{.total = 64 * kGiB, .limit = 4 * kGiB, .available = 4 * kGiB, .fraction = 1}, "limit", 4 * kGiB - 128 * kMiB},
                         Row{{.total = 16 * kGiB, .available = 8 * kGiB, .held = kGiB}, "available", 9 * kGiB - 512 * kMiB},
                         Row{{.total = 16 * kGiB}, "0.9 of 16 GiB", int64_t(0.9 * 16 * kGiB) - 512 * kMiB},
                         Row{{.limit = 2 * kGiB}, "0.9 of 2 GiB", int64_t(0.9 * 2 * kGiB) - 64 * kMiB}, Row{{}, "first guess", kGiB - 64 * kMiB}}) {
    const MemoryBudget budget = memory_budget(row.facts);
    EXPECT_EQ(deciding(budget).what, row.what);
    EXPECT_EQ(budget.bytes, row.bytes) << row.what;
    EXPECT_TRUE(budget.notices.empty());
  }
}

TEST(MemoryBudget, LinesAddUp) {
  for (int64_t total : {int64_t(0), 100 * kMiB, kGiB, 7 * kGiB + 13, 1000 * kGiB})
    for (int64_t limit : {int64_t(0), 50 * kMiB, 3 * kGiB})
      for (int64_t available : {int64_t(0), int64_t(1), 30 * kMiB, 2 * kGiB})
        for (double fraction : {0.01, 0.5, 1.0}) {
          const MemoryBudget budget = memory_budget({.total = total, .limit = limit, .available = available, .fraction = fraction});
          int64_t least = INT64_MAX, reserve = 0;
          for (const BudgetLine& line : budget.lines) {
            if (line.bytes > 0) least = std::min(least, line.bytes);
            if (line.what == "reserve") reserve = line.bytes;
            EXPECT_FALSE(line.source.empty());
          }
          EXPECT_EQ(deciding(budget).bytes, least);
          EXPECT_EQ(budget.bytes, least + reserve);
          EXPECT_GT(budget.bytes, 0);
        }
}

TEST(MemoryBudget, RequestsAreCappedByTheLimits) {
  const BudgetFacts facts{.total = 16 * kGiB, .available = 12 * kGiB};
  BudgetFacts small = facts, large = facts;
  small.requested = 2 * kGiB, large.requested = 14 * kGiB;
  EXPECT_EQ(memory_budget(small).bytes, 2 * kGiB);
  EXPECT_EQ(deciding(memory_budget(small)).what, "memory");
  EXPECT_EQ(memory_budget(large).bytes, memory_budget(facts).bytes);
  ASSERT_EQ(memory_budget(large).notices.size(), 1u);
  EXPECT_NE(memory_budget(large).notices[0].find("14 GiB"), std::string::npos);
}

TEST(MemoryBudget, RejectsInvalidFractions) {
  for (double fraction : {0.0, -0.1, 1.01, double(NAN)}) {
    try {
      memory_budget({.total = kGiB, .fraction = fraction});
      FAIL() << fraction;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
    }
  }
}

TEST(MemoryBudget, WorksForThisMachineAndAGpu) {
  EXPECT_GT(memory_budget(budget_facts(read_limits(), resident_bytes())).bytes, 0);
  const Gpu gpu{.name = "GPU", .ordinal = 1, .memory_total = 80 * kGiB, .memory_free = 20 * kGiB};
  const MemoryBudget budget = memory_budget(budget_facts(gpu));
  EXPECT_EQ(deciding(budget).what, "available");
  EXPECT_EQ(budget.bytes, 18 * kGiB);
  EXPECT_EQ(budget_facts(gpu).device, "cuda:1");
}

}  // namespace
}  // namespace ridge
