// Padding, overlapping sums, running sums and sorting, for every dtype, along every axis.
#include <limits>

#include "base/error.h"
#include "cpu_nodes/node_case.h"

namespace ridge::cpu {
namespace {

const double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

// Every kernel of this kind against the samples that the op table gives for it.
TEST(NodeKernels, AgreeWithTheReferenceOnAllSamples) {
  test::Random random(10);
  for (Op op : {Op::scatter, Op::scatter_add, Op::take_grad, Op::fold, Op::cumsum, Op::dynamic_update_slice, Op::sort, Op::pad}) {
    row(op).samples([&](const Sample& sample) {
      NodeCase c;
      for (const Sample::Operand& o : sample.in)
        if (row(op).max_in < 0 || int(c.inputs.size()) < row(op).max_in) c.input(test::draw(o, sample.avoid, random));
      c.node = c.graph.add(op, c.inputs, sample.attrs);
      const bool moves = op == Op::scatter || op == Op::dynamic_update_slice || op == Op::sort || op == Op::pad;
      c.check(moves ? 0 : 128);
    });
  }
}

TEST(NodeKernels, RefuseOtherNodes) {
  Graph g;
  NodeId x = g.input({DType::f32, {3}}, "x");
  EXPECT_THROW(make_node_kernel(g, Builder(g).neg(x)), Error);
}

TEST(Pad, FillsBetweenAndAround) {
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
  test::Random random(11);
  for (const auto& p : cases) {
    for (DType t : kAllDTypes) {
      for (double value : {0.0, 1.0, 3.0}) {
        NodeCase c;
        NodeId x = c.input(t, p.x, random);
        c.node = c.graph.add(Op::pad, {x}, {p.pads, {value}, nullptr});
        c.check(0);
      }
    }
  }
}

TEST(Pad, FillsWithInfinity) {
  test::Random random(12);
  for (DType t : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    NodeCase c;
    NodeId x = c.input(t, {3, 5}, random);
    c.node = c.graph.add(Op::pad, {x}, {{1, 1, 0, 2, 0, 1}, {-kInf}, nullptr});
    c.check(0);
  }
}

TEST(Fold, SumsAllTapsOfAnElement) {
  struct {
    Shape x;
    int axis;
    int64_t size, stride, dilation;
  } const cases[] = {
      {{33}, 0, 3, 1, 1},         {{1}, 0, 1, 1, 1},      {{2, 31}, 1, 3, 2, 2},        {{9, 5}, 0, 4, 3, 1},       {{31, 7, 3}, 1, 2, 5, 3},
      {{3, 17, 5}, 0, 2, 1, 2},   {{7}, 0, 7, 1, 1},      {{2, 3, 33, 31}, 2, 3, 2, 1}, {{2, 3, 8, 8}, 3, 2, 2, 1}, {{0, 9}, 1, 3, 1, 1},
      {{3, 50, 301}, 1, 5, 1, 2}, {{12000}, 0, 11, 4, 6}, {{12, 8209}, 0, 3, 2, 1},
  };
  test::Random random(13);
  for (const auto& f : cases) {
    for (DType t : kAllDTypes) {
      NodeCase c;
      Shape g = f.x;
      g[f.axis] = (g[f.axis] - ((f.size - 1) * f.dilation + 1)) / f.stride + 1;
      g.push_back(f.size);
      NodeId x = c.input(t, g, random);
      c.node = c.graph.add(Op::fold, {x}, {{f.axis, f.size, f.stride, f.dilation, f.x[f.axis]}, {}, nullptr});
      c.check(f.size);
    }
  }
}

TEST(Cumsum, RunsFromBothEnds) {
  struct {
    Shape x;
    int axis;
  } const cases[] = {{{33}, 0},    {{1}, 0},        {{0, 3}, 0},    {{0, 3}, 1},        {{7, 31}, 0},  {{7, 31}, 1},  {{3, 5, 7}, 1},
                     {{50021}, 0}, {{3, 17011}, 1}, {{701, 67}, 0}, {{2, 101, 301}, 1}, {{500, 3}, 1}, {{9001, 3}, 0}};
  test::Random random(14);
  for (const auto& s : cases) {
    for (DType t : kAllDTypes) {
      for (bool reverse : {false, true}) {
        NodeCase c;
        NodeId x = c.input(t, s.x, random, 0.1, 1);
        c.node = c.graph.add(Op::cumsum, {x}, {{s.axis, reverse}, {}, nullptr});  // the builder would widen small integers
        c.in_place = s.x[0] == 7;
        c.check(s.x[s.axis]);
      }
    }
  }
}

TEST(Sort, KeepsEqualKeysInOrder) {
  struct {
    Shape x;
    int axis;
  } const cases[] = {{{33}, 0},      {{1}, 0},      {{0, 3}, 0},      {{7, 31}, 0}, {{7, 31}, 1},   {{3, 5, 7}, 1},
                     {{3, 1009}, 1}, {{211, 3}, 0}, {{2, 193, 5}, 1}, {{70001}, 0}, {{66000, 2}, 0}};
  test::Random random(15);
  for (const auto& s : cases) {
    for (DType t : kAllDTypes) {
      if (s.x.numel() > 60000 && t != DType::f32 && t != DType::bf16 && t != DType::i64) continue;  // the reference is slow
      for (bool descending : {false, true}) {
        NodeCase c;
        Array x = test::draw({t, s.x}, random, 0, 2);
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

TEST(Sort, PutsNaNLastAndZerosTogether) {
  std::vector<double> v = {0.0, kNaN, -kInf, -0.0, 1.0, kInf, -kNaN, -0.0, 0.0, -1.0, -1e-30, 1e-30};
  for (int64_t n : {12, 500}) {
    std::vector<double> many(static_cast<size_t>(n));
    for (size_t i = 0; i < many.size(); ++i) many[i] = v[i * 7 % 12];
    for (DType t : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      for (bool descending : {false, true}) {
        NodeCase c;
        NodeId id = c.input(reference::from_values({t, {n}}, many));
        c.node = c.graph.add(Op::sort, {id}, {{0, descending}, {}, nullptr});
        c.check(0);
      }
    }
  }
}

TEST(Sort, OrdersExtremeIntegers) {
  for (DType t : {DType::i32, DType::i64}) {
    for (bool descending : {false, true}) {
      NodeCase c;
      Array x = reference::zeros({t, {300}});
      test::Random random(16);
      const int64_t low = t == DType::i32 ? INT32_MIN : INT64_MIN, high = t == DType::i32 ? INT32_MAX : INT64_MAX;
      for (int64_t& i : x.i) i = random.below(3) == 0 ? low + random.below(5) : random.below(2) ? high - random.below(5) : random.below(9) - 4;
      NodeId id = c.input(x);
      c.node = c.graph.add(Op::sort, {id}, {{0, descending}, {}, nullptr});
      c.check(0);
    }
  }
}

TEST(Sort, GivesOnlyWhatIsWanted) {
  test::Random random(17);
  for (std::vector<bool> wanted : {std::vector<bool>{true, false}, {false, true}, {false, false}}) {
    for (Shape s : {Shape{5, 33}, Shape{1, 70000}}) {
      NodeCase c;
      NodeId id = c.input(DType::f32, s, random);
      c.node = c.graph.add(Op::sort, {id}, {{1, 0}, {}, nullptr});
      c.wanted = wanted;
      c.check(0);
    }
  }
}

// Large problems have work for sixteen threads in every step that costs something.
TEST(NodeKernels, ShareOutLargeProblems) {
  Graph g;
  Builder b(g);
  auto input = [&](DType t, Shape s) { return g.input({t, s}, "x"); };
  auto i64 = [&](Shape s) { return input(DType::i64, s); };
  const DType f32 = DType::f32;
  const NodeId nodes[] = {
      g.add(Op::take_grad, {input(f32, {8192, 768}), i64({8192})}, {{0, 50257}, {}, nullptr}),
      g.add(Op::take_grad, {input(f32, {16384, 384}), i64({16384})}, {{0, 65}, {}, nullptr}),
      b.scatter_add(input(f32, {50000}), i64({1000000}), input(f32, {1000000}), 0),
      b.scatter(input(f32, {4096, 4096}), i64({4096, 64}), input(f32, {4096, 64}), 1),
      b.cumsum(input(f32, {4000000}), 0),
      b.cumsum(input(f32, {64, 50257}), 1),
      b.cumsum(input(f32, {50257, 64}), 0),
      b.sort(input(f32, {2000000}), 0).first,
      b.sort(input(f32, {64, 50257}), 1).first,
      g.add(Op::fold, {input(f32, {32, 64, 31, 64, 3})}, {{2, 3, 2, 1, 63}, {}, nullptr}),
      g.add(Op::pad, {input(f32, {32, 64, 31, 64})}, {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}, {0}, nullptr}),
      g.add(Op::pad, {input(f32, {1000000})}, {{0, 0, 1}, {0}, nullptr}),
      g.add(Op::dynamic_update_slice, {input(f32, {4096, 4096}), input(f32, {4096, 2000}), i64({}), i64({})}, {}),
  };
  for (NodeId id : nodes) {
    const NodeId node = g[id].op == Op::get ? g[id].in[0] : id;
    auto kernel = make_node_kernel(g, node);
    std::vector<Ref> refs;
    for (size_t i = 0; i < g[node].in.size() + g[node].types.size(); ++i) refs.push_back({int32_t(i), 0});
    std::vector<Task> tasks;
    kernel->bind(refs, {int32_t(refs.size()), 0}, tasks);
    double total = 0;
    for (const Task& t : tasks) total += double(t.units) * t.unit_ns;
    for (const Task& t : tasks) {
      if (double(t.units) * t.unit_ns > 0.06 * total) {
        EXPECT_GE(t.units, 16) << to_string(g, std::vector{node});
      }
    }
  }
}

}  // namespace
}  // namespace ridge::cpu
