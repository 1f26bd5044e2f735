// Eager tensors: values, laziness, gradients, errors that leave everything usable.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "ridge/ridge.h"

namespace ridge {
namespace {

std::vector<float> floats(const Tensor& t) { return t.to_floats(); }

TEST(Tensors, OperatorsAndBroadcasting) {
  Tensor a({2, 3}, {1, 2, 3, 4, 5, 6}), row({3}, {10, 20, 30}), column({2, 1}, {100, 200});
  EXPECT_EQ(floats(a + row), (std::vector<float>{11, 22, 33, 14, 25, 36}));
  EXPECT_EQ(floats(a * 2 - column), (std::vector<float>{-98, -96, -94, -192, -190, -188}));
  EXPECT_EQ(floats(transpose(a)), (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ((a > 3).dtype(), DType::boolean);
  EXPECT_EQ(sum(a).item(), 21);
  EXPECT_EQ(floats(sum(a, {0})), (std::vector<float>{5, 7, 9}));
}

TEST(Tensors, OneFusedKernelForAnExpression) {
  Tensor a = full({1000}, 2), b = full({1000}, 3);
  a.eval(), b.eval();
  Tensor y = relu(a * b + 1) - a;
  y.eval();
  EXPECT_EQ(eager_statistics().kernels, 1);
  EXPECT_EQ(y.to_floats()[999], 5);
}

TEST(Tensors, EqualExpressionsCompileOnce) {
  auto once = [](float v) { return (tanh(Tensor({17}, std::vector<float>(17, v))) * 3).to_floats()[16]; };
  once(0.5f);
  int64_t before = eager_statistics().compiled;
  EXPECT_FLOAT_EQ(once(0.25f), 3 * std::tanh(0.25f));
  EXPECT_EQ(eager_statistics().compiled, before);
}

TEST(Tensors, NumbersTakeTheTensorsDtype) {
  Tensor h = cast(Tensor({3}, {1, 2, 3}), DType::bf16);
  EXPECT_EQ((h * 2).dtype(), DType::bf16);
  const Tensor whole = Tensor::zeros({3}, DType::i64);
  EXPECT_EQ((whole + 2).dtype(), DType::f32) << "a C++ number arrives as a double";
  EXPECT_EQ((whole + Tensor(2, DType::i64)).dtype(), DType::i64);
  EXPECT_EQ((h + 1.5).to_floats()[0], 2.5f);
}

TEST(Tensors, GradientsOfGradients) {
  Tensor x({3}, {1, 2, 3});
  Tensor first = grad(sum(x * x * x), {x})[0], second = grad(sum(first), {x})[0];
  EXPECT_EQ(floats(first), (std::vector<float>{3, 12, 27}));
  EXPECT_EQ(floats(second), (std::vector<float>{6, 12, 18}));
}

TEST(Tensors, GradOfADroppedExpressionIsReported) {
  Tensor x({2}, {1, 2});
  Tensor loss = sum(x * x);
  loss.item();
  EXPECT_THROW(grad(loss, {x}), Error);
  Tensor y = x * 2;
  y.eval();
  EXPECT_THROW(grad(sum(y), {x}), Error);
  EXPECT_EQ(floats(grad(sum(x * 5), {x})[0]), (std::vector<float>{5, 5}));
}

TEST(Tensors, CustomGradientsReplaceTheRule) {
  Tensor x({3}, {-1, 0.5f, 2});
  auto straight = [](const Tensor& in) {
    return custom([](const std::vector<Tensor>& v) { return round(v[0]); },
                  [](const std::vector<Tensor>&, const Tensor&, const Tensor& g) { return std::vector<Tensor>{g * 10}; }, {in});
  };
  Tensor y = straight(x), g = grad(sum(y), {x})[0];
  EXPECT_EQ(floats(y), (std::vector<float>{-1, 0, 2}));
  EXPECT_EQ(floats(g), (std::vector<float>{10, 10, 10}));
}

TEST(Tensors, ScanCarriesResetsAndDifferentiates) {
  Tensor x({4, 1}, {1, 2, 3, 4}), w({1}, {0.5f}), h0({1}, {8});
  auto step = [&](const std::vector<Tensor>& carry, const std::vector<Tensor>& in) {
    Tensor h = carry[0] * w + in[0];
    return ScanOutput{{h}, {h * 2}};
  };
  ScanOutput out = scan(step, {h0}, {x});
  EXPECT_EQ(floats(out.outputs[0]), (std::vector<float>{10, 9, 10.5f, 13.25f}));
  Tensor reset({4}, std::vector<float>{0, 0, 1, 0});
  ScanOutput again = scan(step, {h0}, {x}, cast(reset, DType::boolean));
  EXPECT_EQ(floats(again.outputs[0]), (std::vector<float>{10, 9, 14, 15}));
  // d h4 / d w by hand: h' = h + w h'
  double h = 8, d = 0;
  for (double v : {1.0, 2.0, 3.0, 4.0}) d = h + 0.5 * d, h = 0.5 * h + v;
  Tensor g = grad(sum(scan(step, {h0}, {x}).carry[0]), {w})[0];
  EXPECT_NEAR(g.item(), d, 1e-5);
}

TEST(Tensors, ScanRunsBackwards) {
  Tensor x({3}, {1, 2, 3});
  auto step = [](const std::vector<Tensor>& carry, const std::vector<Tensor>& in) {
    Tensor h = carry[0] + in[0];
    return ScanOutput{{h}, {h}};
  };
  EXPECT_EQ(floats(scan(step, {Tensor(0.0)}, {x}, {}, true).outputs[0]), (std::vector<float>{6, 5, 3}));
}

TEST(Tensors, RandomnessIsAFunctionOfSeedAndCall) {
  seed(11);
  std::vector<float> a = floats(uniform({100})), b = floats(uniform({100}));
  EXPECT_NE(a, b);
  seed(11);
  EXPECT_EQ(a, floats(uniform({100})));
  std::vector<int64_t> p = permutation(50).to_ints();
  std::sort(p.begin(), p.end());
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(p[size_t(i)], i);
}

TEST(Tensors, NpyRoundTrip) {
  std::string file = ::testing::TempDir() + "ridge_tensor.npy";
  Tensor a({2, 3}, {1, 2, 3, 4, 5, 6});
  a.save(file);
  Tensor b = Tensor::load(file);
  EXPECT_EQ(b.shape(), a.shape());
  EXPECT_EQ(floats(a), floats(b));
  std::remove(file.c_str());
}

TEST(Tensors, BadInputIsNamedAndLosesNothing) {
  Tensor a({2, 3}, {1, 2, 3, 4, 5, 6}), b({4}, {1, 2, 3, 4});
  try {
    a + b;
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::shape);
    EXPECT_NE(std::string(e.what()).find("[2, 3]"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("add"), std::string::npos) << e.what();
  }
  EXPECT_THROW(matmul(a, a), Error);
  EXPECT_THROW(sum(a, {2}), Error);
  EXPECT_THROW(reshape(a, {4, 2}), Error);
  EXPECT_THROW(max(full({0, 3}, 1), {0}), Error);
  EXPECT_THROW(Tensor().shape(), Error);
  EXPECT_THROW(a.item(), Error);
  EXPECT_THROW(take(a, Tensor({1}, std::vector<int64_t>{7})).eval(), Error);  // raised by a kernel
  EXPECT_EQ(sum(a).item(), 21);
  EXPECT_EQ(sum(full({0, 3}, 1)).item(), 0);
}

// The kernel of such a product cannot write its rows into the concat, where they are not evenly spaced.
TEST(Tensors, ProductsOfTransposedSequencesAreConcatenated) {
  const Tensor w({2, 4}, {1, 2, 3, 4, -1, 0, 1, 2}), b({2}, {10, 20});
  auto sequence = [](int64_t steps) {
    const Tensor x = reshape(iota({steps * 2 * 4}, 0, DType::f32), {steps, 2, 4});
    x.eval();
    return x;
  };
  const Tensor first = sequence(3), second = sequence(5);
  auto read = [&](const Tensor& x) { return linear(transpose(x, 0, 1), w, b); };
  const Tensor one = read(first), two = read(second);
  one.eval(), two.eval();
  EXPECT_EQ(floats(concat({read(first), read(second)}, 1)), floats(concat({one, two}, 1)));
}

TEST(Tensors, PrintShortensLongAxes) {
  EXPECT_EQ(to_string(Tensor({3}, {1, 2.5f, -3})), "[1, 2.5, -3] f32[3]");
  std::string text = to_string(iota({100}));
  EXPECT_EQ(text, "[0, 1, 2, …, 97, 98, 99] i64[100]");
}

}  // namespace
}  // namespace ridge
