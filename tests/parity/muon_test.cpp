// Muon against plain loops in double precision, and the law behind it: an update has singular values near 1, whatever the gradient's are.
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "optim/clip.h"
#include "optim/muon.h"
#include "parity/parity.h"

namespace ridge::parity {
namespace {

struct Matrix {
  int64_t rows, columns;
  std::vector<double> v;
  double& at(int64_t r, int64_t c) { return v[size_t(r * columns + c)]; }
  double at(int64_t r, int64_t c) const { return v[size_t(r * columns + c)]; }
};

Matrix transposed(const Matrix& a) {
  Matrix t{a.columns, a.rows, std::vector<double>(a.v.size())};
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < a.columns; ++c) t.at(c, r) = a.at(r, c);
  return t;
}

Matrix operator*(const Matrix& a, const Matrix& b) {
  Matrix y{a.rows, b.columns, std::vector<double>(size_t(a.rows * b.columns))};
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < b.columns; ++c)
      for (int64_t k = 0; k < a.columns; ++k) y.at(r, c) += a.at(r, k) * b.at(k, c);
  return y;
}

double norm(const std::vector<double>& v) {
  double sum = 0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}

// The published recipe, without transposing: X ← aX + b(XXᵀ)X + c(XXᵀ)²X.
Matrix turned(Matrix x) {
  const double size = norm(x.v) + 1e-7;
  for (double& e : x.v) e /= size;
  for (int i = 0; i < 5; ++i) {
    const Matrix once = x * transposed(x) * x, twice = x * transposed(x) * once;
    for (size_t k = 0; k < x.v.size(); ++k) x.v[k] = 3.4445 * x.v[k] - 4.7750 * once.v[k] + 2.0315 * twice.v[k];
  }
  return x;
}

Array drawn(const Shape& shape, uint32_t stream, double size) {
  Array a = reference::zeros({DType::f32, shape});
  for (size_t i = 0; i < a.f.size(); ++i) a.f[i] = reference::round_to(DType::f32, size * (2 * double(uniform_from(random_word({11, 0, stream}, i))) - 1));
  return a;
}

class Muon : public testing::TestWithParam<Path> {};

// Wide, tall, square, a single row, and the weight of a convolution; three steps with another gradient and rate each.
TEST_P(Muon, FollowsTheFormula) {
  for (const Shape& shape : {Shape{3, 7}, Shape{17, 5}, Shape{8, 8}, Shape{1, 6}, Shape{4, 3, 2, 2}})
    for (const bool nesterov : {true, false}) {
      const MuonOptions o{0.9, nesterov, 0.3};
      const double decay = 0.05;
      Problem p;
      const NodeId g = p.input(drawn(shape, 1, 1)), rate = p.input(scalar(DType::f32, 0)), x = p.input(drawn(shape, 2, 1)),
                   m = p.input(reference::zeros({DType::f32, shape}));
      const MuonState next = muon(p.b, {{x}, {m}}, {&g, 1}, rate, {&decay, 1}, o);
      Program program(GetParam(), p, {next.parameters[0], next.momentum[0]});
      std::vector<Array> state = {p.values[2], p.values[3]};
      const int64_t rows = shape[0], columns = shape.numel() / rows;
      std::vector<double> want = state[0].f, momentum(want.size());
      for (int step = 0; step < 3; ++step) {
        const Array gradient = drawn(shape, uint32_t(10 + step), step == 1 ? 1e-3 : 5);
        const double lr = reference::round_to(DType::f32, 0.1 / (1 + step));
        state = program.run({gradient, scalar(DType::f32, lr), state[0], state[1]});
        Matrix direction{rows, columns, gradient.f};
        for (size_t i = 0; i < want.size(); ++i) {
          momentum[i] = o.momentum * momentum[i] + gradient.f[i];
          direction.v[i] = nesterov ? gradient.f[i] + o.momentum * momentum[i] : momentum[i];
        }
        direction = turned(direction);
        const double size = lr * o.scale * std::sqrt(double(std::max(rows, columns)));
        for (size_t i = 0; i < want.size(); ++i) want[i] = want[i] * (1 - lr * decay) - size * direction.v[i];
        Array expected = state[0];
        expected.f = want;
        // The polynomial's slope at 0 is 3.4^5 = 485: rounding errors of directions with small singular values grow by up to that.
        expect_close(state[0], expected, GetParam() == Path::reference ? 1e-5 : 2e-4, to_string(shape) + " after step " + std::to_string(step + 1));
      }
    }
}

// XXᵀ of what is orthogonalised has eigenvalues from 0.6² to 1.2², for a gradient whose own range over two decades. v·XXᵀ·v of random directions cannot leave
// it.
TEST_P(Muon, UpdatesAreNearlyOrthogonal) {
  for (const Shape& shape : {Shape{6, 24}, Shape{24, 6}}) {
    Array g = drawn(shape, 5, 1);
    const bool tall = shape[0] > shape[1];
    for (int64_t r = 0; r < shape[0]; ++r)  // direction i is scaled by 10^(-2 i / 5)
      for (int64_t c = 0; c < shape[1]; ++c) g.f[size_t(r * shape[1] + c)] *= std::pow(10.0, -2.0 * double(tall ? c : r) / 5);
    for (double& e : g.f) e = reference::round_to(DType::f32, e);
    Problem p;
    const NodeId x = p.input(g);
    Matrix y{shape[0], shape[1], compute(GetParam(), p, {orthogonalize(p.b, x)})[0].f};
    if (tall) y = transposed(y);
    const Matrix square = y * transposed(y);
    for (uint32_t k = 0; k < 50; ++k) {
      const Array direction = drawn({1, 6}, 20 + k, 1);
      const Matrix v{1, 6, direction.f};
      const double value = (v * square * transposed(v)).v[0] / (norm(v.v) * norm(v.v));
      EXPECT_GT(value, 0.6 * 0.6);
      EXPECT_LT(value, 1.2 * 1.2);
    }
    EXPECT_NEAR(norm(y.v) / std::sqrt(6.0), 0.9, 0.25);
  }
}

TEST_P(Muon, KeepsEverythingAfterABadGradientAndZerosStayZero) {
  Problem p;
  Array bad = drawn({4, 5}, 1, 1);
  bad.f[3] = NAN;
  const NodeId g = p.input(bad), rate = p.input(scalar(DType::f32, 0.1)), x = p.input(drawn({4, 5}, 2, 1)), m = p.input(drawn({4, 5}, 3, 1));
  const NodeId zero = p.input(reference::zeros({DType::f32, {4, 5}})), good = p.b.unary(Op::is_finite, global_norm(p.b, {&g, 1}));
  const MuonState kept = muon(p.b, {{x}, {m}}, {&g, 1}, rate, {}, {}, good), still = muon(p.b, {{x}, {zero}}, {&zero, 1}, rate, {});
  const std::vector<Array> got = compute(GetParam(), p, {kept.parameters[0], kept.momentum[0], still.parameters[0]});
  EXPECT_EQ(got[0], p.values[2]);
  EXPECT_EQ(got[1], p.values[3]);
  EXPECT_EQ(got[2], p.values[2]);
}

INSTANTIATE_TEST_SUITE_P(Paths, Muon, testing::ValuesIn(host_paths()), [](const auto& info) { return name(info.param); });
INSTANTIATE_TEST_SUITE_P(Gpu, Muon, testing::ValuesIn(gpu_paths()), [](const auto& info) { return name(info.param); });

}  // namespace
}  // namespace ridge::parity
