// One driver over the op table: checks every op, sample and operand layout against the reference.
#pragma once
#include <cstdlib>
#include <limits>
#include <set>

#include "graph/builder.h"
#include "ops/tolerance.h"

namespace ridge::test {

// How operands reach the op and what consumes its result: all of these are views or neighbours that the compiler may fuse into it.
enum class Layout { contiguous, permuted, sliced, broadcast, flipped, produced, consumed, count };

inline const char* name(Layout l) {
  static const char* names[] = {"contiguous", "permuted", "sliced", "broadcast", "flipped", "produced", "consumed"};
  return names[int(l)];
}

inline bool full_product() {
  const char* full = std::getenv("RIDGE_FULL");
  return full && std::string(full) == "1";
}

struct OpCase {
  Graph graph;
  std::vector<NodeId> inputs, operands, outputs;
  NodeId node = kNone;
  Values values;
};

// An operand as a view of a larger or permuted input.
inline NodeId laid_out(OpCase& c, const Sample::Operand& operand, double avoid, Layout layout, Random& random) {
  Builder b(c.graph);
  const Shape& s = operand.type.shape;
  auto bound = [&](Shape shape, double scale = 1) {
    NodeId id = c.graph.input({operand.type.dtype, shape}, "x" + std::to_string(c.inputs.size()));
    Sample::Operand wide = operand;
    wide.type.shape = shape;
    reference::Array v = draw(wide, avoid, random);
    for (double& x : v.f) x = reference::round_to(operand.type.dtype, x) * scale;  // round to the values an input can hold
    c.inputs.push_back(id);
    c.values[id] = std::move(v);
    return id;
  };
  switch (layout) {
    case Layout::permuted: {
      Shape reversed, axes;
      for (int i = s.rank() - 1; i >= 0; --i) reversed.push_back(s[i]), axes.push_back(i);
      return b.permute(bound(reversed), axes);
    }
    case Layout::sliced: {
      Shape larger;
      for (int64_t d : s) larger.push_back(2 * d + 1);
      NodeId x = bound(larger);
      for (int i = 0; i < s.rank(); ++i) x = b.slice(x, i, 1, 2 * s[i] + 1, 2);
      return x;
    }
    case Layout::broadcast: {
      Shape smaller = s;
      if (s.rank() > 0) smaller[int(random.below(s.rank()))] = 1;
      return b.expand(bound(smaller), s);
    }
    case Layout::flipped: return s.rank() ? b.flip(bound(s), {}) : bound(s);
    case Layout::produced: return is_float(operand.type.dtype) ? b.mul(bound(s, 2), 0.5) : bound(s);
    default: return bound(s);
  }
}

inline OpCase make_case(Op op, const Sample& sample, Layout layout, uint64_t seed) {
  OpCase c;
  Random random(seed);
  for (const Sample::Operand& operand : sample.in) {
    if (row(op).max_in >= 0 && int(c.operands.size()) == row(op).max_in) break;
    c.operands.push_back(laid_out(c, operand, sample.avoid, layout, random));
  }
  c.node = c.graph.add(op, c.operands, sample.attrs);
  size_t many = c.graph[c.node].types.size();
  if (many == 1) c.outputs = {c.node};
  Builder b(c.graph);
  for (size_t i = 0; many > 1 && i < many; ++i) c.outputs.push_back(b.get(c.node, int(i)));
  if (layout == Layout::consumed)
    for (NodeId& o : c.outputs) {
      Shape axes;
      for (int i = b.shape(o).rank() - 1; i >= 0; --i) axes.push_back(i);
      o = b.permute(b.unary(b.dtype(o) == DType::boolean ? Op::logical_not : Op::relu, o), axes);
    }
  return c;
}

inline void check_case(Op op, const Sample& sample, Layout layout, uint64_t seed, bool all_threads, bool all_passes) {
  OpCase c = make_case(op, sample, layout, seed);
  SCOPED_TRACE(describe(op, sample) + ", " + name(layout));
  std::vector<reference::Array> want = reference::evaluate(c.graph, c.outputs, c.values, reference::Rounding::stored);
  std::vector<reference::Array> operands = reference::evaluate(c.graph, c.operands, c.values, reference::Rounding::stored);
  std::vector<Bytes> got = run_compiled(c.graph, c.inputs, c.outputs, c.values, "", 2);
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    Tolerance t = tolerance(c.graph, c.node, want[i].type.dtype, operands);
    EXPECT_TRUE(close(reference::from_bytes(want[i].type, got[i].data()), want[i], t)) << "result " << i;
  }
  for (int threads : {1, 3, 4}) {
    if (!all_threads) break;
    EXPECT_TRUE(run_compiled(c.graph, c.inputs, c.outputs, c.values, "", threads) == got) << threads << " threads";
  }
  if (!all_passes) return;
  for (const char* passes : {"-fuse", "-simplify,-fuse", "-plan"}) {
    std::vector<Bytes> other = run_compiled(c.graph, c.inputs, c.outputs, c.values, passes, 2);
    for (size_t i = 0; i < c.outputs.size(); ++i) {
      bool one_order = has_one_order(op) || std::string(passes) == "-plan";
      EXPECT_TRUE(!one_order || other[i] == got[i]) << "result " << i << " with passes " << passes;
      Tolerance t = tolerance(c.graph, c.node, want[i].type.dtype, operands);
      EXPECT_TRUE(close(reference::from_bytes(want[i].type, other[i].data()), want[i], t)) << "result " << i << " with passes " << passes;
    }
  }
}

// Calls the function for every op and dtype in every layout, or with `all` for every combination, with the case's index and whether it is the first of its
// kind.
template <class Case>
void for_each_case(Op op, bool all, const Case& given) {
  std::set<std::pair<std::string, Layout>> seen;
  uint64_t number = 0;
  row(op).samples([&](Sample sample) {
    ++number;
    std::string types;  // operand dtypes, and a cast's target: each set compiles to a different kernel
    int64_t elements = 1;
    for (const auto& o : sample.in) types += std::string(name(o.type.dtype)) + " ", elements *= o.type.shape.numel();
    if (op == Op::cast) types += std::to_string(sample.attrs.ints[0]);
    for (int l = 0; l < int(Layout::count); ++l) {
      Layout layout = Layout(l);
      bool first = elements > 1 && seen.insert({types, layout}).second;
      bool wanted = first || layout == Layout::contiguous || (number * 7 + uint64_t(l)) % 6 == 0;
      if (wanted || all) given(sample, layout, uint64_t(op) * 100000 + number * 10 + uint64_t(l), first || all);
    }
  });
}

// Devices on which cases are expensive run at most `most` of them.
inline void check_op(Op op, bool all, int most = std::numeric_limits<int>::max()) {
  for_each_case(op, all, [&](const Sample& sample, Layout layout, uint64_t seed, bool first) {
    if (--most >= 0) check_case(op, sample, layout, seed, first && !other_device(), first);
  });
}

inline std::vector<int> ops_with_samples() {
  std::vector<int> ops;
  for (int i = 0; i < int(Op::count); ++i)
    if (row(Op(i)).samples) ops.push_back(i);
  return ops;
}

}  // namespace ridge::test
