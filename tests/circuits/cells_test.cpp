// Every cell and mode against double precision: outputs, final states and gradients through 50 steps; and the laws that hold for all of them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "circuits/fixture.h"
#include "support/errors.h"

namespace ridge {
namespace {

using test::distance, test::error_of, test::has, test::same_bits;

// f32 against double, errors of 50 steps included; the largest seen are 3e-6 for values and 2e-5 for gradients.
constexpr double kClose = 2e-5, kGradientClose = 2e-4;

Tensor weighted_sum(const Tensor& y) { return sum(y * cos(reshape(iota({y.size()}, 0, DType::f32), y.shape()))); }

// TEST_CIRCUITS_DEVICE=cuda runs all tests of circuits on another device.
class OnDevice : public testing::Environment {
  void SetUp() override {
    if (const char* device = std::getenv("TEST_CIRCUITS_DEVICE")) use_device(device);
  }
};
[[maybe_unused]] const auto* const on_device = testing::AddGlobalTestEnvironment(new OnDevice);

TEST(Cells, MatchDoublePrecision) {
  const test::CircuitFixture fixture;
  ASSERT_EQ(fixture.cases().size(), 32u);
  for (const std::string& name : fixture.cases()) {
    SCOPED_TRACE(name);
    Circuit circuit = fixture.circuit(name);
    const CircuitOutput out = circuit(fixture(name + ".x"), fixture.sequence_args(name));
    std::vector<Tensor> weights;
    std::vector<std::string> names;
    for (const NamedTensor& p : parameters(circuit))
      if (p.rule != ParameterRule::constant) weights.push_back(*p.tensor), names.push_back(p.name);
    const std::vector<Tensor> gradients = grad(weighted_sum(out.output), weights);
    std::vector<Tensor> all = gradients;
    all.push_back(out.output);
    all.insert(all.end(), out.state.begin(), out.state.end());
    EXPECT_LT(distance(out.output, fixture(name + ".y")), kClose);
    for (size_t i = 0; i < out.state.size(); ++i) EXPECT_LT(distance(out.state[i], fixture(name + ".state" + std::to_string(i))), kClose) << "state " << i;
    for (size_t i = 0; i < names.size(); ++i) EXPECT_LT(distance(gradients[i], fixture(name + ".gradient." + names[i])), kGradientClose) << names[i];
  }
}

// A batch is many sequences: row b of any batch equals the run of that sequence alone, in every layout.
TEST(Cells, TreatSequencesOfABatchAlike) {
  const test::CircuitFixture fixture;
  for (const char* name : {"cfc", "ltc", "ctgru", "cfc_wired", "lstm"}) {
    SCOPED_TRACE(name);
    CircuitArgs args = fixture.args(name);
    const Circuit circuit = fixture.circuit(name);
    args.batch_first = false;
    const Circuit time_major = fixture.filled(name, args);
    for (int64_t batch : {1, 17, 1057}) {
      const int64_t steps = batch > 100 ? 3 : 7;
      const Tensor x = sin(reshape(iota({batch * steps * 3}, 0, DType::f32) * 0.37, {batch, steps, 3}));
      SequenceArgs a, turned;
      if (fixture.has(std::string(name) + ".timespans")) {
        a.timespans = 1.2 + cos(reshape(iota({batch * steps}, 0, DType::f32), {batch, steps}));
        turned.timespans = transpose(a.timespans);
      }
      const CircuitOutput out = circuit(x, a), other = time_major(transpose(x, 0, 1), turned);
      EXPECT_LT(distance(transpose(other.output, 0, 1), out.output), 1e-6);
      for (int64_t row : {int64_t(0), batch / 2, batch - 1}) {
        SequenceArgs one;
        if (a.timespans.defined()) one.timespans = reshape(slice(a.timespans, 0, row, row + 1), {steps, 1});
        const CircuitOutput alone = circuit(reshape(slice(x, 0, row, row + 1), {steps, 3}), one);
        EXPECT_LT(distance(alone.output, reshape(slice(out.output, 0, row, row + 1), {steps, circuit.outputs()})), 1e-5) << batch << " row " << row;
        EXPECT_EQ(alone.state[0].shape().rank(), 1);
      }
    }
  }
}

// The same times in every form, also if batch = hidden, where a row of times could be taken for a row of units.
TEST(Cells, TakeTimespansInEveryForm) {
  const test::CircuitFixture fixture;
  for (const char* name : {"cfc", "cfc_pure", "ltc", "eltc", "ctgru"})
    for (int64_t batch : {int64_t(4), int64_t(5), int64_t(2)}) {  // 4 and 5 units, 2 outputs
      SCOPED_TRACE(name);
      const Circuit circuit = fixture.circuit(name);
      const int64_t steps = 4;
      const Tensor x = sin(reshape(iota({batch * steps * 3}, 0, DType::f32), {batch, steps, 3}));
      auto run = [&](const Tensor& t) {
        SequenceArgs a;
        a.timespans = t;
        return circuit(x, a).output;
      };
      const Tensor each = 0.5 + iota({steps}, 0, DType::f32) * 0.25, table = expand(reshape(each, {1, steps}), {batch, steps});
      EXPECT_LT(distance(run(table), run(each)), 1e-6);
      EXPECT_LT(distance(run(reshape(table, {batch, steps, 1})), run(each)), 1e-6);
      EXPECT_LT(distance(run(0.7), run(full({batch, steps}, 0.7))), 1e-6);
      EXPECT_LT(distance(run(1.0), run({})), 1e-5);
      // Each sequence has its own times.
      const Tensor own = 0.5 + reshape(iota({batch * steps}, 0, DType::f32), {batch, steps}) * 0.1;
      for (int64_t row = 0; row < batch; ++row) {
        SequenceArgs a;
        a.timespans = reshape(slice(own, 0, row, row + 1), {steps});
        EXPECT_LT(
            distance(circuit(reshape(slice(x, 0, row, row + 1), {steps, 3}), a).output, reshape(slice(run(own), 0, row, row + 1), {steps, circuit.outputs()})),
            1e-5);
      }
    }
}

TEST(Cells, KeepTheStateWhenNoTimePasses) {
  const test::CircuitFixture fixture;
  for (const char* name : {"ltc", "ltc_explicit", "eltc", "eltc_semi_implicit", "ctrnn", "node"}) {
    SCOPED_TRACE(name);
    Circuit circuit = fixture.circuit(name);
    const int64_t units = circuit.zero_state(1)[0].shape()[1];
    const Tensor start = sin(reshape(iota({3 * units}, 0, DType::f32) * 1.7, {3, units}));
    SequenceArgs a;
    a.state = {start}, a.timespans = 0.0;
    const CircuitOutput out = circuit(full({3, 5, 3}, 0.3), a);
    EXPECT_TRUE(same_bits(out.state[0], start));
    for (const NamedTensor& p : parameters(circuit)) {
      if (!p.name.ends_with(".w") && !p.name.ends_with("weight")) continue;
      for (float g : grad(sum(circuit(full({3, 5, 3}, 0.3), a).output), {*p.tensor})[0].to_floats()) EXPECT_EQ(g, 0) << p.name;
    }
  }
}

TEST(Cells, RunZeroAndOneSteps) {
  const test::CircuitFixture fixture;
  for (const std::string& name : fixture.cases()) {
    SCOPED_TRACE(name);
    const Circuit circuit = fixture.circuit(name);
    const CircuitOutput none = circuit(Tensor::zeros({2, 0, 3}));
    EXPECT_EQ(none.output.size(), circuit.args().return_sequences ? 0 : 2 * circuit.outputs());
    for (const Tensor& s : none.state)
      for (float v : s.to_floats()) EXPECT_EQ(v, 0);
    const Tensor x = full({2, 1, 3}, 0.4);
    const CircuitOutput one = circuit(x);
    EXPECT_EQ(one.output.size(), 2 * circuit.outputs());
    if (circuit.args().bidirectional) continue;
    const CircuitOutput step = circuit.step(full({2, 3}, 0.4), circuit.zero_state(2));
    EXPECT_LT(distance(reshape(one.output, step.output.shape()), step.output), 1e-6);
  }
}

// A sequence in two parts, with the state handed over, is the sequence in one.
TEST(Cells, ContinueFromAState) {
  const test::CircuitFixture fixture;
  for (const char* name : {"cfc", "cfc_relu_mixed", "ltc", "ctgru", "lstm", "cfc_wired_pure_mixed"}) {
    SCOPED_TRACE(name);
    const Circuit circuit = fixture.circuit(name);
    const Tensor x = fixture(std::string(name) + ".x");
    const CircuitOutput whole = circuit(x), first = circuit(slice(x, 1, 0, 20));
    SequenceArgs a;
    a.state = first.state;
    const CircuitOutput second = circuit(slice(x, 1, 20, 50), a);
    EXPECT_LT(distance(concat({first.output, second.output}, 1), whole.output), 1e-5);
    EXPECT_LT(distance(second.state[0], whole.state[0]), 1e-5);
  }
}

TEST(Cells, FreezeTheStateAfterTheEnd) {
  const test::CircuitFixture fixture;
  const int64_t lengths[] = {7, 0, 3, 1};
  for (const char* name : {"cfc", "ltc", "gru", "cfc_bidirectional", "gru_last_bidirectional"}) {
    SCOPED_TRACE(name);
    const Circuit circuit = fixture.circuit(name);
    const Tensor x = sin(reshape(iota({4 * 7 * 3}, 0, DType::f32), {4, 7, 3}));
    SequenceArgs a;
    a.lengths = Tensor({4}, std::span<const int64_t>(lengths));
    const CircuitOutput out = circuit(x, a);
    for (int64_t row = 0; row < 4; ++row) {
      const int64_t n = lengths[row];
      const CircuitOutput alone = circuit(slice(slice(x, 0, row, row + 1), 1, 0, n));
      for (size_t i = 0; i < out.state.size(); ++i) EXPECT_LT(distance(slice(out.state[i], 0, row, row + 1), alone.state[i]), 1e-5) << row;
      const Tensor mine = slice(out.output, 0, row, row + 1);
      if (!circuit.args().return_sequences) {
        EXPECT_LT(distance(mine, alone.output), 1e-5) << row;
        continue;
      }
      EXPECT_LT(distance(slice(mine, 1, 0, n), alone.output), 1e-5) << row;
      for (float v : slice(mine, 1, n, 7).to_floats()) EXPECT_EQ(v, 0);
    }
  }
}

TEST(Cells, DropOutDifferentlyInEveryStep) {
  CircuitArgs args;
  args.inputs = 2, args.units = 3, args.backbone_units = 16, args.backbone_layers = 2, args.backbone_dropout = 0.5;
  seed(3);
  const Circuit circuit(args);
  const Tensor x = full({1, 4, 2}, 1);
  SequenceArgs train;
  train.training = true;
  // The first output depends on the first draw alone. Feeding every step the same state shows whether the draws differ.
  std::vector<std::vector<float>> outputs;
  const Tensor y = circuit(x, train).output, again = circuit(x, train).output, quiet = circuit(x).output;
  EXPECT_FALSE(same_bits(y, again));
  EXPECT_FALSE(same_bits(y, quiet));
  EXPECT_TRUE(same_bits(circuit(x).output, quiet));
  CircuitArgs memoryless = args;
  const Circuit plain(memoryless, [&](int64_t inputs) {
    struct Dropper : Cell {
      explicit Dropper(int64_t n) : Cell(n, n, {n}, true) {}
      std::vector<Tensor> step(const Tensor& x, const std::vector<Tensor>&, const Tensor&, bool) const override { return {dropout(x, 0.5)}; }
      void visit(Visitor&) override {}
    };
    return std::make_unique<Dropper>(inputs);
  });
  const std::vector<float> drops = plain(full({1, 64, 2}, 1), train).output.to_floats();
  int changes = 0;
  for (size_t i = 2; i < drops.size(); ++i) changes += drops[i] != drops[i - 2];
  EXPECT_GT(changes, 30);  // 63 on average
  EXPECT_LT(changes, 96);
}

TEST(Cells, NameTheWrongNumber) {
  auto fails = [](CircuitArgs a, const char* part) {
    const auto error = error_of([&] { Circuit c(a); });
    EXPECT_TRUE(has(error, part)) << (error ? error->what() : "no error") << ", wanted " << part;
  };
  auto with = [](auto change) {
    CircuitArgs a;
    a.inputs = 3, a.units = 4;
    change(a);
    return a;
  };
  fails(with([](auto& a) { a.cell = "cfcc"; }), "did you mean 'cfc'");
  fails(with([](auto& a) { a.mode = "purer"; }), "\"purer\"");
  fails(with([](auto& a) { a.units = 0; }), "units 0");
  fails(with([](auto& a) { a.inputs = -2; }), "inputs -2");
  fails(with([](auto& a) { a.layers = 0; }), "layers is 0");
  fails(with([](auto& a) { a.projection = -1; }), "projection is -1");
  fails(with([](auto& a) { a.backbone_dropout = 1.5; }), "1.5");
  fails(with([](auto& a) { a.backbone_dropout = 0.1; }), "no effect with backbone_layers 1");
  fails(with([](auto& a) { a.cell = "ltc", a.backbone_units = 77; }), "backbone_units 77 has no effect on a ltc");
  fails(with([](auto& a) { a.units = 0, a.wiring = {Wiring::fully_connected(9, 2)}, a.backbone_layers = 2; }),
        "backbone_layers 2 has no effect on a wired cfc");
  fails(with([](auto& a) { a.units = 0, a.inputs = 0, a.wiring = {Wiring::fully_connected(9, 2)}; }), "9 units is not built");
  fails(with([](auto& a) { a.wiring = {Wiring::fully_connected(9, 2)}; }), "units is 4, but the wiring has 9");
  fails(with([](auto& a) {
          Wiring w = Wiring::fully_connected(9, 2);
          w.build(8), a.units = 0, a.wiring = {w};
        }),
        "built for 8 inputs, but the layer has 3");
  fails(with([](auto& a) { a.cell = "lstm", a.units = 0, a.wiring = {Wiring::fully_connected(9, 2)}; }), "a wiring has no effect");
  fails(with([](auto& a) { a.cell = "lstm", a.mixed_memory = true; }), "lstm is not one");
  fails(with([](auto& a) { a.cell = "ltc", a.ode_unfolds = -3; }), "ode_unfolds is -3");
  fails(with([](auto& a) { a.cell = "gru", a.ode_unfolds = 3; }), "ode_unfolds 3 has no effect");
  fails(with([](auto& a) { a.cell = "ltc", a.epsilon = 0; }), "epsilon is 0");

  CircuitArgs a;
  a.inputs = 3, a.units = 4;
  const Circuit circuit(a);
  auto run = [&](const Tensor& x, SequenceArgs s) { return error_of([&] { circuit(x, s).output.eval(); }); };
  const Tensor x = full({2, 5, 3}, 0.5);
  auto states = [](std::vector<Tensor> s) {
    SequenceArgs args;
    args.state = std::move(s);
    return args;
  };
  EXPECT_TRUE(has(run(full({2, 5, 4}, 0), {}), "[2, 5, 4]"));
  EXPECT_TRUE(has(run(x, states({full({2, 5}, 0)})), "state 0 is [2, 5], needs [2, 4]"));
  EXPECT_TRUE(has(run(x, states({full({4}, 0)})), "state 0 is [4], needs [2, 4]"));
  EXPECT_TRUE(has(run(x, states({full({2, 4}, 0), full({2, 4}, 0)})), "2 states given, the circuit has 1"));
  auto times = [](const Tensor& t) {
    SequenceArgs args;
    args.timespans = t;
    return args;
  };
  EXPECT_TRUE(has(run(x, times(full({2, 4}, 1))), "timespans [2, 4] do not fit 2 sequences of 5 steps"));
  EXPECT_TRUE(has(run(x, times(full({2}, 1))), "use a scalar, [5], [2, 5] or [2, 5, 1]"));
  auto at = [&](float value) { return Tensor({2, 5}, {1, 1, 1, 1, 1, 1, 1, value, 1, 1}); };
  EXPECT_TRUE(has(run(x, times(at(-0.5))), "timespan -0.5 at position 7"));
  EXPECT_TRUE(has(run(x, times(at(NAN))), "timespan nan at position 7"));
  EXPECT_TRUE(has(run(x, times(at(INFINITY))), "timespan inf at position 7"));
  EXPECT_TRUE(has(run(x, times(at(-INFINITY))), "timespan -inf at position 7"));
  EXPECT_TRUE(has(run(x, times(-2.0)), "timespan -2 at position 0"));
  EXPECT_FALSE(run(x, times(at(0))));
  auto ends = [](int64_t first, int64_t second) {
    const int64_t both[] = {first, second};
    SequenceArgs args;
    args.lengths = Tensor({2}, std::span<const int64_t>(both));
    return args;
  };
  EXPECT_TRUE(has(run(x, ends(5, 6)), "length 6 of sequence 1 is out of range: the sequences have 5 steps"));
  EXPECT_TRUE(has(run(x, ends(-1, 5)), "length -1 of sequence 0"));
  EXPECT_FALSE(run(x, ends(0, 5)));
  CircuitArgs lstm;
  lstm.cell = "lstm", lstm.inputs = 3, lstm.units = 2;
  const Circuit untimed(lstm);
  EXPECT_TRUE(has(error_of([&] { untimed(x, times(0.5)); }), "lstm cell does not use timespans"));
}

}  // namespace
}  // namespace ridge
