#include "measure/ceilings.h"
#include "machine/caches.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "base/error.h"
#include "machine/features.h"
#include "measure/ceiling_kernels.h"
#include "runtime/buffer_pool.h"
#include "threads/thread_team.h"

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

TEST(Ceilings, LoopsDoTheWorkThatIsTimed) {
  constexpr int64_t n = 3 * kMoveGrain;
  BufferPool pool;
  auto memory = pool.acquire((3 * n + 2048) * 4, BufferPool::Fill::zero);
  float *to = reinterpret_cast<float*>(memory.data()), *a = to + n, *b = a + n;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) a[i] = float(i % 37), b[i] = float(i % 11), sum += a[i];
  const CeilingKernels& kernels = ceiling_kernels();
  for (int walk = 0; walk < kWalks; ++walk) {
    for (int64_t ahead : {0, 1024}) {
      if (walk < kWalks - 1) {
        EXPECT_EQ(kernels.read[walk](a, {n, ahead}, 1), float(sum));
        EXPECT_EQ(kernels.read[walk](a, {n, ahead}, 3), float(3 * sum));
      }
      for (int streaming = 0; streaming < 2; ++streaming) {
        std::fill(to, to + n, -1.0f);
        kernels.copy[walk][streaming](to, a, {n, ahead});
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(to[i], a[i]);
        kernels.triad[walk][streaming](to, a, b, {n, ahead});
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(to[i], a[i] + 0.5f * b[i]);
      }
    }
  }
}

TEST(Ceilings, EveryFloatingTypeHasALoop) {
  std::set<std::pair<DType, std::string>> seen;
  for (const FmaKernel& kernel : ceiling_kernels().fma) {
    EXPECT_GT(kernel.flops, 0);
    EXPECT_TRUE(std::isfinite(kernel.run(3)));
    EXPECT_TRUE(seen.emplace(kernel.dtype, kernel.way).second);
  }
  EXPECT_EQ(ceiling_kernels().fma.front().dtype, DType::f32);
  EXPECT_EQ(seen.count({DType::bf16, "dot product"}), has_bf16(isa_tier()) ? 1u : 0u);
  EXPECT_EQ(seen.count({DType::bf16, "matrix units"}), isa_tier() == IsaTier::amx ? 1u : 0u);
  ThreadTeam team({.threads = 1});
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    const Measured m = measure_fma(team, 0, dtype);
    EXPECT_GT(m.median, 0) << name(dtype);
    EXPECT_FALSE(m.variant.empty());
  }
  EXPECT_EQ(measure_fma(team, 0, DType::i64).samples, 0);
}

TEST(Ceilings, AreMeasured) {
  for (int threads : {1, 2, 3}) {
    ThreadTeam team({.threads = threads});
    std::vector<Measured> all = {measure_fma(team, 0.01), measure_fork_join(team, 0.001)};
    for (Movement movement : {Movement::copy, Movement::triad, Movement::read}) {
      all.push_back(measure_bandwidth(team, movement, 0.01, 1 << 20));
      for (int64_t bytes : {1, 16 << 10, 100000}) all.push_back(measure_cache(team, movement, bytes, 0));
    }
    for (const Measured& m : all) {
      EXPECT_GT(m.median, 0);
      EXPECT_GE(m.spread, 0);
      EXPECT_GE(m.samples, 3);
    }
  }
}

TEST(Ceilings, WindowsKeepTryingVariants) {
  ThreadTeam team({.threads = 2});
  BandwidthWindow small(team, Movement::copy, 0, 1);  // also for a working set below one unit
  EXPECT_FALSE(small.measured().variant.empty());
  BufferPool pool;
  {
    BandwidthWindow copies(team, Movement::copy, 0, 4 << 20, &pool);
    for (int i = 0; i < 40; ++i) EXPECT_GT(copies.gbs(), 0);
    copies.rank();
    EXPECT_GT(copies.gbs(), 0);
    EXPECT_FALSE(copies.variant().empty());
  }
  const int64_t held = pool.statistics().bytes_held;
  BandwidthWindow again(team, Movement::copy, 0, 4 << 20, &pool);
  EXPECT_EQ(pool.statistics().bytes_held, held);  // the first one's memory is reused
  FmaWindow window(team, 50);
  EXPECT_GT(window.gflops(), 0);
  EXPECT_THROW(FmaWindow(team, 0), Error);
  EXPECT_GE(last_level_cache_bytes(), 1 << 15);
}

}  // namespace
}  // namespace ridge
