// Circuits inside compiled training steps: masks, positivity, faults, resume; and step by step without allocations.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/text.h"
#include "circuits/fixture.h"
#include "eager/eager_device.h"
#include "ridge/ridge.h"
#include "step/compiled_step.h"
#include "support/allocations.h"
#include "support/errors.h"
#include "support/sanitized.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

using test::distance, test::error_of, test::has, test::same_bits;

// A circuit before and behind a user's own layers.
struct Net {
  explicit Net(const CircuitArgs& args) : in(2, args.inputs), rnn(args), out(rnn.outputs(), 1) {}
  Tensor operator()(const Tensor& x, const Tensor& timespans = {}) const { return out(rnn(tanh(in(x)), {.timespans = timespans}).output); }
  void visit(Visitor& v) { v("in", in)("rnn", rnn)("out", out); }
  Linear in;
  Circuit rnn;
  Linear out;
};

CircuitArgs ltc_args(bool implicit) {
  CircuitArgs a;
  a.cell = "ltc", a.inputs = 3, a.wiring = {Wiring::auto_ncp(9, 2)}, a.implicit_constraints = implicit, a.ode_unfolds = 2;
  return a;
}

Tensor wave(const Shape& shape, double speed) { return sin(reshape(iota({shape.numel()}, 0, DType::f32) * speed, shape)); }

Step learner(Net& net, const Optimizer& optimizer) {
  return step(net, optimizer, [&net](const std::vector<Tensor>& b) { return mse(net(b[0], b[2]), b[1]); });
}
const std::vector<BatchSpec> kBatch = {{{4, 5, 2}}, {{4, 5, 1}}, {{4, 5}}};
std::vector<Tensor> batch() { return {wave({4, 5, 2}, 0.7), wave({4, 5, 1}, 1.9), 1 + wave({4, 5}, 3) * 0.5}; }

std::vector<std::vector<float>> values(Net& net) {
  std::vector<std::vector<float>> all;
  for (const NamedTensor& p : parameters(net)) all.push_back(p.tensor->to_floats());
  return all;
}

TEST(CircuitTraining, LeavesAbsentSynapsesUntouched) {
  seed(4);
  const Wiring few = Wiring::auto_ncp(9, 2), lists = Wiring::random(18, 2, 0.8);  // of the second an LTC makes lists of synapses
  for (const auto& [cell, wiring] : {std::pair("ltc", few), {"cfc", few}, {"eltc", few}, {"ctrnn", few}, {"ltc", lists}}) {
    SCOPED_TRACE(fmt::format("{}, {} units", cell, wiring.units()));
    CircuitArgs args;
    args.cell = cell, args.inputs = 3, args.wiring = {wiring};
    Net net(args);
    const std::vector<std::vector<float>> before = values(net);
    std::vector<NamedTensor> all = parameters(net);
    CompiledStep compiled = learner(net, adamw({.lr = 0.05, .decay = 0.1})).compile(kBatch);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(compiled.run(batch()).applied);
    size_t absent = 0, changed = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      const std::vector<float> now = all[i].tensor->to_floats();
      // In dense weights of a wired model a 0 is an absent synapse: others are drawn from continuous ranges.
      for (size_t k = 0; k < now.size(); ++k)
        if (all[i].rule == ParameterRule::constant || (before[i][k] == 0 && all[i].decay)) {
          EXPECT_EQ(std::memcmp(&now[k], &before[i][k], sizeof(float)), 0) << all[i].name;
          ++absent;
        } else {
          changed += now[k] != before[i][k];
        }
    }
    EXPECT_GT(absent, 50u);
    EXPECT_GT(changed, 30u);
  }
}

TEST(CircuitTraining, AbsentSynapsesHaveNoGradient) {
  const test::CircuitFixture fixture;
  for (const char* name : {"ltc", "ltc_lists", "ltc_explicit", "cfc_wired", "eltc_euler_wired"}) {
    SCOPED_TRACE(name);
    Circuit circuit = fixture.circuit(name);
    size_t absent = 0;
    for (const NamedTensor& p : parameters(circuit)) {
      if (p.rule == ParameterRule::constant || !p.decay || p.name.find("time_") != std::string::npos) continue;
      const bool ltc = circuit.args().cell == "ltc", sensory = p.name.find(ltc ? "sensory" : "input_map") != std::string::npos;
      const std::string prefix = p.name.substr(0, p.name.find('.', p.name.find("layer_") == std::string::npos ? 0 : p.name.find("layer_")));
      const Tensor mask =
          fixture(std::string(name) + ".weights." + prefix + "." + (sensory && prefix == "rnn_cell" ? "sensory_sparsity_mask" : "sparsity_mask"));
      const Tensor oriented = ltc || circuit.args().cell == "cfc" ? mask : transpose(mask);
      const std::vector<float> there = oriented.to_floats();
      const std::vector<float> g = grad(sum(square(circuit(fixture(std::string(name) + ".x")).output)), {*p.tensor})[0].to_floats();
      ASSERT_EQ(g.size(), there.size()) << p.name;
      for (size_t i = 0; i < g.size(); ++i) {
        if (there[i] != 0) continue;
        EXPECT_EQ(g[i], 0) << p.name;
        ++absent;
      }
    }
    EXPECT_GE(absent, 4u);
  }
}

TEST(CircuitTraining, ProjectsExplicitParametersInTheUpdate) {
  seed(4);
  Net net(ltc_args(false));
  CompiledStep compiled = learner(net, sgd({.lr = 50})).compile(kBatch);  // so large that many parameters would turn negative
  size_t projected = 0;
  for (int i = 0; i < 3; ++i) compiled.run(batch());
  for (const NamedTensor& p : parameters(net))
    for (float v : p.tensor->to_floats()) {
      if (p.rule != ParameterRule::nonnegative) continue;
      EXPECT_GE(v, 0) << p.name;
      projected += v == 0;
    }
  EXPECT_GT(projected, 60u);  // 9 x 9 synapses, some of them present
}

TEST(CircuitTraining, ResumesWithExplicitPositivity) {
  const test::TempFolder folder;
  auto train = [&](const std::string& out, int64_t steps) {
    seed(4);
    Net net(ltc_args(false));
    const Step s = step(net, adamw({.lr = 0.1, .decay = 0.1}), [&net](const std::vector<Tensor>& b) { return mse(net(b[0]), b[1]); });
    TrainerArgs t;
    t.steps = steps, t.batch = 4, t.rate = TrainerArgs::Rate::constant, t.out = out, t.show = false, t.checkpoint_interval = 3;
    const TrainingResult r = Trainer(s, Data{wave({12, 5, 2}, 0.7), wave({12, 5, 1}, 1.9)}, t).run();
    EXPECT_TRUE(r.finished()) << r.reason;
    for (const NamedTensor& p : parameters(net)) {
      if (p.rule != ParameterRule::nonnegative) continue;
      for (float v : p.tensor->to_floats()) EXPECT_GE(v, 0) << p.name;
    }
    return values(net);
  };
  const auto whole = train(folder / "whole", 6);
  train(folder / "parts", 3);
  EXPECT_EQ(train(folder / "parts", 6), whole);
}

TEST(CircuitTraining, ReportsBadTimespansOfACompiledStep) {
  seed(4);
  Net net(ltc_args(true));
  CompiledStep compiled = learner(net, adamw()).compile(kBatch);
  EXPECT_TRUE(compiled.run(batch()).applied);
  for (const auto& [value, said] : {std::pair(-0.25f, "-0.25"), {NAN, "nan"}, {INFINITY, "inf"}, {-INFINITY, "-inf"}}) {
    std::vector<Tensor> bad = batch();
    std::vector<float> times(20, 1.0f);
    times[13] = value;
    bad[2] = Tensor({4, 5}, times);
    EXPECT_TRUE(has(error_of([&] { compiled.run(bad); }), fmt::format("timespan {} at position 13", said).c_str())) << value;
    EXPECT_TRUE(compiled.run(batch()).applied) << "after " << value;
  }
}

// Splitting a batch changes only the order of sums.
TEST(CircuitTraining, TrainsInMicroBatches) {
  for (const char* cell : {"cfc", "ltc", "ctgru", "lstm"}) {
    SCOPED_TRACE(cell);
    auto train = [&](int64_t micro) {
      seed(9);
      CircuitArgs args;
      args.cell = cell, args.inputs = 3, args.units = 4;
      Net net(args);
      const bool timed = std::string(cell) != "lstm";
      const Step s = step(net, sgd({.lr = 0.1}), [&](const std::vector<Tensor>& b) { return mse(net(b[0], timed ? b[2] : Tensor()), b[1]); });
      CompiledStep compiled = s.compile(kBatch, {.micro = micro});
      for (int i = 0; i < 3; ++i) compiled.run(batch());
      return values(net);
    };
    const auto whole = train(4), split = train(1);
    for (size_t i = 0; i < whole.size(); ++i)
      for (size_t k = 0; k < whole[i].size(); ++k) EXPECT_NEAR(whole[i][k], split[i][k], 1e-5 * (1 + std::abs(whole[i][k])));
  }
}

// Gradients through 50 steps of a compiled step, against double precision, also when loops are computed in stretches to save memory.
TEST(CircuitTraining, HasTheRightGradients) {
  const test::CircuitFixture fixture;
  for (const char* name : {"cfc", "cfc_relu_mixed", "cfc_wired", "ltc", "ltc_lists", "ctgru", "eltc"})
    for (const Recompute level : {Recompute::free, Recompute::segments}) {
      SCOPED_TRACE(name);
      Circuit circuit = fixture.circuit(name);
      auto loss = [&](const std::vector<Tensor>& b) {
        const Tensor y = circuit(b[0], {.timespans = b[1]}).output;
        return Loss{sum(y * cos(reshape(iota({y.size()}, 0, DType::f32), y.shape()))), 1.0};
      };
      StepOptions options;
      options.recompute = level, options.evaluation = false;
      // Without a decay of its mean, the optimizer's first moment is the gradient, and can be read from any device.
      const auto state = compile_step(Step(parameters(circuit), adam({.lr = 0, .beta1 = 0}), loss), {{{2, 50, 3}}, {{2, 50}}}, options, detail::eager_device());
      start_step(state, detail::eager_device(), false);
      const Tensor x = fixture(std::string(name) + ".x"), t = fixture(std::string(name) + ".timespans");
      const void* data[] = {x.data(), t.data()};
      state->step.run(data);
      const std::vector<NamedTensor> all = parameters(circuit);
      for (size_t i = 0; i < all.size(); ++i) {
        std::vector<float> moment(size_t(all[i].tensor->size()));
        if (all[i].rule != ParameterRule::constant) state->step.read(TrainStep::Held::first, i, moment);
        const Tensor got = Tensor(all[i].tensor->shape(), moment);
        const Tensor want = fixture(std::string(name) + ".gradient." + all[i].name);
        EXPECT_LT(distance(got, all[i].rule == ParameterRule::constant ? full(got.shape(), 0) : want), 2e-4) << all[i].name;
      }
    }
}

// Only products that read the state stay in the loop: those of x run before it, for all steps at once.
TEST(CircuitTraining, LeavesFewProductsInTheLoop) {
  for (const auto& [cell, inside] : {std::pair{"cfc", 2}, {"lstm", 1}, {"gru", 1}, {"mingru", 0}, {"ltc", 0}, {"ctrnn", 6}, {"ctgru", 3}}) {
    seed(9);
    CircuitArgs args;
    args.cell = cell, args.inputs = 3, args.units = 4;
    Net net(args);
    const Step s = step(net, sgd({.lr = 0.1}), [&](const std::vector<Tensor>& b) { return mse(net(b[0]), b[1]); });
    const std::string dump = s.compile({{{4, 5, 2}}, {{4, 5, 1}}}).dump();
    EXPECT_NE(dump.find(fmt::format("scan of 5 steps: {} in the loop", counted(inside, "product"))), std::string::npos) << cell << "\n" << dump.substr(0, 400);
  }
}

TEST(CircuitStreams, GiveTheSequenceStepByStep) {
  const test::CircuitFixture fixture;
  for (const std::string& name : fixture.cases()) {
    SCOPED_TRACE(name);
    const Circuit circuit = fixture.circuit(name);
    if (circuit.args().bidirectional) {
      EXPECT_TRUE(has(error_of([&] { CircuitStream s(circuit); }), "bidirectional"));
      continue;
    }
    CircuitStream stream(circuit, 2);
    const std::vector<float> x = fixture(name + ".x").to_floats();  // [2, 50, 3]
    std::vector<float> now(6), y;
    for (int round = 0; round < 2; ++round, stream.reset())
      for (size_t t = 0; t < 50; ++t) {
        for (size_t b = 0; b < 2; ++b) std::copy_n(x.begin() + long((b * 50 + t) * 3), 3, now.begin() + long(3 * b));
        const std::span<const float> out = stream.step(now, 0.5f);
        if (t == 49) y.assign(out.begin(), out.end());
      }
    SequenceArgs a;
    if (name != "lstm" && name != "gru" && name != "mingru") a.timespans = 0.5;
    Tensor whole = circuit(fixture(name + ".x"), a).output;
    if (circuit.args().return_sequences) whole = reshape(slice(whole, 1, 49, 50), {2, circuit.outputs()});
    EXPECT_LT(distance(Tensor({2, circuit.outputs()}, y), whole), 1e-5);
  }
}

TEST(CircuitStreams, AllocateNothing) {
  const test::CircuitFixture fixture;
  for (const std::string& name : fixture.cases()) {
    const Circuit cell = fixture.circuit(name);
    if (cell.args().bidirectional) continue;
    CircuitStream stream(cell);
    const float x[] = {0.3f, -0.2f, 0.1f};
    stream.step(x);
    test::count_allocations();
    for (int i = 0; i < 3; ++i) stream.step(x);
    EXPECT_EQ(test::allocations_counted(), 0) << name;
  }
  const Circuit circuit{{.inputs = 8, .units = 64, .projection = 4}};
  CircuitStream stream(circuit);
  std::vector<float> x(8, 0.3f);
  stream.step(x);
  test::count_allocations();
  for (int i = 0; i < 100; ++i) stream.step(x, 0.1f);
  EXPECT_EQ(test::allocations_counted(), 0);
  EXPECT_EQ(stream.state().size(), 64u);
  EXPECT_TRUE(has(error_of([&] { stream.step(x, -1); }), "timespan -1"));
  EXPECT_TRUE(has(error_of([&] { stream.step(x, NAN); }), "timespan nan"));
  EXPECT_TRUE(has(error_of([&] { stream.step({x.data(), 7}); }), "7 input values, a step takes 8"));
  EXPECT_TRUE(has(error_of([&] { stream.state(1); }), "state 1 does not exist"));
}

TEST(CircuitStreams, DrawTheirStates) {
  const std::string picture = states_svg(Tensor({3, 2}, {1, 0, 1, -2, 0, -2}), "two & more");
  EXPECT_NE(picture.find("two &amp; more"), std::string::npos);
  EXPECT_NE(picture.find("2 neurons over 3 steps"), std::string::npos);
  EXPECT_NE(picture.find("blue -2"), std::string::npos);
  size_t runs = 0;
  for (size_t at = picture.find("opacity"); at != std::string::npos; at = picture.find("opacity", at + 1)) ++runs;
  EXPECT_GE(runs, 1u);  // two runs; a full shade needs no opacity
  EXPECT_TRUE(has(error_of([] { states_svg(full({3}, 0)); }), "[3] must be [time, neurons]"));
  EXPECT_TRUE(has(error_of([] { states_svg(full({1, 1}, NAN)); }), "nan"));
  EXPECT_NE(states_svg(full({4, 300}, 0)).find("</svg>"), std::string::npos);
  if (const char* folder = std::getenv("TEST_CIRCUITS_FOLDER"))  // to look at
    test::write_text(std::string(folder) + "/states.svg", states_svg(wave({200, 24}, 0.02) * wave({24}, 1.3)));
}

}  // namespace
}  // namespace ridge
