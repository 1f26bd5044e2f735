// Laws for every single-node kernel on any device: all kinds of shapes, all dtypes, ties, bad indices. A device derives its case from NodeCase and says
// which dtypes to run at a given number of elements.
#pragma once
#include <cmath>
#include <limits>

#include "support/node_case.h"

namespace ridge::test::node_laws {

struct ScatterShape {
  Shape x, index;
  int axis;
};

inline const ScatterShape kScatters[] = {
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

template <class Case>
void scatter_sets_the_last_of_equal_indices() {
  Random random(1);
  for (const ScatterShape& s : kScatters) {
    for (DType t : kAllDTypes) {
      if (!Case::runs(t, s.index.numel())) continue;
      Case c;
      NodeId x = c.input(t, s.x, random), index = c.index(s.index, s.x[s.axis], random), source = c.input(t, s.index, random);
      c.node = Builder(c.graph).scatter(x, index, source, s.axis);
      c.check(0);
    }
  }
}

template <class Case>
void scatter_adds_every_element() {
  Random random(2);
  for (const ScatterShape& s : kScatters) {
    for (DType t : kAllDTypes) {
      if (!Case::runs(t, s.index.numel())) continue;
      Case c;
      NodeId x = c.input(t, s.x, random), index = c.index(s.index, s.x[s.axis], random), source = c.input(t, s.index, random);
      c.node = Builder(c.graph).scatter_add(x, index, source, s.axis);
      c.check(s.index[s.axis] + 1);
    }
  }
}

template <class Case>
void scatter_works_in_place() {
  Random random(3);
  for (Op op : {Op::scatter, Op::scatter_add}) {
    for (DType t : {DType::f32, DType::bf16, DType::i64}) {
      if (!Case::runs(t)) continue;
      Case c;
      NodeId x = c.input(t, {33, 7}, random), index = c.index({31, 5}, 33, random), source = c.input(t, {31, 5}, random);
      c.node = c.graph.add(op, {x, index, source}, {{0}, {}, nullptr});
      c.in_place = true;
      c.check(op == Op::scatter ? 0 : 32);
    }
  }
}

// Bad indices are reported and skipped; all other updates are still applied.
template <class Case>
void scatter_reports_indices_out_of_range() {
  for (Op op : {Op::scatter, Op::scatter_add}) {
    for (int64_t n : {4, 40000}) {
      for (int64_t bad : {int64_t(-1), int64_t(3), INT64_MIN, INT64_MAX}) {
        Case c;
        std::vector<double> at(size_t(n), 1.0), source(size_t(n), 0.0);
        source[0] = 5;
        NodeId x = c.input(reference::from_values({DType::f32, {3}}, std::vector<double>{7, 8, 9}));
        reference::Array index = reference::from_values({DType::i64, {n}}, at);
        index.i[size_t(n) - 1] = bad;
        NodeId i = c.input(index), s = c.input(reference::from_values({DType::f32, {n}}, source));
        c.node = c.graph.add(op, {x, i, s}, {{0}, {}, nullptr});
        const reference::Array out = c.results()[0];
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

template <class Case>
void take_grad_sums_the_rows_of_every_index() {
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
  Random random(4);
  for (const TakeShape& s : shapes) {
    for (DType t : kAllDTypes) {
      if (!Case::runs(t, s.g.numel())) continue;
      Case c;
      Shape g = s.g;
      if (s.index.rank() == 0) g = s.axis == 0 && s.g.rank() == 2 ? Shape{64} : Shape{};
      if (s.index.rank() == 2 && s.axis == 1) g = {3, 30, 50, 33};
      NodeId grad = c.input(t, g, random), index = c.index(s.index, s.size, random);
      c.node = c.graph.add(Op::take_grad, {grad, index}, {{s.axis, s.size}, {}, nullptr});
      c.check(s.index.numel());
    }
  }
}

// A single token may fill a whole batch: its sum is split among units, and the bits must not depend on the split.
template <class Case>
void take_grad_shares_out_one_frequent_index() {
  Random random(5);
  for (DType t : {DType::f32, DType::bf16, DType::f16, DType::i32}) {
    if (!Case::runs(t)) continue;
    for (int64_t often : {0, 3, 6}) {
      Case c;
      reference::Array index = reference::zeros({DType::i64, {2500}});
      for (int64_t& i : index.i) i = random.below(10) < 9 ? often : random.below(7);
      NodeId grad = c.input(t, {2500, 67}, random), i = c.input(index);
      c.node = c.graph.add(Op::take_grad, {grad, i}, {{0, 7}, {}, nullptr});
      c.check(2500);
    }
  }
}

template <class Case>
void take_grad_reports_indices_out_of_range() {
  for (int64_t inner : {1, 64}) {
    for (int64_t bad : {int64_t(-1), int64_t(3), INT64_MIN, INT64_MAX}) {
      Case c;
      reference::Array g = reference::zeros({DType::f32, {4, inner}}), index = reference::zeros({DType::i64, {4}});
      std::fill(g.f.begin(), g.f.end(), 2.0);
      index.i = {2, bad, 0, 2};
      NodeId grad = c.input(g), i = c.input(index);
      c.node = c.graph.add(Op::take_grad, {grad, i}, {{0, 3}, {}, nullptr});
      const reference::Array out = c.results()[0];
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

template <class Case>
void take_grad_reports_any_index_into_nothing() {
  Case c;
  NodeId grad = c.input(reference::zeros({DType::f32, {2, 3}})), index = c.input(reference::zeros({DType::i64, {2}}));
  c.node = c.graph.add(Op::take_grad, {grad, index}, {{0, 0}, {}, nullptr});
  c.results();
  EXPECT_EQ(c.fault_limit, 0);
}

template <class Case>
void dynamic_update_slice_writes_at_clamped_starts() {
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
  Random random(6);
  for (const auto& s : shapes) {
    for (DType t : kAllDTypes) {
      if (!Case::runs(t, s.x.numel())) continue;
      for (bool in_place : {false, true}) {
        Case c;
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

inline const double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

// Runs every kernel of this kind on the op table's samples.
template <class Case>
void node_kernels_agree_with_the_reference_on_all_samples() {
  Random random(10);
  for (Op op : {Op::scatter, Op::scatter_add, Op::take_grad, Op::fold, Op::cumsum, Op::dynamic_update_slice, Op::sort, Op::pad}) {
    row(op).samples([&](const Sample& sample) {
      Case c;
      for (const Sample::Operand& o : sample.in)
        if (row(op).max_in < 0 || int(c.inputs.size()) < row(op).max_in) c.input(draw(o, sample.avoid, random));
      c.node = c.graph.add(op, c.inputs, sample.attrs);
      const bool moves = op == Op::scatter || op == Op::dynamic_update_slice || op == Op::sort || op == Op::pad;
      c.check(moves ? 0 : 128);
    });
  }
}

template <class Case>
void pad_fills_between_and_around() {
  struct {
    Shape x;
    std::vector<int64_t> pads;
  } const cases[] = {
      {{7}, {2, 3, 1}},
      {{1}, {0, 0, 5}},
      {{0}, {2, 1, 3}},
      {{3, 5}, {1, 0, 0, 2, 1, 3}},
      {{3, 5}, {1, 0, 0, 2, 2, 0}},
      {{0, 2}, {1, 1, 1, 1, 2, 1}},
      {{2, 3, 7}, {0, 1, 2, 2, 0, 1, 1, 0, 2}},
      {{2, 3, 31, 33}, {0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1}},
      {{}, {}},
      {{50021}, {3, 7, 1}},
      {{3, 33000}, {1, 40000, 0, 2, 1, 0}},
      {{3, 0}, {0, 2, 1, 1, 1, 0}},
  };
  Random random(11);
  for (const auto& p : cases) {
    for (DType t : kAllDTypes) {
      if (!Case::runs(t, p.x.numel())) continue;
      for (double value : {0.0, 1.0, 3.0}) {
        Case c;
        NodeId x = c.input(t, p.x, random);
        c.node = c.graph.add(Op::pad, {x}, {p.pads, {value}, nullptr});
        c.check(0);
      }
    }
  }
}

template <class Case>
void pad_fills_with_infinity() {
  Random random(12);
  for (DType t : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    if (!Case::runs(t)) continue;
    Case c;
    NodeId x = c.input(t, {3, 5}, random);
    c.node = c.graph.add(Op::pad, {x}, {{1, 1, 0, 2, 0, 1}, {-kInf}, nullptr});
    c.check(0);
  }
}

template <class Case>
void fold_sums_all_taps_of_an_element() {
  struct {
    Shape x;
    int axis;
    int64_t size, stride, dilation;
  } const cases[] = {
      {{33}, 0, 3, 1, 1},         {{1}, 0, 1, 1, 1},      {{2, 31}, 1, 3, 2, 2},        {{9, 5}, 0, 4, 3, 1},       {{31, 7, 3}, 1, 2, 5, 3},
      {{3, 17, 5}, 0, 2, 1, 2},   {{7}, 0, 7, 1, 1},      {{2, 3, 33, 31}, 2, 3, 2, 1}, {{2, 3, 8, 8}, 3, 2, 2, 1}, {{0, 9}, 1, 3, 1, 1},
      {{3, 50, 301}, 1, 5, 1, 2}, {{12000}, 0, 11, 4, 6}, {{12, 8209}, 0, 3, 2, 1},
  };
  Random random(13);
  for (const auto& f : cases) {
    for (DType t : kAllDTypes) {
      if (!Case::runs(t, f.x.numel())) continue;
      Case c;
      Shape g = f.x;
      g[f.axis] = (g[f.axis] - ((f.size - 1) * f.dilation + 1)) / f.stride + 1;
      g.push_back(f.size);
      NodeId x = c.input(t, g, random);
      c.node = c.graph.add(Op::fold, {x}, {{f.axis, f.size, f.stride, f.dilation, f.x[f.axis]}, {}, nullptr});
      c.check(f.size);
    }
  }
}

template <class Case>
void cumsum_runs_from_both_ends() {
  struct {
    Shape x;
    int axis;
  } const cases[] = {{{33}, 0},    {{1}, 0},        {{0, 3}, 0},    {{0, 3}, 1},        {{7, 31}, 0},  {{7, 31}, 1},  {{3, 5, 7}, 1},
                     {{50021}, 0}, {{3, 17011}, 1}, {{701, 67}, 0}, {{2, 101, 301}, 1}, {{500, 3}, 1}, {{9001, 3}, 0}};
  Random random(14);
  for (const auto& s : cases) {
    for (DType t : kAllDTypes) {
      if (!Case::runs(t, s.x.numel())) continue;
      for (bool reverse : {false, true}) {
        Case c;
        NodeId x = c.input(t, s.x, random, 0.1, 1);
        c.node = c.graph.add(Op::cumsum, {x}, {{s.axis, reverse}, {}, nullptr});  // the builder would widen small integers, so add the node directly
        c.in_place = s.x[0] == 7;
        c.check(s.x[s.axis]);
      }
    }
  }
}

template <class Case>
void sort_keeps_equal_keys_in_order() {
  struct {
    Shape x;
    int axis;
  } const cases[] = {{{33}, 0},      {{1}, 0},      {{0, 3}, 0},      {{7, 31}, 0}, {{7, 31}, 1},   {{3, 5, 7}, 1},
                     {{3, 1009}, 1}, {{211, 3}, 0}, {{2, 193, 5}, 1}, {{70001}, 0}, {{66000, 2}, 0}};
  Random random(15);
  for (const auto& s : cases) {
    for (DType t : kAllDTypes) {
      if (!Case::runs(t, s.x.numel())) continue;
      if (s.x.numel() > 60000 && t != DType::f32 && t != DType::bf16 && t != DType::i64) continue;  // the reference is slow
      for (bool descending : {false, true}) {
        Case c;
        reference::Array x = draw({t, s.x}, random, 0, 2);
        const double spread = t == DType::u8 ? 200 : s.x.numel() > 60000 ? 30000 : 20;  // many ties
        for (double& v : x.f) v = std::floor(random.uniform(-spread, spread)) / 2;
        if (t != DType::boolean)
          for (int64_t& v : x.i) v = random.below(10) ? int64_t(random.uniform(t == DType::u8 ? 0 : -spread, spread)) : 0;
        NodeId id = c.input(x);
        c.node = c.graph.add(Op::sort, {id}, {{s.axis, descending}, {}, nullptr});
        c.check(0);
      }
    }
  }
}

template <class Case>
void sort_puts_nan_last_and_zeros_together() {
  std::vector<double> v = {0.0, kNaN, -kInf, -0.0, 1.0, kInf, -kNaN, -0.0, 0.0, -1.0, -1e-30, 1e-30};
  for (int64_t n : {12, 500}) {
    std::vector<double> many(static_cast<size_t>(n));
    for (size_t i = 0; i < many.size(); ++i) many[i] = v[i * 7 % 12];
    for (DType t : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      if (!Case::runs(t)) continue;
      for (bool descending : {false, true}) {
        Case c;
        NodeId id = c.input(reference::from_values({t, {n}}, many));
        c.node = c.graph.add(Op::sort, {id}, {{0, descending}, {}, nullptr});
        c.check(0);
      }
    }
  }
}

template <class Case>
void sort_orders_extreme_integers() {
  for (DType t : {DType::i32, DType::i64}) {
    if (!Case::runs(t)) continue;
    for (bool descending : {false, true}) {
      Case c;
      reference::Array x = reference::zeros({t, {300}});
      Random random(16);
      const int64_t low = t == DType::i32 ? INT32_MIN : INT64_MIN, high = t == DType::i32 ? INT32_MAX : INT64_MAX;
      for (int64_t& i : x.i) i = random.below(3) == 0 ? low + random.below(5) : random.below(2) ? high - random.below(5) : random.below(9) - 4;
      NodeId id = c.input(x);
      c.node = c.graph.add(Op::sort, {id}, {{0, descending}, {}, nullptr});
      c.check(0);
    }
  }
}

template <class Case>
void sort_gives_only_what_is_wanted() {
  Random random(17);
  for (std::vector<bool> wanted : {std::vector<bool>{true, false}, {false, true}, {false, false}}) {
    for (Shape s : {Shape{5, 33}, Shape{1, 70000}}) {
      Case c;
      NodeId id = c.input(DType::f32, s, random);
      c.node = c.graph.add(Op::sort, {id}, {{1, 0}, {}, nullptr});
      c.wanted = wanted;
      c.check(0);
    }
  }
}

}  // namespace ridge::test::node_laws
