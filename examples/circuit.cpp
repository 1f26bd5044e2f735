// A wired neural circuit learns an irregularly sampled wave, is saved and loaded, and then runs step by step, as in a control loop.
#include <cmath>
#include <cstdio>
#include <vector>

#include "ridge/ridge.h"

using namespace ridge;

int main() {
  seed(1);
  // 19 neurons: sensors drive inter neurons, these drive command neurons, and those drive one motor neuron, the output.
  CircuitArgs args;
  args.cell = "cfc", args.inputs = 2, args.wiring = {Wiring::auto_ncp(19, 1)};
  Circuit circuit(args);

  // Sequences of a sine at random times. Each step shows the present value and direction; the target is the value one step later.
  const int64_t batch = 64, steps = 24;
  std::vector<float> x, t, y;
  const std::vector<float> random = uniform({batch, steps + 2}).to_floats();
  for (int64_t b = 0; b < batch; ++b) {
    const float* r = random.data() + b * (steps + 2);
    float now = 6.28f * r[0], step = 0.1f + r[1];
    for (int64_t i = 0; i < steps; ++i) {
      x.insert(x.end(), {std::sin(now), std::cos(now)});
      t.push_back(step);  // the time until the target, which the circuit needs to know
      now += step, step = 0.1f + r[i + 2];
      y.push_back(std::sin(now));
    }
  }
  const Tensor inputs({batch, steps, 2}, x), timespans({batch, steps}, t), targets({batch, steps, 1}, y);

  auto loss = [&](const std::vector<Tensor>& b) {
    SequenceArgs sequence;
    sequence.timespans = b[1];
    return mse(circuit(b[0], sequence).output, b[2]);
  };
  CompiledStep train = step(circuit, adamw({.lr = 0.01}), loss).compile({{inputs.shape()}, {timespans.shape()}, {targets.shape()}});
  for (int i = 0; i <= 300; ++i) {
    const StepResult result = train.run({inputs, timespans, targets});
    if (i % 100 == 0) std::printf("step %3d   mean squared error %.4f\n", i, result.loss);
  }

  circuit.save("circuit.safetensors");  // description, wiring and weights
  CircuitStream stream(Circuit::load("circuit.safetensors"));
  std::printf("one step at a time:");
  for (int64_t i = 0; i < 4; ++i) std::printf("  %.3f (%.3f)", double(stream.step({x.data() + 2 * i, 2}, t[size_t(i)])[0]), double(y[size_t(i)]));
  std::printf("\n");
}
