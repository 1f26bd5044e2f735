// Optimizer trajectories for given gradients, clipping, and the non-finite guard.
#include <gtest/gtest.h>

#include <cmath>

#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/sgd.h"
#include "parity/parity.h"

namespace ridge::parity {
namespace {

class Optim : public testing::TestWithParam<Path> {
 protected:
  Fixture f_{"optimizers"};
  Array gradients_ = f_("gradients"), rates_ = f_("rates"), start_ = f_("start");
  int64_t steps() const { return gradients_.type.shape[0]; }

  // One graph for all steps: the first inputs are gradient and rate, the others state that `next` replaces.
  void check(const Problem& p, const std::vector<NodeId>& next, const std::string& name) {
    Array path = f_(name);
    Program program(GetParam(), p, next);
    std::vector<Array> state(p.values.begin() + 2, p.values.end());
    for (int64_t i = 0; i < steps(); ++i) {
      std::vector<Array> in = {slice_first(gradients_, i), slice_first(rates_, i)};
      in.insert(in.end(), state.begin(), state.end());
      state = program.run(in);
      // Errors accumulate over the steps; a parameter near zero has had updates as large as the others'.
      expect_close(state[0], slice_first(path, i), tolerance(GetParam()), name + " after step " + std::to_string(i + 1));
    }
  }

  void check_adam(const std::string& name, decltype(adamw)* rule, double decay, const AdamOptions& options) {
    Problem p;
    NodeId g = p.input(slice_first(gradients_, 0)), rate = p.input(scalar(DType::f32, 0)), x = p.input(start_);
    NodeId m = p.input(reference::zeros(start_.type)), v = p.input(reference::zeros(start_.type)), applied = p.input(scalar(DType::i64, 0));
    AdamState s = rule(p.b, {{x}, {m}, {v}, applied}, {&g, 1}, rate, {&decay, 1}, options, kNone);
    check(p, {s.parameters[0], s.first[0], s.second[0], s.applied}, name);
  }

  void check_sgd(const std::string& name, double decay, const SgdOptions& options) {
    Problem p;
    NodeId g = p.input(slice_first(gradients_, 0)), rate = p.input(scalar(DType::f32, 0)), x = p.input(start_);
    SgdState state{{x}, {}};
    if (options.momentum != 0) state.momentum = {p.input(reference::zeros(start_.type))};
    SgdState s = sgd(p.b, state, {&g, 1}, rate, {&decay, 1}, options);
    std::vector<NodeId> next = s.parameters;
    next.insert(next.end(), s.momentum.begin(), s.momentum.end());
    check(p, next, name);
  }
};

TEST_P(Optim, AdamW) { check_adam("adamw", adamw, 0.1, {}); }
TEST_P(Optim, Adam) { check_adam("adam", adam, 0.01, {.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6}); }
TEST_P(Optim, Sgd) { check_sgd("sgd", 0, {}); }
TEST_P(Optim, SgdMomentum) { check_sgd("momentum", 0.01, {.momentum = 0.9}); }
TEST_P(Optim, SgdNesterov) { check_sgd("nesterov", 0.01, {.momentum = 0.9, .nesterov = true}); }

TEST_P(Optim, ClipGlobalNorm) {
  std::vector<Shape> shapes = {{3, 5}, {7}, {1, 2, 2}};
  for (auto [tag, limit] : {std::pair("clip.tight", 1.0), {"clip.loose", 100.0}}) {
    Problem p;
    Clipped c = clip_global_norm(p.b, p.input(unpack(f_("clip.parts"), shapes)), limit);
    std::vector<NodeId> outputs = c.gradients;
    outputs.push_back(c.norm);
    std::vector<Array> got = compute(GetParam(), p, outputs), want = unpack(f_(tag), shapes);
    for (size_t i = 0; i < want.size(); ++i) expect_close(got[i], want[i], tolerance(GetParam()), tag);
    expect_close(got[3], f_(std::string(tag) + ".norm"), tolerance(GetParam()), "norm");
  }
}

// A bad step stores nothing, not even its count, whatever the gradient contains.
TEST_P(Optim, GuardKeepsEverything) {
  for (double bad : {double(NAN), double(INFINITY), 3e38}) {
    Array g = slice_first(gradients_, 0);
    g.f[5] = reference::round_to(DType::f32, bad);
    Problem p;
    NodeId gradient = p.input(g), rate = p.input(scalar(DType::f32, 0.1)), x = p.input(start_), m = p.input(start_), v = p.input(slice_first(f_("adamw"), 0)),
           applied = p.input(scalar(DType::i64, 7));
    NodeId good = p.b.unary(Op::is_finite, global_norm(p.b, {&gradient, 1}));
    if (bad == 3e38) good = p.b.binary(Op::less, global_norm(p.b, {&gradient, 1}), 1e30);
    double decay = 0.1;
    AdamState a = adamw(p.b, {{x}, {m}, {v}, applied}, {&gradient, 1}, rate, {&decay, 1}, {}, good);
    SgdState s = sgd(p.b, {{x}, {m}}, {&gradient, 1}, rate, {&decay, 1}, {.momentum = 0.9}, good);
    std::vector<Array> got = compute(GetParam(), p, {a.parameters[0], a.first[0], a.second[0], a.applied, s.parameters[0], s.momentum[0]});
    std::vector<Array> want = {p.values[2], p.values[3], p.values[4], p.values[5], p.values[2], p.values[3]};
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], want[i]) << "state " << i << " with a gradient of " << bad;
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, Optim, testing::ValuesIn(host_paths()), [](const auto& info) { return name(info.param); });
INSTANTIATE_TEST_SUITE_P(Gpu, Optim, testing::ValuesIn(gpu_paths()), [](const auto& info) { return name(info.param); });

}  // namespace
}  // namespace ridge::parity
