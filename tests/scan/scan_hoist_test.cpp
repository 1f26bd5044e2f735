// Hoisting work out of a loop over time changes no value, and leaves in the loop only what must be there.
#include "compile/scan_hoist.h"

#include <gtest/gtest.h>

#include "autograd/gradient_check.h"
#include "measure/default_team.h"
#include "ops/harness.h"
#include "scan/bodies.h"

namespace ridge::test {
namespace {

// The same formula, term for term, in double precision: only the order of sums differs.
void expect_same(const Graph& graph, const std::vector<NodeId>& roots, const Values& values, const std::string& label) {
  Graph moved;
  std::unordered_map<NodeId, NodeId> known;
  Values moved_values;
  for (const auto& [id, v] : values) known[id] = moved.input(graph.type(id), graph.input_name(id)), moved_values[known[id]] = v;
  std::vector<NodeId> copy = import_nodes(moved, graph, roots, known);
  HoistedScans h = hoist_scans(moved, copy);
  std::vector<reference::Array> want = reference::evaluate(graph, roots, values), got = reference::evaluate(moved, h.roots, moved_values);
  for (size_t i = 0; i < roots.size(); ++i) EXPECT_TRUE(close(got[i], want[i], {1e-9, 1e-9})) << label << ", result " << i;
}

struct LoopCase {
  size_t cell;
  LoopSize size;
};

std::vector<LoopCase> loop_cases() {
  std::vector<LoopCase> out;
  for (size_t cell = 0; cell < cells().size(); ++cell)
    for (int64_t steps : {0, 1, 2, 7, 31})
      for (int variant = 0; variant < 4; ++variant) {
        LoopSize s;
        s.steps = steps, s.reverse = variant & 1, s.reset = variant & 2;
        out.push_back({cell, s});
      }
  return out;
}

std::string name_of(const LoopCase& c) {
  return std::string(cells()[c.cell].name) + "_" + std::to_string(c.size.steps) + (c.size.reverse ? "_reverse" : "") + (c.size.reset ? "_reset" : "");
}

class Hoisted : public ::testing::TestWithParam<LoopCase> {};

TEST_P(Hoisted, ChangesNoValue) {
  LoopCase c = GetParam();
  Loop loop = make_loop(cells()[c.cell], c.size);
  Builder b(loop.graph);
  std::vector<NodeId> all = loop.results, grads = gradients(loop.graph, mixed_loss(b, loop.results), loop.wrt);
  all.insert(all.end(), grads.begin(), grads.end());
  expect_same(loop.graph, all, loop.values, name_of(c));
  // With a single result, different parts become dead.
  for (NodeId r : loop.results) {
    NodeId one[] = {r};
    expect_same(loop.graph, {r}, loop.values, name_of(c) + " alone");
    expect_same(loop.graph, gradients(loop.graph, mixed_loss(b, one), loop.wrt), loop.values, name_of(c) + " gradients alone");
  }
}

TEST_P(Hoisted, RunsLikeTheReference) {
  LoopCase c = GetParam();
  if (c.size.steps == 2) return;  // enough short ones
  Loop loop = make_loop(cells()[c.cell], c.size);
  Builder b(loop.graph);
  std::vector<NodeId> all = loop.results, grads = gradients(loop.graph, mixed_loss(b, loop.results), loop.wrt);
  all.insert(all.end(), grads.begin(), grads.end());
  std::vector<reference::Array> want = reference::evaluate(loop.graph, all, loop.values);
  for (const char* passes : {"", "-scan_hoist"}) {
    std::vector<Bytes> got = run_compiled(loop.graph, loop.inputs, all, loop.values, passes, 2);
    for (size_t i = 0; i < all.size(); ++i) {
      double largest = 1;
      for (double v : want[i].f) largest = std::max(largest, std::fabs(v));
      // Every step adds the rounding of its sums to the carries.
      double length = double(1 + c.size.steps) * double(c.size.batch + c.size.inputs + c.size.width);
      EXPECT_TRUE(close(reference::from_bytes(want[i].type, got[i].data()), want[i], {0, 4 * 0x1p-23 * length * largest}))
          << name_of(c) << " \"" << passes << "\", result " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Loops, Hoisted, ::testing::ValuesIn(loop_cases()), [](const auto& info) { return name_of(info.param); });

TEST(HoistedGradients, SecondDerivatives) {
  for (const Cell& cell : cells())
    for (bool reset : {false, true}) {
      LoopSize s{.steps = 3, .batch = 2, .inputs = 2, .width = 2, .reverse = reset, .reset = reset};
      Loop loop = make_loop(cell, s);
      std::vector<NodeId> cotangents, grads = expect_gradients(loop.graph, loop.results, loop.wrt, loop.values, cell.name, 7, &cotangents);
      std::vector<NodeId> second = expect_gradients(loop.graph, grads, loop.wrt, loop.values, std::string(cell.name) + " twice", 8);
      expect_same(loop.graph, second, loop.values, std::string(cell.name) + " second derivative");
    }
}

// Counts products inside the loops of a graph, and outside.
struct Products {
  int inside = 0, outside = 0, loops = 0;
};
Products count_products(const Graph& g, const std::vector<NodeId>& roots) {
  Products p;
  for (NodeId id : topological(g, roots)) {
    p.outside += g[id].op == Op::matmul;
    if (g[id].op != Op::scan) continue;
    ++p.loops;
    const ScanBody& body = scan_view(g[id]).body;
    std::vector<NodeId> inner = body.carry_out;
    inner.insert(inner.end(), body.step_out.begin(), body.step_out.end());
    p.inside += count_products(body.graph, inner).outside;
  }
  return p;
}

Products hoisted_products(const char* name, bool backward, std::vector<std::string>* notes = nullptr) {
  for (const Cell& cell : cells()) {
    if (std::string(cell.name) != name) continue;
    Loop loop = make_loop(cell, {});
    Builder b(loop.graph);
    std::vector<NodeId> roots = backward ? gradients(loop.graph, mixed_loss(b, loop.results), loop.wrt) : loop.results;
    HoistedScans h = hoist_scans(loop.graph, roots);
    if (notes) *notes = h.notes;
    return count_products(loop.graph, h.roots);
  }
  return {};
}

TEST(HoistedPins, Lstm) {
  Products forward = hoisted_products("lstm", false);
  EXPECT_EQ(forward.inside, 1) << "h · W";
  EXPECT_EQ(forward.outside, 1) << "x · W for all steps";
  std::vector<std::string> notes;
  Products both = hoisted_products("lstm", true, &notes);
  EXPECT_EQ(both.inside, 2) << "h · W, and dh of each step";
  EXPECT_EQ(both.outside, 5) << "x · W (which backward shares), h · W again, dx, and the gradients of both weights";
  EXPECT_EQ(both.loops, 2);
  EXPECT_EQ(notes.size(), 2u);
}

TEST(HoistedPins, Cfc) {
  Products forward = hoisted_products("cfc", false);
  EXPECT_EQ(forward.inside, 4) << "h · W of the shared layer and three heads";
  EXPECT_EQ(forward.outside, 2) << "x · W before, the readout after";
  Products both = hoisted_products("cfc", true);
  EXPECT_EQ(both.inside, 4 + 4) << "and backward: dz of three heads and dh";
  EXPECT_EQ(both.loops, 2);
}

TEST(HoistedPins, LoopsWithoutRecurrenceDisappear) {
  Graph g;
  Builder b(g);
  auto body = std::make_shared<ScanBody>();
  Builder s(body->graph);
  NodeId x = body->graph.input({DType::f32, {3}}, "x"), sum = body->graph.input({DType::f32, {3}}, "sum");
  body->sequence_in = {x}, body->carry_in = {sum}, body->carry_out = {s.add(sum, x)}, body->step_out = {s.square(x)};
  NodeId xs = g.input({DType::f32, {5, 3}}, "xs"), zero = b.full({3}, DType::f32, 0);
  ScanResult r = scan(g, body, {&zero, 1}, {&xs, 1}, {}, 5);
  std::vector<NodeId> roots = {r.carry[0], r.outputs[0]};
  for (NodeId id : topological(g, hoist_scans(g, roots).roots)) EXPECT_NE(g[id].op, Op::scan);
}

// acc' = acc + x_t and acc - x_t, where the sum over an axis may have a different type than its terms.
TEST(Hoisted, SumsKeepTheirType) {
  for (DType type : {DType::boolean, DType::u8, DType::i32, DType::i64, DType::f32})
    for (Op op : {Op::add, Op::sub}) {
      auto body = std::make_shared<ScanBody>();
      body->carry_in = {body->graph.input({type, {5}}, "sum")}, body->sequence_in = {body->graph.input({type, {5}}, "x")};
      body->carry_out = {body->graph.add(op, {body->carry_in[0], body->sequence_in[0]}, {})};
      Graph g;
      std::vector<NodeId> inputs = {g.input({type, {5}}, "sum"), g.input({type, {4, 5}}, "x")};
      Random random(3);
      Values values;
      for (NodeId id : inputs) values[id] = draw(g.type(id), random, 0, type == DType::boolean ? 2 : 200);
      std::vector<NodeId> sum = scan(g, body, {&inputs[0], 1}, {&inputs[1], 1}, {}, 4).carry;
      reference::Array want = reference::evaluate(g, sum, values, reference::Rounding::stored)[0];
      reference::Array got = reference::from_bytes(want.type, run_compiled(g, inputs, sum, values, "", 1)[0].data());
      EXPECT_TRUE(close(got, want, {0x1p-20, 0})) << name(op) << " of " << name(type);
    }
}

// A product after the loop reads it through a tensor that cannot take a time axis.
TEST(Hoisted, FullRankTensorsHaveNoRoomForTime) {
  for (bool view : {false, true}) {
    auto body = std::make_shared<ScanBody>();
    Builder inner(body->graph);
    body->carry_in = {body->graph.input({DType::f32, {4, 4}}, "h")}, body->sequence_in = {body->graph.input({DType::f32, {4, 4}}, "x")};
    body->constant_in = {body->graph.input({DType::f32, {16, 3}}, "w")};
    NodeId h = inner.unary(Op::tanh, inner.add(body->carry_in[0], body->sequence_in[0]));
    NodeId full = inner.permute(inner.reshape(h, {2, 2, 1, 1, 2, 2, 1, 1}), {0, 4, 2, 3, 1, 5, 6, 7});
    NodeId rows = inner.reshape(view ? full : inner.unary(Op::sin, full), {1, 16});
    body->carry_out = {h}, body->step_out = {inner.matmul(rows, body->constant_in[0])};
    Graph g;
    std::vector<NodeId> inputs = {g.input({DType::f32, {4, 4}}, "h"), g.input({DType::f32, {6, 4, 4}}, "x"), g.input({DType::f32, {16, 3}}, "w")};
    Random random(3);
    Values values;
    for (NodeId id : inputs) values[id] = draw(g.type(id), random, -1, 1);
    ScanResult r = scan(g, body, {&inputs[0], 1}, {&inputs[1], 1}, {&inputs[2], 1}, 6);
    expect_same(g, {r.outputs[0], r.carry[0]}, values, view ? "view" : "value");
    HoistedScans hoisted = hoist_scans(g, r.outputs);
    EXPECT_NE(hoisted.notes.at(0).find("1 after it"), std::string::npos) << hoisted.notes[0];
  }
}

// A number that is a constant outside is one in the body, where it takes part in arithmetic on constants.
TEST(HoistedLoops, KnowTheNumbersOfTheirConstants) {
  Graph g;
  Builder b(g);
  const Shape shape = {4, 3};
  const NodeId h = g.input({DType::f32, shape}, "h"), half = b.reshape(b.full({3}, DType::f32, 0.5), {1, 3});
  auto body = std::make_shared<ScanBody>();
  Builder s(body->graph);
  body->carry_in = {body->graph.input({DType::f32, shape}, "h")}, body->constant_in = {body->graph.input(g.type(half), "half")};
  body->carry_out = {s.unary(Op::sin, s.add(body->carry_in[0], s.mul(s.expand(body->constant_in[0], shape), 4.0)))};
  const ScanResult r = scan(g, body, {&h, 1}, {}, {&half, 1}, 5);
  const std::vector<NodeId> roots = hoist_scans(g, r.carry).roots;
  int loops = 0;
  for (NodeId id : topological(g, roots))
    if (g[id].op == Op::scan) {
      EXPECT_EQ(g[id].in.size(), 1u) << "the carry only";
      ++loops;
    }
  EXPECT_EQ(loops, 1);
  Random random(3);
  expect_same(g, r.carry, {{h, draw(g.type(h), random, -1, 1)}}, "with a number");
}

// A recurrent picture in two groups of channels: what is read from it and what is written to it are convolutions. If `sliced`, a later step needs only some
// columns of the picture, and the output needs others.
Loop convolution_loop(bool sliced) {
  Loop loop;
  Random random(5);
  auto input = [&](const Shape& shape, const char* name) {
    const NodeId id = loop.graph.input({DType::f32, shape}, name);
    loop.inputs.push_back(id), loop.wrt.push_back(id);
    loop.values[id] = draw({DType::f32, shape}, random, -0.4, 0.4);
    for (double& v : loop.values[id].f) v = reference::round_to(DType::f32, v);
    return id;
  };
  const Shape picture = {2, 8, 5, 5}, x = {2, 4, 5, 5}, own = {8, 4, 3, 3}, from_x = {8, 2, 3, 3}, readout = {8, 4, 3, 3};
  const NodeId h0 = input(picture, "h"), xs = input({4, x[0], x[1], x[2], x[3]}, "x");
  const std::vector<NodeId> weights = {input(own, "own"), input(from_x, "from_x"), input(readout, "readout")};
  auto body = std::make_shared<ScanBody>();
  Builder s(body->graph);
  const NodeId h = body->graph.input({DType::f32, picture}, "h"), x_t = body->graph.input({DType::f32, x}, "x");
  for (NodeId w : weights) body->constant_in.push_back(body->graph.input(loop.graph.type(w), "weight"));
  const ConvOptions same{.padding_low = {1, 1}, .padding_high = {1, 1}, .groups = 2};
  const NodeId mine = s.conv(h, body->constant_in[0], same);
  const NodeId read = s.conv(x_t, body->constant_in[1], same), columns[] = {s.slice(mine, 3, 0, 3), s.slice(read, 3, 3, 5)};
  const NodeId next = s.unary(Op::tanh, sliced ? s.concat(columns, 3) : s.add(mine, read));
  const NodeId seen = sliced ? s.slice(mine, 3, 2, 5) : next;
  body->carry_in = {h}, body->sequence_in = {x_t}, body->carry_out = {next};
  body->step_out = {s.conv(seen, body->constant_in[2], {.stride = {2, 2}, .padding_low = {1, 1}, .padding_high = {1, 1}, .groups = 2})};
  const ScanResult r = scan(loop.graph, body, {&h0, 1}, {&xs, 1}, weights, 4);
  loop.results = {r.outputs[0], r.carry[0]};
  return loop;
}

// Nodes of a kind in the bodies of loops, and outside.
std::pair<int, int> count_nodes(const Graph& g, const std::vector<NodeId>& roots, Op op) {
  int inside = 0, outside = 0;
  for (NodeId id : topological(g, roots)) {
    outside += g[id].op == op;
    if (g[id].op != Op::scan) continue;
    const ScanBody& body = scan_view(g[id]).body;
    std::vector<NodeId> inner = body.carry_out;
    inner.insert(inner.end(), body.step_out.begin(), body.step_out.end());
    inside += count_nodes(body.graph, inner, op).second;
  }
  return {inside, outside};
}

TEST(HoistedConvolutions, ChangeNoValue) {
  for (bool sliced : {false, true}) {
    Loop loop = convolution_loop(sliced);
    Builder b(loop.graph);
    std::vector<NodeId> all = loop.results, grads = gradients(loop.graph, mixed_loss(b, loop.results), loop.wrt);
    all.insert(all.end(), grads.begin(), grads.end());
    const std::string label = sliced ? "sliced" : "whole";
    expect_same(loop.graph, all, loop.values, label);
    std::vector<reference::Array> want = reference::evaluate(loop.graph, all, loop.values);
    for (const char* passes : {"", "-scan_hoist"}) {
      std::vector<Bytes> got = run_compiled(loop.graph, loop.inputs, all, loop.values, passes, 2);
      for (size_t i = 0; i < all.size(); ++i) {
        double largest = 1;
        for (double v : want[i].f) largest = std::max(largest, std::fabs(v));
        EXPECT_TRUE(close(reference::from_bytes(want[i].type, got[i].data()), want[i], {0, 4 * 0x1p-23 * 5 * 72 * largest}))  // 5 sums of 72 terms
            << label << " \"" << passes << "\", result " << i;
      }
    }
  }
}

TEST(HoistedConvolutions, StayWhole) {
  Loop loop = convolution_loop(false);
  Builder b(loop.graph);
  const std::vector<NodeId> forward = hoist_scans(loop.graph, loop.results).roots;
  EXPECT_EQ(count_nodes(loop.graph, forward, Op::conv), std::pair(1, 2)) << "inside: h with its weights; outside: x before the loop, the readout after it";
  EXPECT_EQ(count_nodes(loop.graph, forward, Op::matmul), std::pair(0, 0));

  const std::string dump = Executable(loop.graph, loop.inputs, loop.results, default_backend()).dump();
  int kernels = 0;
  for (size_t at = dump.find("  conv"); at != dump.npos; at = dump.find("  conv", at + 1)) ++kernels;
  EXPECT_EQ(kernels, 3) << dump;

  const std::vector<NodeId> grads = hoist_scans(loop.graph, gradients(loop.graph, mixed_loss(b, loop.results), loop.wrt)).roots;
  const auto [inside, outside] = count_nodes(loop.graph, grads, Op::conv);
  EXPECT_EQ(inside, 2) << "h with its weights, and dh of each step";
  EXPECT_GE(outside, 2 + 2) << "as forward, then dx and the gradient of what is read out";
}

// Kernels of the compiled program: how often a product over all steps runs, and what remains in a step.
TEST(HoistedPins, KernelsOfAStep) {
  struct Pin {
    size_t cell;
    std::vector<std::string> loops;
  };
  // rnn: one product with everything after it fused; backward a map and dh. lstm: a product and the gates; backward the gates and dh.
  // cfc: the shared layer and three heads; backward a map, dz of three heads with its sum, and dh.
  for (const Pin& pin : {Pin{0, {"scan[7x1]", "scan[7x2]"}}, Pin{1, {"scan[7x2]", "scan[7x2]"}}, Pin{2, {"scan[7x4]", "scan[7x5]"}}}) {
    Loop loop = make_loop(cells()[pin.cell], {.batch = 32, .inputs = 64, .width = 64});
    Builder b(loop.graph);
    Executable exe(loop.graph, loop.inputs, gradients(loop.graph, mixed_loss(b, loop.results), loop.wrt), default_backend());
    std::vector<std::string> loops;
    for (const KernelReport& k : exe.report().kernels)
      if (k.name.substr(0, 4) == "scan") loops.push_back(k.name);
    EXPECT_EQ(loops, pin.loops) << cells()[pin.cell].name << "\n" << exe.dump();
  }
}

TEST(HoistedPins, BytesMatchTheSequences) {
  LoopSize s{.steps = 50, .batch = 16, .inputs = 24, .width = 32};
  Loop loop = make_loop(cells()[1], s);
  Builder b(loop.graph);
  std::vector<NodeId> grads = gradients(loop.graph, mixed_loss(b, loop.results), loop.wrt);
  int64_t bytes[2];
  for (int hoisted : {0, 1}) {
    CompileOptions o(default_backend());
    o.passes = hoisted ? "" : "-scan_hoist";
    bytes[hoisted] = Executable(loop.graph, loop.inputs, grads, o).report().arena_bytes;
  }
  int64_t gates = s.steps * s.batch * 4 * s.width * 4;
  EXPECT_LE(bytes[1], bytes[0] + 3 * gates) << "pre-activations of forward and backward, and their gradients";
}

}  // namespace
}  // namespace ridge::test
