#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "backend/reference/ops.h"
#include "base/error.h"
#include "base/rng.h"
#include "graph/ops/table.h"

namespace ridge::reference {
namespace {

const double kNaN = std::numeric_limits<double>::quiet_NaN();

double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
double normal_density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }
double normal_cdf(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }

// The tanh form of gelu is x (1 + tanh u) / 2 with u = k (x + a x³).
const double kGeluScale = std::sqrt(2 / std::numbers::pi), kGeluCubic = 0.044715;
double gelu_inner(double x) { return kGeluScale * (x + kGeluCubic * x * x * x); }

// At infinity, the products 0 · inf in the formulas below are replaced by their limits: 0 on the left, 1 (or x) on the right.
double gelu_tanh(double x) { return std::isinf(x) ? std::max(x, 0.0) : x * sigmoid(2 * gelu_inner(x)); }
double gelu_erf(double x) { return std::isinf(x) ? std::max(x, 0.0) : x * normal_cdf(x); }
double silu(double x) { return std::isinf(x) ? std::max(x, 0.0) : x * sigmoid(x); }
double gelu_tanh_grad(double x) {
  if (std::isinf(x)) return x > 0;
  double s = sigmoid(2 * gelu_inner(x));
  return s + x * 2 * s * (1 - s) * kGeluScale * (1 + 3 * kGeluCubic * x * x);
}
double gelu_erf_grad(double x) { return std::isinf(x) ? double(x > 0) : normal_cdf(x) + x * normal_density(x); }
double silu_grad(double x) {
  if (std::isinf(x)) return x > 0;
  double s = sigmoid(x);
  return s * (1 + x * (1 - s));
}

double modulo(double a, double b) {  // has the divisor's sign
  double r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

double real_value(Op op, double a, double b, double c) {
  switch (op) {
    case Op::neg: return -a;
    case Op::abs: return std::fabs(a);
    case Op::sign: return std::isnan(a) ? a : double(a > 0) - double(a < 0);
    case Op::exp: return std::exp(a);
    case Op::expm1: return std::expm1(a);
    case Op::log: return std::log(a);
    case Op::log1p: return std::log1p(a);
    case Op::sqrt: return std::sqrt(a);
    case Op::rsqrt: return 1 / std::sqrt(a);
    case Op::sin: return std::sin(a);
    case Op::cos: return std::cos(a);
    case Op::tanh: return std::tanh(a);
    case Op::sigmoid: return sigmoid(a);
    case Op::relu: return a > 0 || std::isnan(a) ? a : 0;
    case Op::gelu_tanh: return gelu_tanh(a);
    case Op::gelu_erf: return gelu_erf(a);
    case Op::silu: return silu(a);
    case Op::softplus: return std::max(a, 0.0) + std::log1p(std::exp(-std::fabs(a)));
    case Op::erf: return std::erf(a);
    case Op::floor: return std::floor(a);
    case Op::ceil: return std::ceil(a);
    case Op::round: return std::nearbyint(a);  // half to even
    case Op::gelu_tanh_grad: return gelu_tanh_grad(a);
    case Op::gelu_erf_grad: return gelu_erf_grad(a);
    case Op::silu_grad: return silu_grad(a);
    case Op::add: return a + b;
    case Op::sub: return a - b;
    case Op::mul: return a * b;
    case Op::div: return a / b;
    case Op::pow: return std::pow(a, b);
    case Op::minimum: return std::isnan(a) || std::isnan(b) ? kNaN : std::min(a, b);
    case Op::maximum: return std::isnan(a) || std::isnan(b) ? kNaN : std::max(a, b);
    case Op::mod: return modulo(a, b);
    case Op::clamp: return std::isnan(a) || std::isnan(b) || std::isnan(c) ? kNaN : std::min(std::max(a, b), c);
    default: fail(ErrorCode::internal, "[{}] has no value of a floating type", name(op));
  }
}

// Integers; overflow wraps (the caller truncates to the dtype), and division by zero gives 0.
int64_t whole_value(Op op, int64_t a, int64_t b, int64_t c) {
  auto wrapped = [](uint64_t v) { return int64_t(v); };
  uint64_t ua = uint64_t(a), ub = uint64_t(b);
  switch (op) {
    case Op::neg: return wrapped(0 - ua);
    case Op::abs: return a < 0 ? wrapped(0 - ua) : a;
    case Op::sign: return (a > 0) - (a < 0);
    case Op::relu: return std::max<int64_t>(a, 0);
    case Op::floor:
    case Op::ceil:
    case Op::round: return a;
    case Op::add: return wrapped(ua + ub);
    case Op::sub: return wrapped(ua - ub);
    case Op::mul: return wrapped(ua * ub);
    case Op::div: return b == 0 ? 0 : b == -1 ? wrapped(0 - ua) : a / b;
    case Op::mod: {
      if (b == 0 || b == -1) return 0;
      int64_t r = a % b;
      return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    case Op::pow: {
      if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
      uint64_t power = 1;
      for (uint64_t base = ua; ub > 0; ub /= 2, base *= base)
        if (ub % 2) power *= base;
      return wrapped(power);
    }
    case Op::minimum: return std::min(a, b);
    case Op::maximum: return std::max(a, b);
    case Op::clamp: return std::min(std::max(a, b), c);
    default: fail(ErrorCode::internal, "[{}] has no value of an integer type", name(op));
  }
}

template <class T>
bool truth(Op op, T a, T b) {
  switch (op) {
    case Op::equal: return a == b;
    case Op::not_equal: return a != b;
    case Op::less: return a < b;
    case Op::less_equal: return a <= b;
    case Op::greater: return a > b;
    case Op::greater_equal: return a >= b;
    case Op::is_finite: return std::isfinite(double(a));
    case Op::logical_not: return a == 0;
    case Op::logical_and: return a != 0 && b != 0;
    case Op::logical_or: return a != 0 || b != 0;
    case Op::logical_xor: return (a != 0) != (b != 0);
    default: fail(ErrorCode::internal, "[{}] is not a condition", name(op));
  }
}

// Floating to integer drops the fraction; out-of-range values saturate to i64 before wrapping, and NaN becomes 0.
int64_t whole(double v) {
  if (std::isnan(v)) return 0;
  if (v >= 0x1p63) return std::numeric_limits<int64_t>::max();
  if (v < -0x1p63) return std::numeric_limits<int64_t>::min();
  return int64_t(v);
}

Array cast(const Node& node, const Array& x) {
  Array out = zeros(node.type());
  for (int64_t k = 0; k < out.size(); ++k) {
    size_t at = size_t(k);
    if (out.floating())
      out.f[at] = x.at(k);
    else if (out.type.dtype == DType::boolean)
      out.i[at] = x.floating() ? x.f[at] != 0 : x.i[at] != 0;
    else
      out.i[at] = wrap_to(out.type.dtype, x.floating() ? whole(x.f[at]) : x.i[at]);
  }
  return out;
}

}  // namespace

Array elementwise(const Node& node, Operands in) {
  if (node.op == Op::cast) return cast(node, *in[0]);
  Array out = zeros(node.type());
  for (int64_t k = 0; k < out.size(); ++k) {
    size_t at = size_t(k);
    auto real = [&](size_t operand) { return operand < in.size() ? in[operand]->f[at] : 0; };
    auto integer = [&](size_t operand) { return operand < in.size() ? in[operand]->i[at] : 0; };
    if (node.op == Op::select)
      copy_element(out, k, in[0]->i[at] ? *in[1] : *in[2], k);
    else if (row(node.op).has(OpRow::truth))
      out.i[at] = in[0]->floating() ? truth(node.op, real(0), real(1)) : truth(node.op, integer(0), integer(1));
    else if (node.op == Op::random_at)
      out.f[at] = uniform_from(philox({uint64_t(integer(0)), uint32_t(integer(2)), uint32_t(uint64_t(integer(2)) >> 32)}, uint64_t(integer(1)))[0]);
    else if (out.floating())
      out.f[at] = real_value(node.op, real(0), real(1), real(2));
    else
      out.i[at] = wrap_to(out.type.dtype, whole_value(node.op, integer(0), integer(1), integer(2)));
  }
  return out;
}

}  // namespace ridge::reference
