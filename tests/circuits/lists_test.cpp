// Sparse wirings run as lists of synapses: the values and gradients of the dense formula, and nothing for absent synapses.
#include <gtest/gtest.h>

#include "circuits/fixture.h"
#include "ridge/ridge.h"

namespace ridge {
namespace {

using test::distance;

TEST(SynapseLists, GiveWhatTheDenseFormulaGives) {
  seed(5);
  const int64_t units = 37, inputs = 3, batch = 5, steps = 6;
  CircuitArgs args;
  args.cell = "ltc", args.inputs = inputs, args.ode_unfolds = 2, args.wiring = {Wiring::random(units, 4, 0.8)}, args.input_mapping = "none",
  args.output_mapping = "none", args.batch_first = false;
  Circuit circuit(args);
  std::map<std::string, Tensor> p;
  for (const NamedTensor& t : parameters(circuit)) p[t.name.substr(t.name.find('.') + 1)] = *t.tensor;
  const Tensor x = sin(reshape(iota({steps * batch * inputs}, 0, DType::f32) * 0.7, {steps, batch, inputs}));

  auto dense = [&](const std::string& kind, const Tensor& pre) {
    const Tensor active =
        softplus(p[kind + "w"]) * p[kind + "sparsity_mask"] * sigmoid(p[kind + "sigma"] * (reshape(pre, {batch, pre.shape()[1], 1}) - p[kind + "mu"]));
    return std::pair{sum(active * p[kind + "erev"], {1}), sum(active, {1})};
  };
  auto body = [&](const std::vector<Tensor>& carry, const std::vector<Tensor>& now) {
    const Tensor g = softplus(p["gleak"]), c = softplus(p["cm"]) * 2;
    const auto [num_in, den_in] = dense("sensory_", now[0]);
    Tensor v = carry[0];
    for (int i = 0; i < 2; ++i) {
      const auto [num, den] = dense("", v);
      v = (c * v + g * p["vleak"] + num + num_in) / (c + g + den + den_in + args.epsilon);
    }
    return ScanOutput{{v}, {v}};
  };
  const Tensor want = slice(scan(body, {full({batch, units}, 0)}, {x}).outputs[0], 2, 0, 4), got = circuit(x).output;
  std::vector<Tensor> weights;
  for (const char* name : {"w", "sigma", "mu", "erev", "sensory_w", "gleak", "vleak", "cm"}) weights.push_back(p[name]);
  const std::vector<Tensor> got_gradients = grad(sum(square(got)), weights), want_gradients = grad(sum(square(want)), weights);
  EXPECT_LT(distance(got, want), 1e-5);
  const std::vector<float> mask = p["sparsity_mask"].to_floats();
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_LT(distance(got_gradients[i], want_gradients[i]), 1e-4) << i;
    if (i >= 4) continue;
    const std::vector<float> g = got_gradients[i].to_floats();
    for (size_t k = 0; k < mask.size(); ++k)
      if (mask[k] == 0) {
        ASSERT_EQ(g[k], 0) << i;
      }
  }
}

}  // namespace
}  // namespace ridge
