#include <cmath>
#include <numbers>

#include "base/error.h"
#include "graph/builder.h"
#include "graph/ops/rows.h"

namespace ridge::ops {

Types infer_elementwise(const InferContext& c) {
  for (size_t i = 1; i < c.in.size(); ++i) {
    if (!(c.in[i].shape == c.in[0].shape))
      fail(ErrorCode::shape, "[{}] operands differ in shape: {} and {}; broadcast them first", name(c.op), to_string(c.in[0]), to_string(c.in[i]));
    size_t first = c.op == Op::select ? 1 : 0;
    if (i > first && c.in[i].dtype != c.in[first].dtype)
      fail(ErrorCode::dtype, "[{}] operands differ in dtype: {} and {}; cast one of them", name(c.op), to_string(c.in[first]), to_string(c.in[i]));
  }
  if (c.op == Op::select && c.in[0].dtype != DType::boolean) fail(ErrorCode::dtype, "[select] the condition must be bool, got {}", to_string(c.in[0]));
  return {c.op == Op::select ? c.in[1] : c.in[0]};
}

Types infer_comparison(const InferContext& c) {
  Types t = infer_elementwise(c);
  t[0].dtype = DType::boolean;
  return t;
}

Types infer_cast(const InferContext& c) { return {{DType(c.attrs.ints.at(0)), c.in[0].shape}}; }

Types infer_random_at(const InferContext& c) {
  const Type t = infer_elementwise(c)[0];
  if (t.dtype != DType::i64) fail(ErrorCode::dtype, "[random_at] seed, counter and lane must be i64, got {}", to_string(t));
  return {{DType::f32, t.shape}};
}

void vjp_unary(GradContext& c) {
  Builder b(c.graph());
  NodeId x = c.in(0), y = c.node(), g = c.cotangent();
  auto times = [&](NodeId factor) { c.add(0, b.mul(g, factor)); };
  switch (c.graph()[y].op) {
    case Op::neg: return c.add(0, b.neg(g));
    case Op::abs: return times(b.unary(Op::sign, x));
    case Op::sign:
    case Op::floor:
    case Op::ceil:
    case Op::round: return c.add(0, b.like(x, 0));
    case Op::exp: return times(y);
    case Op::expm1: return times(b.add(y, 1.0));
    case Op::log: return c.add(0, b.div(g, x));
    case Op::log1p: return c.add(0, b.div(g, b.add(x, 1.0)));
    case Op::sqrt: return c.add(0, b.div(b.mul(g, 0.5), y));
    case Op::rsqrt: return times(b.mul(b.mul(b.mul(y, y), y), -0.5));
    case Op::sin: return times(b.unary(Op::cos, x));
    case Op::cos: return times(b.neg(b.unary(Op::sin, x)));
    case Op::tanh: return times(b.binary(Op::sub, 1.0, b.square(y)));
    case Op::sigmoid: return times(b.mul(y, b.binary(Op::sub, 1.0, y)));
    case Op::relu: return c.add(0, b.select(b.binary(Op::greater, x, 0.0), g, b.like(g, 0)));
    case Op::gelu_tanh: return times(b.unary(Op::gelu_tanh_grad, x));
    case Op::gelu_erf: return times(b.unary(Op::gelu_erf_grad, x));
    case Op::silu: return times(b.unary(Op::silu_grad, x));
    case Op::softplus: return times(b.unary(Op::sigmoid, x));
    case Op::erf: return times(b.mul(b.unary(Op::exp, b.neg(b.square(x))), 2 / std::sqrt(std::numbers::pi)));
    case Op::gelu_tanh_grad: {
      // f = x (1 + tanh u) / 2 with u = k (x + a x^3): f'' = (1 - t^2) (u' + x u'' / 2 - x t u'^2)
      const double k = std::sqrt(2 / std::numbers::pi), a = 0.044715;
      NodeId x2 = b.square(x);
      NodeId t = b.unary(Op::tanh, b.mul(b.mul(x, b.add(b.mul(x2, a), 1.0)), k));
      NodeId d1 = b.mul(b.add(b.mul(x2, 3 * a), 1.0), k), d2 = b.mul(x, 6 * a * k);
      NodeId inner = b.sub(b.add(d1, b.mul(b.mul(x, d2), 0.5)), b.mul(b.mul(x, t), b.square(d1)));
      return times(b.mul(b.binary(Op::sub, 1.0, b.square(t)), inner));
    }
    case Op::gelu_erf_grad: {
      NodeId density = b.mul(b.unary(Op::exp, b.mul(b.square(x), -0.5)), 1 / std::sqrt(2 * std::numbers::pi));
      return times(b.mul(density, b.binary(Op::sub, 2.0, b.square(x))));
    }
    case Op::silu_grad: {
      NodeId s = b.unary(Op::sigmoid, x);
      NodeId slope = b.mul(s, b.binary(Op::sub, 1.0, s));
      return times(b.mul(slope, b.add(b.mul(x, b.binary(Op::sub, 1.0, b.mul(s, 2.0))), 2.0)));
    }
    default: fail(ErrorCode::internal, "[{}] no gradient rule", name(c.graph()[y].op));
  }
}

void vjp_binary(GradContext& c) {
  Builder b(c.graph());
  NodeId x = c.in(0), y = c.in(1), out = c.node(), g = c.cotangent();
  auto give = [&](int i, auto make) {
    if (c.needs(i)) c.add(i, make());
  };
  NodeId zero = b.like(g, 0);
  Op op = c.graph()[out].op;
  switch (op) {
    case Op::add: give(0, [&] { return g; }), give(1, [&] { return g; }); return;
    case Op::sub: give(0, [&] { return g; }), give(1, [&] { return b.neg(g); }); return;
    case Op::mul: give(0, [&] { return b.mul(g, y); }), give(1, [&] { return b.mul(g, x); }); return;
    case Op::div: give(0, [&] { return b.div(g, y); }), give(1, [&] { return b.neg(b.div(b.mul(g, out), y)); }); return;
    case Op::pow:
      give(0, [&] { return b.mul(g, b.select(b.binary(Op::equal, y, 0.0), zero, b.mul(y, b.binary(Op::pow, x, b.sub(y, 1.0))))); });
      give(1, [&] {  // 0^y has slope 0 for y >= 0
        NodeId flat = b.binary(Op::logical_and, b.binary(Op::equal, x, 0.0), b.binary(Op::greater_equal, y, 0.0));
        return b.mul(g, b.select(flat, zero, b.mul(out, b.unary(Op::log, x))));
      });
      return;
    case Op::minimum:
    case Op::maximum: {  // equal operands share the gradient
      NodeId half = b.mul(g, 0.5), tie = b.binary(Op::equal, x, y);
      Op wins = op == Op::maximum ? Op::greater : Op::less;
      give(0, [&] { return b.select(tie, half, b.select(b.binary(wins, x, y), g, zero)); });
      give(1, [&] { return b.select(tie, half, b.select(b.binary(wins, y, x), g, zero)); });
      return;
    }
    case Op::mod:
      give(0, [&] { return g; });
      give(1, [&] { return b.neg(b.mul(g, b.unary(Op::floor, b.div(x, y)))); });
      return;
    default: fail(ErrorCode::internal, "[{}] no gradient rule", name(op));
  }
}

void vjp_select(GradContext& c) {
  Builder b(c.graph());
  NodeId g = c.cotangent(), zero = b.like(g, 0);
  if (c.needs(1)) c.add(1, b.select(c.in(0), g, zero));
  if (c.needs(2)) c.add(2, b.select(c.in(0), zero, g));
}

void vjp_clamp(GradContext& c) {
  Builder b(c.graph());
  NodeId x = c.in(0), low = c.in(1), high = c.in(2), g = c.cotangent(), zero = b.like(g, 0);
  NodeId above = b.binary(Op::greater, x, high), below = b.binary(Op::less, x, low);
  if (c.needs(0)) c.add(0, b.select(b.binary(Op::logical_or, above, below), zero, g));
  if (c.needs(1)) c.add(1, b.select(b.binary(Op::logical_and, below, b.unary(Op::logical_not, above)), g, zero));
  if (c.needs(2)) c.add(2, b.select(above, g, zero));
}

void vjp_cast(GradContext& c) {
  Builder b(c.graph());
  if (is_float(b.dtype(c.in(0)))) c.add(0, b.cast(c.cotangent(), b.dtype(c.in(0))));
}

Cost cost_elementwise(const Graph& g, NodeId id) {
  Cost cost{double(g.shape(id).numel()), double(g.type(id).bytes())};
  for (NodeId in : g[id].in) cost.bytes += double(g.type(in).bytes());
  return cost;
}

namespace {

void unary_samples(const SampleSink& sink, double low, double high, double avoid) {
  for (Shape s : {Shape{}, Shape{1}, Shape{7}, Shape{0, 3}, Shape{3, 33}, Shape{2, 3, 31}}) sink({{{{DType::f32, s}, low, high}}, {}, avoid});
  for (DType t : {DType::bf16, DType::f16}) sink({{{{t, {5, 7}}, low, high}}, {}, avoid});
}

void binary_samples(const SampleSink& sink, double low, double high, double second_low, double second_high) {
  for (Shape s : {Shape{}, Shape{1}, Shape{7}, Shape{0, 3}, Shape{3, 33}, Shape{2, 3, 31}})
    sink({{{{DType::f32, s}, low, high}, {{DType::f32, s}, second_low, second_high}}, {}, 0});
  for (DType t : {DType::bf16, DType::f16, DType::i32, DType::i64})
    sink({{{{t, {5, 7}}, low * 4, high * 4}, {{t, {5, 7}}, second_low * 4, second_high * 4}}, {}, 0});
}

}  // namespace

void samples_smooth(const SampleSink& sink) { unary_samples(sink, -2, 2, 0); }
void samples_kinked(const SampleSink& sink) { unary_samples(sink, -2.4, 2.4, 0.1); }
void samples_positive(const SampleSink& sink) { unary_samples(sink, 0.2, 3, 0); }
void samples_binary(const SampleSink& sink) { binary_samples(sink, -2, 2, -2, 2); }
void samples_divisor(const SampleSink& sink) { binary_samples(sink, -2, 2, 0.6, 1.9); }

void samples_power(const SampleSink& sink) {
  for (Shape s : {Shape{}, Shape{7}, Shape{3, 33}}) sink({{{{DType::f32, s}, 0.2, 2}, {{DType::f32, s}, -2, 2}}, {}, 0});
  sink({{{{DType::bf16, {5, 7}}, 0.5, 2}, {{DType::bf16, {5, 7}}, -1, 1}}, {}, 0});
}

void samples_integer_like(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8})
    for (Shape s : {Shape{}, Shape{7}, Shape{3, 33}}) {
      double low = t == DType::u8 ? 0 : -2;
      sink({{{{t, s}, low, 3}, {{t, s}, low, 3}}, {}, 0});
    }
}

void samples_logic(const SampleSink& sink) {
  for (Shape s : {Shape{}, Shape{7}, Shape{3, 33}}) sink({{{{DType::boolean, s}, 0, 2}, {{DType::boolean, s}, 0, 2}}, {}, 0});
}

void samples_select(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::bf16, DType::i32, DType::i64})
    for (Shape s : {Shape{}, Shape{7}, Shape{3, 33}}) sink({{{{DType::boolean, s}, 0, 2}, {{t, s}}, {{t, s}}}, {}, 0});
}

void samples_clamp(const SampleSink& sink) {
  for (DType t : {DType::f32, DType::bf16})
    for (Shape s : {Shape{}, Shape{7}, Shape{3, 33}}) sink({{{{t, s}}, {{t, s}, -1.5, -0.5}, {{t, s}, 0.5, 1.5}}, {}, 0});
}

void samples_random_at(const SampleSink& sink) {
  for (Shape s : {Shape{}, Shape{7}, Shape{0, 3}, Shape{3, 33}, Shape{2, 3, 31}})
    sink({{{{DType::i64, s}, 0, 0x1p62}, {{DType::i64, s}, 0, 0x1p40}, {{DType::i64, s}, 0, 0x1p62}}, {}, 0});
}

void samples_cast(const SampleSink& sink) {
  using enum DType;
  for (DType from : {boolean, u8, i32, i64, f16, bf16, f32})
    for (DType to : {boolean, u8, i32, i64, f16, bf16, f32})
      if (from != to)
        sink({{{{from, {3, 7}}, from == boolean || from == u8 || to == u8 ? 0.0 : -100.0, from == boolean ? 2.0 : 100.0}}, {{int64_t(to)}, {}, nullptr}, 0});
}

BatchFlow batch_same(const BatchContext& c) {
  std::optional<SampleAxis> found;
  for (const std::optional<SampleAxis>& at : c.in) {
    if (!at) continue;
    if (found && !(*found == *at)) throw Coupled{"its operands have their samples on different axes"};
    found = at;
  }
  return {found};
}

NodeId lift_same(const LiftContext& c) { return lifted(c, c.node.attrs.ints); }

}  // namespace ridge::ops
