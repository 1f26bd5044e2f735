// The accuracy required of each operation.
#pragma once
#include <algorithm>

#include "machine/features.h"
#include "ops/harness.h"

namespace ridge::test {

inline double largest(const reference::Array& a) {
  double m = 0;
  for (double v : a.f)
    if (std::isfinite(v)) m = std::max(m, std::fabs(v));
  return m;
}

// Operations whose result is one correctly rounded value, or a copy: every device must give the same bits.
inline bool is_exact(Op op) {
  switch (op) {
    case Op::exp:
    case Op::expm1:
    case Op::log:
    case Op::log1p:
    case Op::rsqrt:
    case Op::sin:
    case Op::cos:
    case Op::tanh:
    case Op::sigmoid:
    case Op::gelu_tanh:
    case Op::gelu_erf:
    case Op::silu:
    case Op::softplus:
    case Op::erf:
    case Op::gelu_tanh_grad:
    case Op::gelu_erf_grad:
    case Op::silu_grad:
    case Op::pow:
    case Op::reduce_sum:
    case Op::reduce_prod:
    case Op::cumsum:
    case Op::fold:
    case Op::scatter_add:
    case Op::take_grad:
    case Op::matmul:
    case Op::conv:
    case Op::attention:
    case Op::attention_grad:
    case Op::scan: return false;
    default: return true;
  }
}

// Operations that give the same bits with and without fusion. How many elements the others sum at a time depends on the rest of their kernel or on their
// operands' layout; the tolerances below apply to them.
inline bool has_one_order(Op op) { return op != Op::reduce_sum && op != Op::reduce_prod && op != Op::matmul; }

// Tolerance for one result of a node, from its operands' values. All arithmetic is f32; the result's dtype adds one rounding.
inline Tolerance tolerance(const Graph& graph, NodeId node, DType result, const std::vector<reference::Array>& in) {
  const Node& n = graph[node];
  if (!is_float(result) || is_exact(n.op)) return {};
  const double eps = 0x1p-23;
  // 16-bit matrix units round the attention weights to the operands' dtype.
  const bool rounds_weights = result != DType::f32 && (other_device() || (result == DType::bf16 && has_bf16(isa_tier())));
  Tolerance t{result == DType::f32 ? 0 : spacing(result), smallest(result)};
  auto sum = [&](double length, double size) { t.absolute += 2 * eps * length * size; };
  // Terms added one after another: half a unit in the last place of every partial sum.
  auto one_by_one = [&](double length, double size) { t.absolute += eps / 4 * length * (length + 1) * size; };
  switch (n.op) {
    case Op::reduce_sum: sum(double(in[0].size()) / double(std::max<int64_t>(1, n.type().shape.numel())), largest(in[0])); break;
    case Op::reduce_prod: t.relative += 2 * eps * double(in[0].size()) / double(std::max<int64_t>(1, n.type().shape.numel())); break;
    case Op::cumsum: one_by_one(double(n.type().shape[int(n.attrs.ints[0])]), largest(in[0])); break;
    case Op::fold: sum(double(in[0].type.shape.back()), largest(in[0])); break;
    case Op::scatter_add: one_by_one(1 + double(in[1].type.shape[int(n.attrs.ints[0])]), std::max(largest(in[0]), largest(in[2]))); break;
    case Op::take_grad: one_by_one(double(in[1].size()), largest(in[0])); break;
    case Op::matmul: {  // without fused multiply-add every product is rounded too
      const double roundings = isa_tier() == IsaTier::sse4 || other_device() ? 2 : 1;
      sum(roundings * double(in[0].type.shape.back()), largest(in[0]) * largest(in[1]));
      break;
    }
    case Op::conv: sum(double(in[1].size()) / double(in[1].type.shape[0]), largest(in[0]) * largest(in[1])); break;
    case Op::attention: {  // scores of this magnitude go through exp, and weights that sum to 1 multiply v
      double scores = n.attrs.reals[0] * double(in[0].type.shape[3]) * largest(in[0]) * largest(in[1]);
      sum(4 + scores, 1 + largest(in[2]));
      if (rounds_weights) t.absolute += spacing(result) / 2 * largest(in[2]);
      break;
    }
    case Op::attention_grad: {  // the saved log-sum-exp is arbitrary here, so probabilities may be far above 1
      double p = 1, scores = n.attrs.reals[0] * double(in[0].type.shape[3]) * largest(in[0]) * largest(in[1]);
      for (const auto& a : in)
        if (a.floating() && a.type.shape.rank() == 3) p = std::exp(std::min(scores, 8.0));
      sum((4 + scores) * p * double(in[1].type.shape[2] + in[0].type.shape[2]), 1 + largest(in[0]) + largest(in[1]));
      if (rounds_weights) t.absolute += spacing(result) * p * (1 + largest(in[0]) + largest(in[1]));
      break;
    }
    case Op::scan: sum(8 * double(std::max<int64_t>(1, n.attrs.ints[0])) * 6, 2); break;
    case Op::gelu_tanh_grad:
    case Op::gelu_erf_grad:
    case Op::silu_grad: t.absolute += 2 * eps; [[fallthrough]];  // its sum crosses zero
    default: t.relative += 6 * eps;                              // one transcendental function: a few units in the last place
  }
  return t;
}

}  // namespace ridge::test
