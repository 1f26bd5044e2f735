// Tensors and fusion: expressions are lazy, and one fused kernel computes them when a value is read.
#include <cstdio>

#include "ridge/ridge.h"

using namespace ridge;

int main() {
  Tensor a({2, 3}, {1, -2, 3, -4, 5, -6}), b({3}, {10, 20, 30});
  Tensor y = relu(a * 2 + b);  // nothing has been computed yet
  print(y);
  std::printf("kernels for relu(a * 2 + b): %lld\n\n", static_cast<long long>(eager_statistics().kernels));

  Tensor w({3, 4}, {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f, 0.9f, 1.0f, 1.1f, 1.2f});
  print(softmax(matmul(a, w)));
  print(einsum("ij,kj->ik", {a, a}));

  // Gradients are tensors too, and can be differentiated again. Reading a tensor computes it and drops its expression, so request both before printing either.
  Tensor x({3}, {1, 2, 3});
  Tensor first = grad(sum(x * x * x), {x})[0];  // 3 x^2
  Tensor second = grad(sum(first), {x})[0];     // 6 x
  print(first);
  print(second);

  y.save("example.npy");
  print(Tensor::load("example.npy"));
  std::remove("example.npy");
}
