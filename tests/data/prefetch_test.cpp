// Prefetching: batches in order, a bounded queue, errors reported at their batch, and a clean shutdown in any state.
#include "data/prefetch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "machine/expect_error.h"

namespace ridge {
namespace {

// Batch n is filled with n. Counts its requests.
class Numbers : public BatchSource {
 public:
  const std::vector<Type>& types() const override { return types_; }
  int64_t batches() const override { return end; }
  void fill(int64_t number, std::span<std::byte* const> tensors) const override {
    if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (number == bad) fail(ErrorCode::io, "[data] batch {} is bad", number);
    for (int64_t i = 0; i < 3; ++i) reinterpret_cast<int64_t*>(tensors[0])[i] = number;
    for (int64_t i = 0; i < 5; ++i) reinterpret_cast<float*>(tensors[1])[i] = float(number);
    highest = std::max<int64_t>(highest, number);
    ++calls;
  }
  int64_t end = -1, bad = -1;
  bool slow = false;
  mutable std::atomic<int64_t> highest = -1, calls = 0;

 private:
  std::vector<Type> types_ = {{DType::i64, {3}}, {DType::f32, {5}}};
};

void expect_batch(const Prefetcher::Batch& batch, int64_t number) {
  EXPECT_EQ(batch.number, number);
  ASSERT_EQ(batch.tensors.size(), 2u);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(static_cast<const int64_t*>(batch.tensors[0])[i], number);
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(static_cast<const float*>(batch.tensors[1])[i], float(number));
}

class Prefetching : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, Prefetching, testing::Bool(), [](const auto& info) { return info.param ? "Threaded" : "WhenAsked"; });

TEST_P(Prefetching, ReturnsBatchesInOrderExceptSkippedOnes) {
  const Numbers source;
  Prefetcher prefetcher(source, {.first = 5, .left_out = {9, 5, 6, 3}, .depth = 3, .threaded = GetParam()});
  for (int64_t number : {7, 8, 10, 11, 12, 13, 14, 15, 16}) expect_batch(prefetcher.next(), number);
  EXPECT_GE(prefetcher.waited_seconds(), 0);
  EXPECT_EQ(prefetcher.bytes(), Prefetcher::bytes_for(source, {.depth = 3, .threaded = GetParam()}));
  EXPECT_GE(prefetcher.bytes(), (GetParam() ? 4 : 1) * (3 * 8 + 5 * 4));
}

TEST_P(Prefetching, RethrowsAndContinues) {
  Numbers source;
  source.bad = 2;
  Prefetcher prefetcher(source, {.threaded = GetParam()});
  expect_batch(prefetcher.next(), 0);
  expect_batch(prefetcher.next(), 1);
  EXPECT_TRUE(mentions(error_of([&] { prefetcher.next(); }).what(), "batch 2 is bad"));
  expect_batch(prefetcher.next(), 3);
}

TEST_P(Prefetching, ReportsTheEnd) {
  Numbers source;
  source.end = 2;
  Prefetcher prefetcher(source, {.threaded = GetParam()});
  expect_batch(prefetcher.next(), 0);
  expect_batch(prefetcher.next(), 1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(error_of([&] { prefetcher.next(); }).code(), ErrorCode::value);
}

TEST(Prefetch, IsNeverFurtherAheadThanItsDepth) {
  for (int depth : {1, 2, 5}) {
    const Numbers source;
    Prefetcher prefetcher(source, {.depth = depth});
    for (int64_t i = 0; i < 20; ++i) {
      const Prefetcher::Batch batch = prefetcher.next();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      EXPECT_LE(source.highest, i + depth);
      expect_batch(batch, i);  // still unchanged
    }
  }
}

// Batches are made ahead, as many as the queue holds; so a step that takes long enough never waits.
TEST(Prefetch, LoadsBatchesAhead) {
  for (int depth : {1, 2, 5}) {
    const Numbers source;
    Prefetcher prefetcher(source, {.depth = depth});
    for (int64_t i = 0; i < 5; ++i) {
      expect_batch(prefetcher.next(), i);
      for (int tries = 0; source.highest < i + depth && tries < 5000; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ASSERT_EQ(source.highest, i + depth);
    }
  }
}

TEST(Prefetch, CanBeDestroyedInAnyState) {
  Numbers source;
  source.slow = true;
  source.bad = 1;
  for (int taken = 0; taken < 4; ++taken) {
    Prefetcher prefetcher(source, {.depth = 2});
    for (int i = 0; i < taken; ++i) try {
        prefetcher.next();
      } catch (const Error&) {
      }
  }
}

TEST(Prefetch, CountsWaitingTime) {
  Numbers source;
  source.slow = true;
  Prefetcher prefetcher(source, {});
  for (int i = 0; i < 5; ++i) prefetcher.next();
  EXPECT_GT(prefetcher.waited_seconds(), 0);
  Prefetcher when_asked(source, {.threaded = false});
  for (int i = 1; i <= 5; ++i) {
    when_asked.next();
    EXPECT_GE(when_asked.waited_seconds(), 1e-3 * i) << "every batch takes a millisecond, and all of them count";
  }
}

TEST(Prefetch, PartsNeedASourceThatSupportsThem) {
  const Numbers source;
  EXPECT_EQ(error_of([&] { Prefetcher(source, {.part = 2}); }).code(), ErrorCode::usage);
}

}  // namespace
}  // namespace ridge
