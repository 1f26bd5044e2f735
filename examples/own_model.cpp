// Train your own model on your own data, with everything a long run needs: a plan before the first step, checkpoints, validation by your own score, a progress
// line, plots. Stop it with Ctrl-C and start it again: it continues bit for bit.
//
//   own_model                      learns to classify points in three rings (generated data)
//   own_model x.npy t.npy [STEPS]  the same with your data: x f32 [samples, features], t i64 [samples] with classes 0, 1, 2, …
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "ridge/ridge.h"

using namespace ridge;

// A model is a struct with a call operator and a visit function that names its parameters: up.weight, up.bias, …
struct Mlp {
  Mlp(int64_t in, int64_t width, int64_t out) : up(in, width), middle(width, width), down(width, out) {}
  Tensor operator()(const Tensor& x) const { return down(gelu(middle(gelu(up(x))))); }
  void visit(Visitor& v) { v("up", up)("middle", middle)("down", down); }
  Linear up, middle, down;
};

struct Samples {
  Tensor x, t;
};

// Points around the origin; a point's class is the ring it is in.
Samples rings(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> x;
  std::vector<int64_t> t;
  for (int64_t i = 0; i < n; ++i) {
    const float a = float(random()) / 4294967296.0f * 2 - 1, b = float(random()) / 4294967296.0f * 2 - 1;
    x.insert(x.end(), {a, b});
    t.push_back(std::min<int64_t>(2, int64_t(std::sqrt(a * a + b * b) / 0.4f)));
  }
  return {Tensor({n, 2}, x), Tensor({n}, std::span<const int64_t>(t))};
}

Samples part(const Samples& all, int64_t from, int64_t to) { return {slice(all.x, 0, from, to), slice(all.t, 0, from, to)}; }

int main(int argc, char** argv) try {
  const Samples all = argc >= 3 ? Samples{Tensor::load(argv[1]), Tensor::load(argv[2])} : rings(6000, 1);
  const int64_t n = all.x.shape()[0], held_out = std::max<int64_t>(n / 10, 1), features = all.x.shape()[1];
  const std::vector<int64_t> classes = all.t.to_ints();
  const int64_t most = *std::max_element(classes.begin(), classes.end()) + 1;
  const Samples test = part(all, 0, held_out), train = part(all, held_out, n);

  seed(1);
  Mlp net(features, 64, most);
  // A loss can report other metrics. Here one of them, the accuracy, decides which weights are best.
  Step learn = step(net, adamw({.lr = 3e-3, .decay = 0.01}), [&](Tensor x, Tensor t) {
    const Tensor y = net(x);
    return cross_entropy(y, t).with("accuracy", equal(argmax(y, -1), t));
  });
  Trainer trainer(learn, {train.x, train.t},
                  {.steps = argc >= 4 ? std::atoll(argv[3]) : 1000,
                   .batch = 128,
                   .warmup = 20,
                   .clip = 1,
                   .out = "runs/own_model",
                   .memory = "1GiB",
                   .score = {.name = "accuracy", .higher_is_better = true}},
                  {test.x, test.t});
  const TrainingResult result = trainer.run();  // prints the plan first; trainer.plan() has more detail
  if (!result.finished()) {
    std::printf("\nStopped (%s). Start the program again to resume.\n", result.reason.c_str());
    return 130;
  }

  // The module's tensors are the trained weights; the best ones are in the folder, with metrics and plots.
  load_weights(net, "runs/own_model");
  const Tensor right = mean(cast(equal(argmax(net(test.x), -1), test.t), DType::f32));
  std::printf("\n%.1f %% of %lld samples that it never saw are right; runs/own_model/score.svg shows how it got there.\n", 100 * right.item(),
              static_cast<long long>(held_out));
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
