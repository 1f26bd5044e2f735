#include "compile/plan_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "base/error.h"

namespace ridge {
namespace {

using Ranges = std::vector<LiveRange>;

// Independent of the planner and of verify_plan: checks every pair, by definition.
void expect_no_overlap(const Ranges& ranges, const MemoryPlan& plan, int64_t alignment = kAlignment) {
  ASSERT_EQ(plan.offsets.size(), ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    ASSERT_GE(plan.offsets[i], 0);
    ASSERT_EQ(plan.offsets[i] % alignment, 0);
    ASSERT_LE(plan.offsets[i] + ranges[i].bytes, plan.arena_bytes);
    for (size_t j = 0; j < i; ++j) {
      bool same_time = ranges[i].first <= ranges[j].last && ranges[j].first <= ranges[i].last;
      bool same_place = plan.offsets[i] < plan.offsets[j] + ranges[j].bytes && plan.offsets[j] < plan.offsets[i] + ranges[i].bytes;
      ASSERT_FALSE(same_time && same_place && ranges[i].bytes && ranges[j].bytes) << i << " and " << j;
    }
  }
}

// Also by definition: the sum of live sizes at every step at which something starts.
int64_t max_live(const Ranges& ranges, int64_t alignment = kAlignment) {
  int64_t most = 0;
  for (const LiveRange& at : ranges) {
    int64_t live = 0;
    for (const LiveRange& r : ranges)
      if (r.first <= at.first && at.first <= r.last) live += (r.bytes + alignment - 1) / alignment * alignment;
    most = std::max(most, live);
  }
  return most;
}

double ratio(const MemoryPlan& plan) { return double(plan.arena_bytes) / double(std::max<int64_t>(1, plan.max_live_bytes)); }

struct GptShape {
  int64_t layers = 12, batch = 12, time = 64, width = 128, vocabulary = 65, heads = 4;
};

// Live ranges of a training step: activations kept from forward to backward, short temporaries, gradients to the end.
Ranges gpt_step(const GptShape& s) {
  Ranges ranges;
  struct Saved {
    int64_t bytes;
    int32_t first;
  };
  std::vector<Saved> saved;
  int32_t t = 0;
  const int64_t token = s.batch * s.time * 4, x = token * s.width, weight = s.width * s.width * 4, rows = s.batch * s.heads * s.time * 4;
  auto temporary = [&](int64_t bytes, int32_t steps) { ranges.push_back({bytes, t, t + steps}); };
  auto save = [&](int64_t bytes) { saved.push_back({bytes, t}); };
  auto use_saved = [&](int count) {
    for (int i = 0; i < count && !saved.empty(); ++i) {
      ranges.push_back({saved.back().bytes, saved.back().first, t});
      saved.pop_back();
    }
  };
  auto gradient = [&](int64_t bytes) { ranges.push_back({bytes, t, 1 << 20}); };
  save(x), ++t;
  for (int64_t l = 0; l < s.layers; ++l) {
    save(2 * token), temporary(x, 1), ++t;  // norm statistics and output
    save(3 * x), ++t;                       // qkv
    save(x), save(rows), ++t;               // attention and its log-sum-exp
    save(x), ++t;                           // projection and residual
    save(2 * token), temporary(x, 1), ++t;
    save(4 * x), ++t;          // before the activation
    temporary(4 * x, 1), ++t;  // after it: recomputed in backward
    save(x), ++t;
  }
  save(2 * token), temporary(x, 1), ++t;
  save(token * s.vocabulary), ++t;
  temporary(token * s.vocabulary, 1), ++t;
  use_saved(2), temporary(x, 2), gradient(s.vocabulary * s.width * 4), ++t;
  for (int64_t l = 0; l < s.layers; ++l) {
    temporary(x, 8);
    use_saved(1), temporary(4 * x, 1), gradient(4 * weight), gradient(s.width * 4), ++t;
    use_saved(1), temporary(4 * x, 2), ++t;
    gradient(4 * weight), gradient(s.width * 16), temporary(x, 1), ++t;
    use_saved(1), gradient(s.width * 8), temporary(x, 4), ++t;
    use_saved(1), gradient(weight), temporary(x, 1), ++t;
    use_saved(2), temporary(3 * x, 1), temporary(rows, 0), ++t;
    use_saved(1), gradient(3 * weight), temporary(x, 1), ++t;
    use_saved(1), gradient(s.width * 8), ++t;
  }
  use_saved(1), gradient(s.vocabulary * s.width * 4), gradient(s.time * s.width * 4);
  for (LiveRange& r : ranges) r.last = std::min(r.last, t);
  return ranges;
}

// Random plans of several kinds: long and short lifetimes, even and very uneven sizes.
Ranges random_ranges(std::mt19937& random, int n) {
  Ranges ranges;
  const int steps = 1 + int(random() % unsigned(2 * n)), lives = int(random() % 4), sizes = int(random() % 3);
  for (int i = 0; i < n; ++i) {
    int first = int(random() % unsigned(steps));
    bool is_long = lives == 0 || (lives == 1 && random() % 4 == 0);
    int length = int(random() % unsigned(is_long ? steps : 8));
    int64_t bytes = sizes == 0 ? int64_t(random() % 200000) : sizes == 1 ? int64_t(64) << random() % 12 : int64_t(random() % 50 ? random() % 3000 : 1 << 20);
    ranges.push_back({random() % 40 ? bytes : 0, first, std::min(first + length, steps - 1)});
  }
  return ranges;
}

TEST(PlanMemory, IsTightForGptSteps) {
  for (GptShape shape : {GptShape{}, GptShape{.layers = 48}, GptShape{.batch = 8, .time = 1024, .width = 768, .vocabulary = 50257, .heads = 12},
                         GptShape{.batch = 2, .time = 32}, GptShape{.layers = 6, .batch = 64, .time = 256, .width = 384, .heads = 6},
                         GptShape{.layers = 2, .batch = 1, .time = 7}, GptShape{.batch = 48, .time = 64},
                         GptShape{.layers = 24, .batch = 4, .time = 512, .width = 1024, .vocabulary = 32000, .heads = 16}}) {
    Ranges ranges = gpt_step(shape);
    MemoryPlan plan = plan_memory(ranges);
    expect_no_overlap(ranges, plan);
    EXPECT_EQ(plan.max_live_bytes, max_live(ranges));
    EXPECT_LE(ratio(plan), 1.02) << shape.layers << " layers, batch " << shape.batch << ", time " << shape.time << ", width " << shape.width;
  }
}

TEST(PlanMemory, IsTightForRandomRanges) {
  std::mt19937 random(7);
  double worst = 1;
  for (int round = 0; round < 300; ++round) {
    int n = 1 + int(random() % (round % 10 ? 120 : 700));
    Ranges ranges = random_ranges(random, n);
    MemoryPlan plan = plan_memory(ranges);
    expect_no_overlap(ranges, plan);
    ASSERT_EQ(plan.max_live_bytes, max_live(ranges));
    EXPECT_LE(ratio(plan), 1.05) << "round " << round << ", " << n << " ranges";
    worst = std::max(worst, ratio(plan));
  }
  RecordProperty("worst_ratio", std::to_string(worst));
}

TEST(PlanMemory, KeepsOtherAlignments) {
  std::mt19937 random(8);
  for (int64_t alignment : {1, 3, 4096}) {
    Ranges ranges = random_ranges(random, 60);
    MemoryPlan plan = plan_memory(ranges, alignment);
    expect_no_overlap(ranges, plan, alignment);
    EXPECT_EQ(plan.max_live_bytes, max_live(ranges, alignment));
  }
}

TEST(PlanMemory, IsAFunctionOfItsInput) {
  std::mt19937 random(9);
  Ranges ranges = random_ranges(random, 300);
  EXPECT_EQ(plan_memory(ranges).offsets, plan_memory(ranges).offsets);
}

TEST(PlanMemory, HandlesLargePlans) {
  std::mt19937 random(10);
  for (int round = 0; round < 8; ++round) {
    Ranges ranges = random_ranges(random, 5000);
    MemoryPlan plan = plan_memory(ranges);
    EXPECT_NO_THROW(verify_plan(ranges, plan));
    EXPECT_LE(ratio(plan), 1.05) << round;
  }
}

TEST(PlanMemory, FindsThePeakStep) {
  MemoryPlan plan = plan_memory(Ranges{{100, 0, 3}, {1000, 2, 5}, {64, 5, 9}, {1, 3, 3}});
  EXPECT_EQ(plan.max_live_bytes, 128 + 1024 + 64);
  EXPECT_EQ(plan.peak_step, 3);
}

TEST(PlanMemory, HandlesEmptyAndZeroByteRanges) {
  EXPECT_EQ(plan_memory({}).arena_bytes, 0);
  MemoryPlan plan = plan_memory(Ranges{{0, 0, 9}, {0, 0, 0}});
  EXPECT_EQ(plan.arena_bytes, 0);
  EXPECT_EQ(plan.offsets, (std::vector<int64_t>{0, 0}));
  plan = plan_memory(Ranges{{0, 0, 9}, {5, 2, 2}, {0, 2, 2}});
  EXPECT_EQ(plan.arena_bytes, 64);
}

TEST(PlanMemory, HandlesExtremeSteps) {
  constexpr int32_t low = std::numeric_limits<int32_t>::min(), high = std::numeric_limits<int32_t>::max();
  MemoryPlan plan = plan_memory(Ranges{{64, low, high}, {64, low, low}, {64, high, high}});
  EXPECT_EQ(plan.arena_bytes, 128);
}

TEST(PlanMemory, RejectsBadRanges) {
  EXPECT_THROW(plan_memory(Ranges{{-1, 0, 0}}), Error);
  EXPECT_THROW(plan_memory(Ranges{{1, 1, 0}}), Error);
  EXPECT_THROW(plan_memory(Ranges{{int64_t(1) << 62, 0, 0}, {int64_t(1) << 62, 0, 0}}), Error);
  EXPECT_THROW(plan_memory(Ranges{{std::numeric_limits<int64_t>::max(), 0, 0}}), Error);
}

TEST(VerifyPlan, DetectsEveryKindOfDamage) {
  Ranges ranges{{100, 0, 2}, {100, 1, 3}, {100, 3, 4}};
  const MemoryPlan good = plan_memory(ranges);
  EXPECT_NO_THROW(verify_plan(ranges, good));
  auto damaged = [&](auto change) {
    MemoryPlan plan = good;
    change(plan);
    EXPECT_THROW(verify_plan(ranges, plan), Error);
  };
  damaged([](MemoryPlan& p) { p.offsets[0] = p.offsets[1]; });
  damaged([](MemoryPlan& p) { p.offsets[0] = p.offsets[1] + 64, p.arena_bytes = 1000; });
  damaged([](MemoryPlan& p) { p.offsets[0] += 8; });
  damaged([](MemoryPlan& p) { p.offsets[0] = -64; });
  damaged([](MemoryPlan& p) { p.arena_bytes = 64; });
  damaged([](MemoryPlan& p) { p.offsets.pop_back(); });
}

}  // namespace
}  // namespace ridge
