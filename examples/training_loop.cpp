// A hand-written training loop: gradients, an update, repeat. Equal expressions compile once.
#include <cmath>
#include <cstdio>

#include "ridge/ridge.h"

using namespace ridge;

int main() {
  seed(1);
  Tensor x = normal({256, 1});
  x.eval();
  Tensor target = sin(x * 3);
  target.eval();
  Linear up{1, 32}, down{32, 1};
  double loss_value = 0;
  for (int i = 0; i < 2000; ++i) {
    Tensor loss = mse(down(tanh(up(x))), target);
    std::vector<NamedTensor> params = parameters(up);
    for (const NamedTensor& p : parameters(down)) params.push_back(p);
    std::vector<Tensor> values;
    for (const NamedTensor& p : params) values.push_back(*p.tensor);
    std::vector<Tensor> grads = grad(loss, values);
    for (size_t k = 0; k < params.size(); ++k) *params[k].tensor = values[k] - grads[k] * 0.1;
    for (const NamedTensor& p : params) p.tensor->eval();
    loss_value = loss.item();
    if (i % 400 == 0) std::printf("step %4d  loss %.4f\n", i, loss_value);
  }
  std::printf("final loss %.4f; %lld programs compiled\n", loss_value, static_cast<long long>(eager_statistics().compiled));
  return loss_value < 0.2 ? 0 : 1;
}
