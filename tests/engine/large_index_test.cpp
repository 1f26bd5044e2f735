// Index arithmetic past 2^31: views larger than the memory behind them, so that nothing large is allocated.
#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "graph/builder.h"
#include "measure/default_team.h"
#include "runtime/executable.h"

namespace ridge {
namespace {

constexpr int64_t kBig = (int64_t(1) << 31) + 256;

template <class T>
std::vector<T> run(const Graph& g, NodeId out, std::vector<NodeId> in = {}, std::vector<const void*> values = {}) {
  Executable exe(g, std::move(in), {out}, default_backend());
  std::vector<T> result(static_cast<size_t>(g.shape(out).numel()));
  void* outputs[] = {result.data()};
  exe.run(values, outputs);
  return result;
}

TEST(LargeIndex, CountsBeyond32Bits) {
  Graph g;
  Builder b(g);
  EXPECT_EQ(run<int64_t>(g, b.slice(b.iota({kBig}, 0), 0, kBig - 3, kBig)), (std::vector<int64_t>{kBig - 3, kBig - 2, kBig - 1}));
}

TEST(LargeIndex, StridedSlicesOfBroadcastAxes) {
  Graph g;
  Builder b(g);
  // [2^31 + 256, 2]: row and column are distinguished far from the start
  NodeId row = b.iota({kBig, 2}, 0), column = b.iota({kBig, 2}, 1);
  NodeId both = b.add(b.mul(row, 10.0), column);
  EXPECT_EQ(run<int64_t>(g, b.slice(both, 0, kBig - 300, kBig, 299)),
            (std::vector<int64_t>{(kBig - 300) * 10, (kBig - 300) * 10 + 1, (kBig - 1) * 10, (kBig - 1) * 10 + 1}));
}

TEST(LargeIndex, SumsOverABroadcastScalar) {
  Graph g;
  Builder b(g);
  NodeId x = g.input({DType::f32, {}}, "x");
  float one = 1;
  std::vector<float> total = run<float>(g, b.sum(b.expand(x, {kBig})), {x}, {&one});
  EXPECT_EQ(total[0], float(kBig));  // a multiple of 256, so exact in f32
}

TEST(LargeIndex, RandomNumbersOfLateElements) {
  Graph g;
  Builder b(g);
  NodeId seed = g.input({DType::i64, {}}, "seed"), step = g.input({DType::i64, {}}, "step"), base = g.input({DType::i64, {}}, "base");
  int64_t s = 5, t = 2, first = (int64_t(1) << 34) + 3;
  std::vector<float> u = run<float>(g, b.uniform({37}, {seed, step, base, 9}), {seed, step, base}, {&s, &t, &first});
  for (uint64_t i = 0; i < u.size(); ++i) EXPECT_EQ(u[i], uniform_from(random_word({5, 2, 9}, uint64_t(first) + i))) << i;
}

}  // namespace
}  // namespace ridge
