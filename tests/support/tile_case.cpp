#include "support/tile_case.h"

namespace ridge::tile_test {

double round_to(DType t, double v) {
  switch (t) {
    case DType::f32: return v;  // sums and chains stay in double; the tolerance covers f32
    case DType::bf16: return bf16_to_f32(f32_to_bf16(float(v)));
    case DType::f16: return f16_to_f32(f32_to_f16(float(v)));
    case DType::boolean: return v != 0;
    case DType::u8: return double(uint8_t(int64_t(v)));
    case DType::i32: return double(int32_t(uint32_t(int64_t(v))));
    default: return v;
  }
}

double scalar_op(Op op, DType t, double a, double b, double c) {
  const double k = std::sqrt(2 / M_PI);
  auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  auto cdf = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  switch (op) {
    case Op::neg: return -a;
    case Op::abs: return std::fabs(a);
    case Op::sign: return std::isnan(a) ? a : double((a > 0) - (a < 0));
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
    case Op::gelu_tanh: return 0.5 * a * (1 + std::tanh(k * (a + 0.044715 * a * a * a)));
    case Op::gelu_erf: return a * cdf(a);
    case Op::silu: return a * sigmoid(a);
    case Op::softplus: return std::max(a, 0.0) + std::log1p(std::exp(-std::fabs(a)));
    case Op::erf: return std::erf(a);
    case Op::floor: return std::floor(a);
    case Op::ceil: return std::ceil(a);
    case Op::round: return std::nearbyint(a);
    case Op::is_finite: return std::isfinite(a);
    case Op::logical_not: return a == 0;
    case Op::gelu_tanh_grad: {
      double s = sigmoid(2 * k * (a + 0.044715 * a * a * a));
      return s + a * s * (1 - s) * 2 * k * (1 + 3 * 0.044715 * a * a);
    }
    case Op::gelu_erf_grad: return cdf(a) + a * std::exp(-0.5 * a * a) / std::sqrt(2 * M_PI);
    case Op::silu_grad: return sigmoid(a) * (1 + a * (1 - sigmoid(a)));
    case Op::cast: return is_float(t) ? a : t == DType::boolean ? double(a != 0) : std::trunc(a);
    case Op::add: return a + b;
    case Op::sub: return a - b;
    case Op::mul: return a * b;
    case Op::div: return is_float(t) ? a / b : b == 0 ? 0 : std::trunc(a / b);
    case Op::pow: return std::pow(a, b);
    case Op::minimum: return std::isnan(a) || a < b ? a : b;
    case Op::maximum: return std::isnan(a) || a > b ? a : b;
    case Op::mod: {
      if (b == 0 && !is_float(t)) return 0;
      double m = std::fmod(a, b);
      return m != 0 && (m < 0) != (b < 0) ? m + b : m;
    }
    case Op::equal: return a == b;
    case Op::not_equal: return a != b;
    case Op::less: return a < b;
    case Op::less_equal: return a <= b;
    case Op::greater: return a > b;
    case Op::greater_equal: return a >= b;
    case Op::logical_and: return a != 0 && b != 0;
    case Op::logical_or: return a != 0 || b != 0;
    case Op::logical_xor: return (a != 0) != (b != 0);
    case Op::select: return a != 0 ? b : c;
    case Op::clamp: return std::min(std::max(a, b), c);
    default: return 0;
  }
}

namespace {

struct Evaluator {
  const TileGroup& g;
  std::vector<Memory>& memory;
  int64_t points;
  std::vector<std::vector<double>> values;

  std::vector<int64_t> index(int64_t point) const {
    std::vector<int64_t> i(size_t(g.domain.rank()));
    for (int a = g.domain.rank(); a-- > 0;) i[size_t(a)] = point % g.domain[a], point /= g.domain[a];
    return i;
  }
  int64_t element(const TileAccess& a, int64_t point) const {
    auto i = index(point);
    int64_t e = a.offset;
    for (int k = 0; k < g.domain.rank(); ++k) e += i[size_t(k)] * a.strides[k];
    if (a.gather >= 0) {
      auto v = int64_t(values[size_t(a.gather)][size_t(point)]);
      e += (v >= 0 && v < a.gather_size ? v : 0) * a.gather_stride;
    }
    return e;
  }
  bool inside(const TileAccess& a, int64_t point) const {
    auto i = index(point);
    return std::all_of(a.bounds.begin(), a.bounds.end(), [&](const auto& b) { return i[size_t(b.axis)] >= b.low && i[size_t(b.axis)] < b.high; });
  }

  void reduce(const TileNode& n, std::vector<double>& out) const {
    const int rank = g.domain.rank(), column = g.form == Form::column;
    const int first = rank - g.reduced - column, last = rank - column;
    int64_t length = 1, inner = 1;
    for (int a = first; a < last; ++a) length *= g.domain[a];
    for (int a = last; a < rank; ++a) inner *= g.domain[a];
    const auto& x = values[size_t(n.in[0])];
    if (length * inner == 0) return;
    for (int64_t o = 0; o < points / (length * inner); ++o) {
      for (int64_t c = 0; c < inner; ++c) {
        auto at = [&](int64_t k) { return size_t((o * length + k) * inner + c); };
        double best = x[at(0)], sum = 0, prod = 1;
        int64_t where = 0;
        const bool low = n.op == Op::reduce_min || n.op == Op::arg_min;
        for (int64_t k = 0; k < length; ++k) {
          double v = x[at(k)];
          sum += v, prod *= v;
          bool wins = std::isnan(v) ? !std::isnan(best) : low ? v < best : v > best;
          if (wins) best = v, where = k;
        }
        double r = n.op == Op::reduce_sum ? sum : n.op == Op::reduce_prod ? prod : n.op == Op::arg_max || n.op == Op::arg_min ? double(where) : best;
        for (int64_t k = 0; k < length; ++k) out[at(k)] = r;
      }
    }
  }

  void node(size_t k) {
    const TileNode& n = g.nodes[k];
    auto& out = values[k];
    out.assign(size_t(points), 0);
    if (n.kind == Kind::reduce) return reduce(n, out);
    for (int64_t p = 0; p < points; ++p) {
      auto in = [&](int j) { return n.in[size_t(j)] >= 0 ? values[size_t(n.in[size_t(j)])][size_t(p)] : 0; };
      const TileAccess* a = n.access >= 0 ? &g.accesses[size_t(n.access)] : nullptr;
      double v = 0;
      switch (n.kind) {
        case Kind::load: v = inside(*a, p) ? memory[size_t(a->operand)].get(element(*a, p)) : in(0); break;
        case Kind::literal: v = n.value; break;
        case Kind::index: v = double(element(*a, p)); break;
        case Kind::random: {
          uint32_t word = random_word({uint64_t(int64_t(in(0))), uint32_t(int64_t(in(1))), n.stream}, uint64_t(element(*a, p) + int64_t(in(2))));
          v = n.op == Op::random_uniform ? double(uniform_from(word)) : double(int32_t(word));
          break;
        }
        case Kind::check: v = in(0) >= 0 && in(0) < n.value ? 0 : std::numeric_limits<double>::quiet_NaN(); break;
        case Kind::elementwise: v = scalar_op(n.op, n.op == Op::cast ? n.dtype : g.nodes[size_t(n.in[0])].dtype, in(0), in(1), in(2)); break;
        default: v = in(0);
      }
      out[size_t(p)] = round_to(n.dtype, v);
    }
  }
};

}  // namespace

void evaluate(const TileGroup& group, std::vector<Memory>& memory) {
  Evaluator e{group, memory, group.domain.numel(), {}};
  e.values.resize(group.nodes.size());
  for (size_t k = 0; k < group.nodes.size(); ++k) e.node(k);
  for (size_t k = 0; k < group.nodes.size(); ++k) {
    const TileNode& n = group.nodes[k];
    if (n.kind != Kind::store) continue;
    const TileAccess& a = group.accesses[size_t(n.access)];
    for (int64_t p = 0; p < e.points; ++p) memory[size_t(a.operand)].set(e.element(a, p), e.values[k][size_t(p)]);
  }
}

void compare(const TileGroup& group, const std::vector<Memory>& got, const std::vector<Memory>& want, double tolerance) {
  for (size_t m = 0; m < got.size(); ++m) {
    ASSERT_TRUE(got[m].intact()) << "operand " << m << " written outside\n" << to_string(group);
    const DType t = got[m].dtype;
    const double step = t == DType::bf16 ? 0x1p-7 : t == DType::f16 ? 0x1p-10 : is_float(t) ? 0 : -1;
    for (int64_t i = 0; i < got[m].size; ++i) {
      double a = got[m].get(i), b = want[m].get(i);
      if (std::isnan(a) && std::isnan(b)) continue;
      if (a == b) continue;
      double limit = step < 0 ? 0 : (tolerance + step) * (1 + std::fabs(b));
      ASSERT_LE(std::fabs(a - b), limit) << "operand " << m << " element " << i << " is " << a << ", not " << b << "\n" << to_string(group);
    }
  }
}

}  // namespace ridge::tile_test
