#include "machine/ceilings.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "machine/ceiling_kernels.h"
#include "runtime/buffer_pool.h"
#include "runtime/thread_team.h"

namespace ridge {
namespace {

TEST(Ceilings, SummarizeByQuartiles) {
  Measured m = summarize({5, 1, 2, 4, 3});
  EXPECT_EQ(m.median, 3);
  EXPECT_DOUBLE_EQ(m.spread, 2.0 / 3);
  EXPECT_EQ(m.samples, 5);
  EXPECT_EQ(summarize({1, 2}).median, 1.5);
  EXPECT_EQ(summarize({7}).spread, 0);
  EXPECT_EQ(summarize({}).samples, 0);
}

TEST(Ceilings, LoopsDoWhatTheyAreTimedFor) {
  constexpr int64_t n = 2 * 4096;
  BufferPool pool;
  auto memory = pool.acquire((3 * n + 2048) * 4, BufferPool::Fill::zero);
  float *to = reinterpret_cast<float*>(memory.data()), *a = to + n, *b = a + n;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) a[i] = float(i % 37), b[i] = float(i % 11), sum += a[i];
  const CeilingKernels& kernels = ceiling_kernels();
  EXPECT_GT(kernels.fma_flops, 0);
  EXPECT_GT(kernels.fma(3), 0);
  for (int streams = 0; streams < 3; ++streams) {
    for (int64_t ahead : {0, 1024}) {
      EXPECT_EQ(kernels.read[streams](a, {n, ahead}), float(sum));
      for (int streaming = 0; streaming < 2; ++streaming) {
        std::fill(to, to + n, -1.0f);
        kernels.copy[streams][streaming](to, a, {n, ahead});
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(to[i], a[i]);
        kernels.triad[streams][streaming](to, a, b, {n, ahead});
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(to[i], a[i] + 0.5f * b[i]);
      }
    }
  }
}

TEST(Ceilings, AreMeasured) {
  ThreadTeam team({.threads = 2});
  std::vector<Measured> all = {measure_fma(team, 0.01)};
  for (Movement movement : {Movement::copy, Movement::triad, Movement::read}) all.push_back(measure_bandwidth(team, movement, 0.01, 1 << 20));
  for (const Measured& m : all) {
    EXPECT_GT(m.median, 0);
    EXPECT_GE(m.spread, 0);
    EXPECT_GE(m.samples, 3);
  }
  EXPECT_FALSE(measure_bandwidth(team, Movement::copy, 0, 1).variant.empty());  // also for a working set below one unit
  BandwidthWindow copies(team, Movement::copy, 0, 1 << 20);
  EXPECT_GT(copies.gbs(), 0);
  FmaWindow window(team, 50);
  EXPECT_GT(window.gflops(), 0);
  EXPECT_THROW(FmaWindow(team, 0), Error);
  EXPECT_GE(last_level_cache_bytes(), 1 << 15);
}

}  // namespace
}  // namespace ridge
