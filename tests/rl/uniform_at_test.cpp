#include <gtest/gtest.h>

#include "base/rng.h"
#include "rl/matches.h"
#include "support/errors.h"

namespace ridge::test {
namespace {

TEST(UniformAt, IsPhiloxOfSeedStreamCounterAndLane) {
  const std::vector<int64_t> counters = {0, 1, 5, (int64_t(1) << 40) + 3}, lanes = {0, 7, (int64_t(1) << 32) - 1};
  const uint64_t key = 0x123456789abcdef;
  seed(key);
  const Tensor u = uniform_at(Tensor({4, 1}, std::span<const int64_t>(counters)), Tensor({3}, std::span<const int64_t>(lanes)), 9);
  ASSERT_EQ(u.shape(), (Shape{4, 3}));
  const std::vector<float> got = u.to_floats();
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = 0; j < 3; ++j)
      EXPECT_EQ(got[3 * i + j], uniform_from(philox({key, uint32_t(lanes[j]), 0x60000009}, uint64_t(counters[i]))[0])) << i << ", " << j;
}

TEST(UniformAt, StreamsAndSeedsDiffer) {
  auto drawn = [](uint64_t value, uint32_t stream) {
    seed(value);
    return uniform_at(numbers_from(0, 100), integer(3), stream).to_floats();
  };
  EXPECT_EQ(drawn(1, 2), drawn(1, 2));
  EXPECT_NE(drawn(1, 2), drawn(1, 3));
  EXPECT_NE(drawn(1, 2), drawn(2, 2));
}

// Lanes and counters in a grid: the mean of 64 bins each must not be further off than chance explains (six standard deviations).
TEST(UniformAt, IsUniformAlongCountersAndLanes) {
  seed(11);
  constexpr int64_t kSide = 512, kBins = 64;
  const std::vector<float> u = uniform_at(reshape(numbers_from(0, kSide), {kSide, 1}), numbers_from(1000, kSide), 1).to_floats();
  for (int64_t stride : {int64_t(1), kSide}) {  // neighbours along one axis are independent: pairs fill the unit square evenly
    std::vector<double> bins(size_t(kBins * kBins), 0);
    int64_t pairs = 0;
    for (int64_t i = 0; i < kSide; ++i)
      for (int64_t j = 0; j < kSide; j += 2) {
        const int64_t at = stride == 1 ? i * kSide + j : j * kSide + i;
        ++bins[size_t(int64_t(u[size_t(at)] * kBins) * kBins + int64_t(u[size_t(at + stride)] * kBins))];
        ++pairs;
      }
    const double expected = double(pairs) / double(kBins * kBins), freedom = double(kBins * kBins - 1);
    double chi = 0;
    for (double n : bins) chi += (n - expected) * (n - expected) / expected;
    EXPECT_NEAR(chi, freedom, 6 * std::sqrt(2 * freedom)) << "stride " << stride;
  }
  for (float x : u) ASSERT_TRUE(x >= 0 && x < 1);
}

// Row i of a loop draws the same however many rows there are, and wherever the loop is cut.
TEST(UniformAt, DoesNotDependOnRowsOrOnHowALoopIsCut) {
  const ScanStep step = [](const std::vector<Tensor>& c, const std::vector<Tensor>&) -> ScanOutput {
    return {{c[0] + integer(1), c[1]}, {uniform_at(c[0], c[1], 5)}};
  };
  auto drawn = [&](int64_t first, int64_t rows, std::vector<int64_t> parts) {
    seed(3);
    std::vector<Tensor> carry = {full({rows}, 0, DType::i64), numbers_from(first, rows)};
    std::vector<float> all;
    for (int64_t part : parts) {
      const ScanOutput out = run_loop(step, carry, part);
      carry = out.carry;
      const std::vector<float> u = out.outputs[0].to_floats();
      all.insert(all.end(), u.begin(), u.end());
    }
    return all;
  };
  const std::vector<float> whole = drawn(0, 9000, {12});
  EXPECT_EQ(drawn(0, 9000, {5, 1, 6}), whole);
  const std::vector<float> some = drawn(4100, 31, {12});
  for (size_t t = 0; t < 12; ++t)
    for (size_t i = 0; i < 31; ++i) ASSERT_EQ(some[t * 31 + i], whole[t * 9000 + 4100 + i]) << t << ", " << i;
}

TEST(UniformAt, RefusesACounterThatStaysTheSameInALoop) {
  const Tensor outside = numbers_from(0, 4);
  auto loop = [&](const std::function<Tensor(const std::vector<Tensor>&, const Tensor&)>& draw) {
    scan(
        [&](const std::vector<Tensor>& c, const std::vector<Tensor>& x) -> ScanOutput {
          return {{c[0] + integer(1), c[1]}, {draw(c, x[0])}};
        },
        {full({4}, 0, DType::i64), outside}, {numbers_from(0, 3)});
  };
  const char* what = "uniform_at() is called with a counter and a lane that are the same in every step";
  EXPECT_TRUE(has(error_of([&] { loop([&](auto&, auto&) { return uniform_at(outside, integer(0), 1); }); }), what));
  EXPECT_TRUE(has(error_of([&] { loop([&](auto& c, auto&) { return uniform_at(c[1], c[1], 1); }); }), what));  // carried, but never changed
  EXPECT_NO_THROW(loop([&](auto& c, auto&) { return uniform_at(c[0], c[1], 1); }));
  EXPECT_NO_THROW(loop([&](auto& c, const Tensor& t) { return uniform_at(c[1], t, 1); }));
  EXPECT_NO_THROW(loop([&](auto&, auto&) { return full({4}, 0); }));
  const Tensor before = uniform_at(outside, integer(0), 1);
  EXPECT_NO_THROW(loop([&](auto&, auto&) { return before; }));  // drawn once, before the loop
  // A loop inside a loop that starts in the same way every time.
  const auto nested = [&] {
    loop([&](auto&, auto&) {
      return scan(
                 [](const std::vector<Tensor>& c, const std::vector<Tensor>&) -> ScanOutput {
                   return {{c[0] + integer(1)}, {uniform_at(c[0], c[0], 1)}};
                 },
                 {outside}, {full({2}, 0)})
          .outputs[0];
    });
  };
  EXPECT_TRUE(has(error_of(nested), what));
}

}  // namespace
}  // namespace ridge::test
