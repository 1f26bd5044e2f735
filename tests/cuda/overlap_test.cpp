// Kernels side by side: whatever runs at the same time shares no memory that one of the two writes.
#include "backend/cuda/overlap.h"

#include <gtest/gtest.h>

#include <random>

namespace ridge::cuda {
namespace {

bool conflict(const std::vector<MemoryRange>& a, const std::vector<MemoryRange>& b) {
  for (const MemoryRange& x : a)
    for (const MemoryRange& y : b)
      if ((x.written || y.written) && x.begin < y.end && y.begin < x.end && x.begin < x.end && y.begin < y.end) return true;
  return false;
}

// before[i][j]: j has ended before i starts, by lanes and waits alone.
std::vector<std::vector<char>> order_of(const std::vector<Lane>& lanes) {
  std::vector<std::vector<char>> before(lanes.size(), std::vector<char>(lanes.size(), 0));
  std::vector<int> tail(16, -1);
  for (size_t i = 0; i < lanes.size(); ++i) {
    std::vector<int> direct = lanes[i].waits;
    if (int t = tail[size_t(lanes[i].lane)]; t >= 0) direct.push_back(t);
    for (int d : direct) {
      before[i][size_t(d)] = 1;
      for (size_t k = 0; k < size_t(d); ++k) before[i][k] |= before[size_t(d)][k];
    }
    tail[size_t(lanes[i].lane)] = int(i);
  }
  return before;
}

TEST(Overlap, OrdersAllThatShareMemory) {
  std::mt19937 random(7);
  auto below = [&](uint64_t n) { return random() % n; };
  int64_t beside = 0;
  for (int round = 0; round < 200; ++round) {
    const size_t count = 2 + below(40);
    const int lane_count = 1 + int(below(4));
    std::vector<std::vector<MemoryRange>> kernels(count);
    std::vector<char> alone(count, 0);
    for (size_t i = 0; i < count; ++i) {
      alone[i] = below(15) == 0;
      for (uint64_t k = below(5); k-- > 0;) {
        const uint64_t at = below(100), size = below(12);
        kernels[i].push_back({at, at + size, below(3) == 0});
      }
    }
    const std::vector<Lane> lanes = assign_lanes(dependencies(kernels), lane_count, alone);
    const auto before = order_of(lanes);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_LT(lanes[i].lane, lane_count);
      for (int w : lanes[i].waits) {
        EXPECT_LT(w, int(i));
        EXPECT_TRUE(lanes[size_t(w)].signals);
        EXPECT_NE(lanes[size_t(w)].lane, lanes[i].lane) << "a lane is in order by itself";
      }
      for (size_t j = 0; j < i; ++j) {
        if (conflict(kernels[i], kernels[j]) || alone[i] || alone[j]) {
          EXPECT_TRUE(before[i][j]) << "round " << round << ": kernel " << i << " runs beside " << j;
        }
        beside += !before[i][j];
      }
    }
    if (lane_count == 1) {
      for (const Lane& lane : lanes) EXPECT_TRUE(lane.waits.empty());
    }
  }
  EXPECT_GT(beside, 1000) << "something does run side by side";
}

// The two products of backward: both read what came before, and nobody waits for the gradient of the weight until the end.
TEST(Overlap, LetsAWeightsGradientRunBesideTheChain) {
  std::vector<std::vector<MemoryRange>> kernels;
  for (uint64_t layer = 0; layer < 5; ++layer) {
    const uint64_t in = 100 * layer, out = 100 * (layer + 1), weight = 10000 + 10 * layer;
    kernels.push_back({{in, in + 100, false}, {weight, weight + 10, true}});
    kernels.push_back({{in, in + 100, false}, {out, out + 100, true}});
  }
  const std::vector<Lane> lanes = assign_lanes(dependencies(kernels), 2, {});
  const auto before = order_of(lanes);
  for (size_t i = 1; i + 1 < kernels.size(); i += 2) {
    EXPECT_FALSE(before[i][i - 1]) << "the chain does not wait for a weight";
    EXPECT_TRUE(i < 2 || before[i][i - 2]) << "but for itself";
  }
}

TEST(Overlap, OfNothingIsNothing) {
  EXPECT_TRUE(assign_lanes(dependencies({}), 3, {}).empty());
  const std::vector<std::vector<MemoryRange>> empty = {{}, {{5, 5, true}}, {{5, 5, true}}};
  for (const auto& waits : dependencies(empty)) EXPECT_TRUE(waits.empty());
}

}  // namespace
}  // namespace ridge::cuda
