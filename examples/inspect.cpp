// Compile, plan and inspect: a step is planned before it runs, and a budget makes it recompute and split.
#include <cstdio>

#include "ridge/ridge.h"

using namespace ridge;

struct Mlp {
  Linear up{784, 512}, down{512, 10};
  Tensor operator()(const Tensor& x) const { return down(gelu(up(x))); }
  void visit(Visitor& v) { v("up", up)("down", down); }
};

int main() {
  seed(3);
  Mlp net;
  Step step = ridge::step(net, adamw({.lr = 1e-3}), [&](Tensor x, Tensor t) { return cross_entropy(net(x), t); });
  CompiledStep whole = step.compile({{{256, 784}}, {{256}, DType::i64}});
  print(whole.report());

  // The same batch with less memory: the plan splits it, and the losses agree up to rounding.
  Mlp twin;
  twin.up.weight = Tensor::from_bytes({512, 784}, DType::f32, net.up.weight.data());
  twin.up.bias = Tensor::from_bytes({512}, DType::f32, net.up.bias.data());
  twin.down.weight = Tensor::from_bytes({10, 512}, DType::f32, net.down.weight.data());
  twin.down.bias = Tensor::from_bytes({10}, DType::f32, net.down.bias.data());
  Step tight = ridge::step(twin, adamw({.lr = 1e-3}), [&](Tensor x, Tensor t) { return cross_entropy(twin(x), t); });
  CompiledStep split = tight.compile({{{256, 784}}, {{256}, DType::i64}}, {.memory = std::to_string(whole.planned_bytes() * 9 / 10)});
  print(split.report());

  Tensor x = normal({256, 784}), t = cast(iota({256}, 0), DType::i64);
  t = mod(t, Tensor(10, DType::i64));
  for (int i = 0; i < 3; ++i) std::printf("loss %.5f whole, %.5f split\n", whole.run({x, t}).loss, split.run({x, t}).loss);
}
