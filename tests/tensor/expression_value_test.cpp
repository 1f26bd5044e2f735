// An expression has the value that its inputs had when it was built, whatever changes them before it is read.
#include <gtest/gtest.h>

#include "eager/tensor_state.h"
#include "ridge/ridge.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

struct OneLayer {
  Linear layer{2, 1, false};
  mutable Tensor last;  // as models keep what they want to look at
  Tensor operator()(const Tensor& x) const { return last = layer(x); }
  void visit(Visitor& v) { v("layer", layer); }
};

const Tensor& input() {
  static const Tensor x({1, 2}, {1, 1});
  return x;
}

struct Training {
  OneLayer net;
  Step learner = step(net, sgd({.lr = 0.5}), [this](Tensor x, Tensor t) { return mse(net(x), t); });
  CompiledStep compiled = learner.compile({{{1, 2}}, {{1, 1}}});
  void run() { compiled.run({input(), Tensor({1, 1}, {9})}); }
  std::vector<float> weight() const { return net.layer.weight.to_floats(); }
};

// Everything that can be the weight itself or computed from it.
std::vector<Tensor> uses_of(const Tensor& w) {
  return {reshape(w, {2}),    stop_gradient(w), cast(w, DType::f32),    slice(w, 0, 0, 1), w * 1.0f,    expand(w, {1, 2}),
          permute(w, {0, 1}), concat({w}, 0),   split(w, {1, 1}, 1)[0], dropout(w, 0),     flip(w, {}), split(w, {2}, 1)[0]};
}

std::vector<std::vector<float>> values_of(const std::vector<Tensor>& tensors) {
  std::vector<std::vector<float>> all;
  for (const Tensor& t : tensors) all.push_back(t.to_floats());
  return all;
}

TEST(ExpressionValues, AreThoseFromBeforeAStep) {
  OneLayer net;
  const Tensor before_compiling = net(input());
  const float first = sum(net.layer.weight).item();
  CompiledStep compiled = step(net, sgd({.lr = 0.5}), [&](Tensor x, Tensor t) { return mse(net(x), t); }).compile({{{1, 2}}, {{1, 1}}});
  const Tensor built = net(input()), read = net(input()), alias = net.layer.weight;
  EXPECT_EQ(read.item(), first);
  const std::vector<Tensor> pending = uses_of(net.layer.weight), evaluated = uses_of(net.layer.weight);
  const std::vector<std::vector<float>> expected = values_of(evaluated);
  compiled.run({input(), Tensor({1, 1}, {9})});
  const float second = sum(net.layer.weight).item();
  ASSERT_NE(first, second);
  EXPECT_EQ(before_compiling.item(), first);
  EXPECT_EQ(built.item(), first);
  EXPECT_EQ(read.item(), first);
  EXPECT_EQ(values_of(pending), expected);
  EXPECT_EQ(values_of(evaluated), expected);
  EXPECT_EQ(alias.to_floats(), net.layer.weight.to_floats()) << "a copy of a tensor shares its value";
}

TEST(ExpressionValues, LaterExpressionsUseTheNewWeights) {
  Training t;
  const Tensor other = input() * 2;
  const Tensor old = other + t.net.layer.weight;  // in one graph
  const std::vector<float> before = old.to_floats();
  const Tensor pending = other + t.net.layer.weight;
  t.run();
  const Tensor now = other + t.net.layer.weight;
  EXPECT_EQ(pending.to_floats(), before);
  EXPECT_EQ(now.to_floats(), (Tensor({1, 2}, t.weight()) + 2.0f).to_floats());
  const Tensor again = other + t.net.layer.weight;
  const std::vector<float> second = now.to_floats();
  t.run();
  EXPECT_EQ(again.to_floats(), second);
}

TEST(ExpressionValues, StepsComputeOnlyWhatIsStillUsed) {
  Training t;
  { const Tensor dropped = t.net(input()); }
  const Tensor kept = t.net(input()) + 1, unrelated = input() * 3;
  auto programs = [] { return eager_statistics().compiled + eager_statistics().reused; };
  t.net.last = {};
  const int64_t before = programs();
  t.run();
  EXPECT_EQ(programs(), before + 1) << "`kept`";
  t.run();
  EXPECT_EQ(programs(), before + 1);
  EXPECT_FALSE(unrelated.state()->has_value());
  EXPECT_THROW(grad(kept, {t.net.layer.weight}), Error) << "its expression is gone";
}

// What is traced has no value, even if the model keeps it.
TEST(ExpressionValues, TracedTensorsAreNotComputed) {
  Training t;
  const Tensor traced = t.net.last;
  ASSERT_TRUE(traced.defined());
  t.run(), t.run();
  EXPECT_THROW(traced.to_floats(), Error);
}

TEST(ExpressionValues, AreThoseFromBeforeWeightsAreWritten) {
  const test::TempFolder folder;
  Training t;
  Trainer(t.learner, {input(), Tensor({1, 1}, {9})}, {.steps = 1, .out = folder / "run", .show = false}).run();
  const std::vector<float> trained = t.weight();
  OneLayer fresh;
  Training compiled;
  for (OneLayer* net : {&fresh, &compiled.net}) {
    const std::vector<float> before = net->layer.weight.to_floats();
    const Tensor pending = net->layer.weight + 0.0f, same = cast(net->layer.weight, DType::f32);
    load_weights(*net, folder / "run");
    EXPECT_EQ(net->layer.weight.to_floats(), trained);
    EXPECT_EQ(pending.to_floats(), before);
    EXPECT_EQ(same.to_floats(), before);
    const Tensor twice = net->layer.weight * 2;
    static_cast<float*>(net->layer.weight.mutable_data())[0] = 5;
    EXPECT_EQ(twice.to_floats()[0], 2 * trained[0]);
    EXPECT_EQ((net->layer.weight * 2).to_floats()[0], 10);
  }
  Training resumed;
  const Tensor pending = resumed.net.layer.weight + 0.0f;
  const std::vector<float> before = resumed.weight();
  Trainer(resumed.learner, {input(), Tensor({1, 1}, {9})}, {.steps = 1, .out = folder / "run", .show = false}).run();
  EXPECT_EQ(resumed.weight(), trained);
  EXPECT_EQ(pending.to_floats(), before);
}

TEST(DrawsOfHooks, AreAFunctionOfSeedStepAndPurpose) {
  using Purpose = detail::DrawsOfHook::Purpose;
  auto drawn = [](uint64_t seed, int64_t step, Purpose purpose) {
    const detail::DrawsOfHook draws(seed, step, purpose);
    return (uniform({8}) + 2 * uniform({8})).to_floats();
  };
  seed(3);
  const std::vector<float> eager = (uniform({8}) + 2 * uniform({8})).to_floats(), next = uniform({8}).to_floats();
  seed(3);
  std::vector<std::vector<float>> all = {eager};
  for (const Purpose purpose : {Purpose::batch, Purpose::validation, Purpose::sample})
    for (const int64_t step : {0, 1}) all.push_back(drawn(3, step, purpose));
  all.push_back(drawn(4, 0, Purpose::batch));
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t k = 0; k < i; ++k) EXPECT_NE(all[i], all[k]) << i << " and " << k;
  EXPECT_EQ(drawn(3, 1, Purpose::batch), all[2]);
  EXPECT_EQ((uniform({8}) + 2 * uniform({8})).to_floats(), eager) << "what is drawn elsewhere does not notice";
  EXPECT_EQ(uniform({8}).to_floats(), next);
}

}  // namespace
}  // namespace ridge
