// Indexed writes: whatever lands where, in index order, and nothing else is touched.
#include "cpu_nodes/node_case.h"

namespace ridge::cpu {
namespace {

struct ScatterShape {
  Shape x, index;
  int axis;
};

const ScatterShape kScatters[] = {
    {{7}, {31}, 0},
    {{1}, {1}, 0},
    {{5}, {0}, 0},
    {{33, 7}, {31, 7}, 0},
    {{33, 7}, {5, 3}, 0},
    {{3, 33}, {3, 7}, 1},
    {{3, 33}, {2, 101}, 1},
    {{5, 3, 7}, {4, 9, 5}, 1},
    {{2, 3, 5, 4}, {2, 2, 7, 3}, 2},
    {{0, 3}, {0, 3}, 1},
    {{1031}, {40009}, 0},
    {{3, 129}, {2, 40009}, 1},
    {{131, 67}, {257, 61}, 0},
    {{600, 5}, {600, 1}, 1},
};

TEST(Scatter, SetsTheLastOfEqualIndices) {
  test::Random random(1);
  for (const ScatterShape& s : kScatters) {
    for (DType t : kAllDTypes) {
      NodeCase c;
      NodeId x = c.input(t, s.x, random), index = c.index(s.index, s.x[s.axis], random), source = c.input(t, s.index, random);
      c.node = Builder(c.graph).scatter(x, index, source, s.axis);
      c.check(0);
    }
  }
}

TEST(Scatter, AddsEveryElement) {
  test::Random random(2);
  for (const ScatterShape& s : kScatters) {
    for (DType t : kAllDTypes) {
      NodeCase c;
      NodeId x = c.input(t, s.x, random), index = c.index(s.index, s.x[s.axis], random), source = c.input(t, s.index, random);
      c.node = Builder(c.graph).scatter_add(x, index, source, s.axis);
      c.check(s.index[s.axis] + 1);
    }
  }
}

TEST(Scatter, WorksInPlace) {
  test::Random random(3);
  for (Op op : {Op::scatter, Op::scatter_add}) {
    for (DType t : {DType::f32, DType::bf16, DType::i64}) {
      NodeCase c;
      NodeId x = c.input(t, {33, 7}, random), index = c.index({31, 5}, 33, random), source = c.input(t, {31, 5}, random);
      c.node = c.graph.add(op, {x, index, source}, {{0}, {}, nullptr});
      c.in_place = true;
      c.check(op == Op::scatter ? 0 : 32);
    }
  }
}

// Bad indices are reported and skipped; all others still land.
TEST(Scatter, ReportsIndicesOutOfRange) {
  for (Op op : {Op::scatter, Op::scatter_add}) {
    for (int64_t n : {4, 40000}) {
      for (int64_t bad : {int64_t(-1), int64_t(3), INT64_MIN, INT64_MAX}) {
        NodeCase c;
        std::vector<double> at(size_t(n), 1.0), source(size_t(n), 0.0);
        source[0] = 5;
        NodeId x = c.input(reference::from_values({DType::f32, {3}}, std::vector<double>{7, 8, 9}));
        Array index = reference::from_values({DType::i64, {n}}, at);
        index.i[size_t(n) - 1] = bad;
        NodeId i = c.input(index), s = c.input(reference::from_values({DType::f32, {n}}, source));
        c.node = c.graph.add(op, {x, i, s}, {{0}, {}, nullptr});
        const Array out = c.results()[0];
        EXPECT_EQ(out.f, (std::vector<double>{7, op == Op::scatter ? 0.0 : 13.0, 9}));
        EXPECT_EQ(c.fault_value, bad);
        EXPECT_EQ(c.fault_limit, 3);
      }
    }
  }
}

struct TakeShape {
  Shape g, index;
  int axis;
  int64_t size;
};

TEST(TakeGrad, SumsTheRowsOfEveryIndex) {
  const TakeShape shapes[] = {
      {{2, 5, 33}, {2, 5}, 0, 7},
      {{3, 31, 2}, {31}, 1, 7},
      {{0, 3}, {0}, 0, 7},
      {{0, 33}, {0}, 0, 7},
      {{3, 7}, {3}, 0, 1},
      {{1, 64}, {}, 0, 5},
      {{64}, {}, 0, 3},
      {{5, 9}, {9}, 1, 31},
      {{3001, 64}, {3001}, 0, 65},
      {{700, 1031}, {700}, 0, 1},
      {{131, 2111}, {131}, 0, 17},
      {{40009}, {40009}, 0, 101},
      {{2, 40, 37}, {40}, 1, 1009},
      {{3, 1500, 33}, {30, 50}, 1, 3},
      {{20, 13, 3}, {13}, 1, 5},
  };
  test::Random random(4);
  for (const TakeShape& s : shapes) {
    for (DType t : kAllDTypes) {
      NodeCase c;
      Shape g = s.g;
      if (s.index.rank() == 0) g = s.axis == 0 && s.g.rank() == 2 ? Shape{64} : Shape{};
      if (s.index.rank() == 2 && s.axis == 1) g = {3, 30, 50, 33};
      NodeId grad = c.input(t, g, random), index = c.index(s.index, s.size, random);
      c.node = c.graph.add(Op::take_grad, {grad, index}, {{s.axis, s.size}, {}, nullptr});
      c.check(s.index.numel());
    }
  }
}

// One token may fill a whole batch: its sum is shared out and still has the same bits for everyone.
TEST(TakeGrad, SharesOutOneFrequentIndex) {
  test::Random random(5);
  for (DType t : {DType::f32, DType::bf16, DType::f16, DType::i32}) {
    for (int64_t often : {0, 3, 6}) {
      NodeCase c;
      Array index = reference::zeros({DType::i64, {2500}});
      for (int64_t& i : index.i) i = random.below(10) < 9 ? often : random.below(7);
      NodeId grad = c.input(t, {2500, 67}, random), i = c.input(index);
      c.node = c.graph.add(Op::take_grad, {grad, i}, {{0, 7}, {}, nullptr});
      c.check(2500);
    }
  }
}

TEST(TakeGrad, ReportsIndicesOutOfRange) {
  for (int64_t inner : {1, 64}) {
    for (int64_t bad : {int64_t(-1), int64_t(3), INT64_MIN, INT64_MAX}) {
      NodeCase c;
      Array g = reference::zeros({DType::f32, {4, inner}}), index = reference::zeros({DType::i64, {4}});
      std::fill(g.f.begin(), g.f.end(), 2.0);
      index.i = {2, bad, 0, 2};
      NodeId grad = c.input(g), i = c.input(index);
      c.node = c.graph.add(Op::take_grad, {grad, i}, {{0, 3}, {}, nullptr});
      const Array out = c.results()[0];
      for (int64_t k = 0; k < inner; ++k) {
        EXPECT_EQ(out.f[size_t(k)], 2);
        EXPECT_EQ(out.f[size_t(inner + k)], 0);
        EXPECT_EQ(out.f[size_t(2 * inner + k)], 4);
      }
      EXPECT_EQ(c.fault_value, bad);
      EXPECT_EQ(c.fault_limit, 3);
    }
  }
}

TEST(TakeGrad, ReportsAnyIndexIntoNothing) {
  NodeCase c;
  NodeId grad = c.input(reference::zeros({DType::f32, {2, 3}})), index = c.input(reference::zeros({DType::i64, {2}}));
  c.node = c.graph.add(Op::take_grad, {grad, index}, {{0, 0}, {}, nullptr});
  c.run(Sharing::all_at_once);
  EXPECT_EQ(c.fault_limit, 0);
}

TEST(DynamicUpdateSlice, WritesAtClampedStarts) {
  struct {
    Shape x, update;
  } const shapes[] = {{{33}, {7}},
                      {{1}, {1}},
                      {{}, {}},
                      {{3, 31}, {2, 5}},
                      {{3, 31}, {3, 31}},
                      {{5, 7, 3}, {2, 7, 3}},
                      {{5, 7, 3}, {5, 1, 3}},
                      {{4, 3, 2, 5}, {2, 1, 2, 3}},
                      {{7, 3}, {0, 3}},
                      {{700, 301}, {691, 300}},
                      {{100003}, {99991}}};
  test::Random random(6);
  for (const auto& s : shapes) {
    for (DType t : kAllDTypes) {
      for (bool in_place : {false, true}) {
        NodeCase c;
        std::vector<NodeId> starts;
        NodeId x = c.input(t, s.x, random), update = c.input(t, s.update, random);
        for (int64_t d : s.x) starts.push_back(c.input(DType::i64, {}, random, double(-d), double(2 * d)));
        c.node = Builder(c.graph).dynamic_update_slice(x, update, starts);
        c.in_place = in_place;
        c.check(0);
      }
    }
  }
}

}  // namespace
}  // namespace ridge::cpu
