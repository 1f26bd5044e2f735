// The vector functions against the C library in double, over the whole f32 range: error in units in the last place.
#include "machine/features.h"
#include "tile_harness.h"

namespace ridge::cpu::tile_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN(), kMin = std::numeric_limits<float>::min();

std::vector<float> values_of(Op op, const std::vector<float>& a, const std::vector<float>& b = {}) {
  const int64_t n = int64_t(a.size());
  Build build(Form::map, {n});
  int x = build.in(), y = b.empty() ? -1 : build.in();
  build.out(build.op(op, x, y));
  std::vector<Memory> m(b.empty() ? 2 : 3, Memory(DType::f32, n));
  std::memcpy(m[0].data(), a.data(), size_t(n) * 4);
  if (!b.empty()) std::memcpy(m[1].data(), b.data(), size_t(n) * 4);
  run(build.g, m);
  std::vector<float> out(a.size());
  std::memcpy(out.data(), m.back().data(), size_t(n) * 4);
  return out;
}

double ulps(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : kInf;
  const float nearest = float(want);
  if (std::isinf(nearest) || std::isinf(got)) {
    if (nearest == got) return 0;
    return std::fabs(want) > 3.4e38 && std::fabs(got) > 3.3e38 && std::signbit(got) == (want < 0) ? 1 : kInf;  // one step around overflow
  }
  if (std::fabs(want) < kMin && std::fabs(got) <= kMin) return 0;  // denormal results may be flushed
  double ulp = std::ldexp(1.0, std::max(std::ilogb(std::max(std::fabs(want), double(kMin))), -126) - 23);
  return std::fabs(double(got) - want) / ulp;
}

// All exponents and both signs, some mantissas of each.
std::vector<float> sample(float limit) {
  std::vector<float> x{0.f, -0.f, 1.f, -1.f, 0.5f, kMin};
  for (uint64_t bits = 0; bits < 0x100000000; bits += 40009) {
    float f = std::bit_cast<float>(uint32_t(bits));
    if (std::isfinite(f) && (f == 0 || std::fabs(f) >= kMin) && std::fabs(f) <= limit) x.push_back(f);
  }
  for (int i = -20000; i <= 20000; ++i) x.push_back(float(i) * 0.00501f);
  x.erase(std::remove_if(x.begin(), x.end(), [&](float f) { return std::fabs(f) > limit; }), x.end());
  return x;
}

struct Law {
  Op op;
  double ulps;
  float limit = kInf;
};

TEST(TileMath, ErrorOfEveryFunction) {
  const bool fused = isa_tier() != IsaTier::sse4 && isa_tier() != IsaTier::scalar;  // has fused multiply-add
  const Law laws[] = {
      {Op::exp, 2}, {Op::expm1, 2},   {Op::log, 2},      {Op::log1p, 2},    {Op::sin, 2},    {Op::cos, 2},     {Op::tanh, 3},
      {Op::erf, 3}, {Op::sigmoid, 3}, {Op::softplus, 3}, {Op::silu, 4, 80}, {Op::sqrt, 0.5}, {Op::rsqrt, 1.5}, {Op::gelu_erf, fused ? 8.0 : 100.0, 12}};
  for (const Law& law : laws) {
    std::vector<float> x = sample(law.limit), y = values_of(law.op, x);
    double worst = 0;
    float where = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      double e = ulps(y[i], scalar_op(law.op, DType::f32, x[i], 0, 0));
      if (!(e <= worst)) worst = e, where = x[i];
    }
    EXPECT_LE(worst, law.ulps) << "op " << int(law.op) << " at " << where << ": " << values_of(law.op, {where})[0] << ", not "
                               << scalar_op(law.op, DType::f32, where, 0, 0);
  }
}

// Where the exact value nearly cancels, the error is relative to the input.
TEST(TileMath, GeluFormsAndGradients) {
  for (Op op : {Op::gelu_tanh, Op::gelu_tanh_grad, Op::gelu_erf_grad, Op::silu_grad}) {
    std::vector<float> x = sample(1e4f), y = values_of(op, x);
    for (size_t i = 0; i < x.size(); ++i) {
      double want = scalar_op(op, DType::f32, x[i], 0, 0);
      if (std::isnan(want)) continue;
      ASSERT_NEAR(y[i], want, 8 * 0x1p-24 * std::max(std::fabs(want), op == Op::gelu_tanh ? std::fabs(x[i]) * 1e-1 : 1.0)) << int(op) << " at " << x[i];
    }
  }
}

TEST(TileMath, SpecialValues) {
  auto same = [](float a, float b) { return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b)); };
  const std::vector<float> x{kNan, kInf, -kInf, 0.f, -0.f, 1e30f, -1e30f, -1.f};
  const std::vector<std::pair<Op, std::vector<float>>> want{
      {Op::exp, {kNan, kInf, 0, 1, 1, kInf, 0, 0.36787944f}},
      {Op::expm1, {kNan, kInf, -1, 0, -0.f, kInf, -1, -0.63212055f}},
      {Op::log, {kNan, kInf, kNan, -kInf, -kInf, 69.07755f, kNan, kNan}},
      {Op::log1p, {kNan, kInf, kNan, 0, -0.f, 69.07755f, kNan, -kInf}},
      {Op::tanh, {kNan, 1, -1, 0, -0.f, 1, -1, -0.7615942f}},
      {Op::erf, {kNan, 1, -1, 0, -0.f, 1, -1, -0.8427008f}},
      {Op::sigmoid, {kNan, 1, 0, 0.5f, 0.5f, 1, 0, 0.26894143f}},
      {Op::softplus, {kNan, kInf, 0, 0.6931472f, 0.6931472f, 1e30f, 0, 0.31326166f}},
      {Op::sqrt, {kNan, kInf, kNan, 0, -0.f, 1e15f, kNan, kNan}},
      {Op::relu, {kNan, kInf, 0, 0, 0, 1e30f, 0, 0}},
      {Op::sign, {kNan, 1, -1, 0, -0.f, 1, -1, -1}},
      {Op::gelu_tanh_grad, {kNan, 1, 0, 0.5f, 0.5f, 1, 0, -0.08296409f}},
      {Op::silu_grad, {kNan, 1, 0, 0.5f, 0.5f, 1, 0, 0.07232949f}},
  };
  for (const auto& [op, values] : want) {
    auto got = values_of(op, x);
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_TRUE(same(got[i], values[i]) || (values[i] != 0 && std::fabs(got[i] - values[i]) < 2e-7f * std::fabs(values[i])))
          << "op " << int(op) << " of " << x[i] << " is " << got[i] << ", not " << values[i];
  }
  for (Op op : {Op::sin, Op::cos}) {
    auto got = values_of(op, {kNan, kInf, -kInf, 1e30f, 3e38f});
    EXPECT_TRUE(std::isnan(got[0]) && std::isnan(got[1]) && std::isnan(got[2]));
    EXPECT_LE(ulps(got[3], scalar_op(op, DType::f32, 1e30f, 0, 0)), 1);
    EXPECT_LE(ulps(got[4], scalar_op(op, DType::f32, 3e38f, 0, 0)), 1);
  }
}

TEST(TileMath, Power) {
  std::vector<float> a, b;
  const float special[] = {0.f, -0.f, 1.f, -1.f, 2.f, -2.f, 0.5f, 3.f, -3.f, kInf, -kInf, kNan, 1e-30f, 1e30f, 0.999999f, 2.5f, -2.5f};
  for (float x : special)
    for (float y : special) a.push_back(x), b.push_back(y);
  for (uint32_t i = 0; i < 40000; ++i) {
    float x = std::exp((uniform_from(random_word({1, 0, 0}, i)) - 0.5f) * 40), y = (uniform_from(random_word({2, 0, 0}, i)) - 0.5f) * 8;
    a.push_back(i % 3 ? x : -x), b.push_back(i % 3 ? y : std::round(y));
  }
  auto got = values_of(Op::pow, a, b);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_LE(ulps(got[i], std::pow(double(a[i]), double(b[i]))), 1.0) << a[i] << " ^ " << b[i] << " = " << got[i];
}

TEST(TileMath, ModuloHasTheSignOfTheDivisor) {
  std::vector<float> a, b;
  const float special[] = {0.f, 1.f, -1.f, 3.f, -3.f, 0.1f, -0.3f, 1e20f, -7.5f, 1e-30f, kInf, kNan};
  for (float x : special)
    for (float y : special) a.push_back(x), b.push_back(y);
  for (uint32_t i = 0; i < 20000; ++i) {
    a.push_back((uniform_from(random_word({3, 0, 0}, i)) - 0.5f) * 2000), b.push_back((uniform_from(random_word({4, 0, 0}, i)) - 0.5f) * 6);
  }
  auto got = values_of(Op::mod, a, b);
  for (size_t i = 0; i < a.size(); ++i) {
    float m = std::fmod(a[i], b[i]);
    float want = m != 0 && (m < 0) != (b[i] < 0) ? m + b[i] : m;
    ASSERT_TRUE(got[i] == want || (std::isnan(got[i]) && std::isnan(want))) << a[i] << " mod " << b[i] << " = " << got[i] << ", not " << want;
  }
}

TEST(TileMath, MaximumAndMinimumKeepNan) {
  const std::vector<float> a{kNan, 1.f, kNan, 2.f, -kInf}, b{1.f, kNan, kNan, 3.f, kInf};
  auto high = values_of(Op::maximum, a, b), low = values_of(Op::minimum, a, b);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(high[i]) && std::isnan(low[i]));
  EXPECT_EQ(high[3], 3.f);
  EXPECT_EQ(low[3], 2.f);
  EXPECT_EQ(high[4], kInf);
  EXPECT_EQ(low[4], -kInf);
}

// A value does not depend on its element's position in a vector.
TEST(TileMath, TailsGiveTheSameBits) {
  for (Op op : {Op::exp, Op::log1p, Op::tanh, Op::sin, Op::gelu_tanh, Op::gelu_tanh_grad, Op::erf, Op::sqrt, Op::relu}) {
    for (size_t n : {1, 5, 15, 17, 31, 63, 128, 300}) {
      std::vector<float> all(n);
      for (size_t i = 0; i < n; ++i) all[i] = 0.37f * float(i) - 2.1f;
      auto whole = values_of(op, all);
      for (size_t i = 0; i < n; ++i) EXPECT_EQ(std::bit_cast<uint32_t>(values_of(op, {all[i]})[0]), std::bit_cast<uint32_t>(whole[i]));
    }
  }
}

}  // namespace
}  // namespace ridge::cpu::tile_test
