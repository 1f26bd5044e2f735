#include "compile/simplify.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/half.h"
#include "graph/builder.h"
#include "graph/ops/conv.h"
#include "graph/ops/table.h"
#include "graph/rewrite.h"

namespace ridge {
namespace {

class Simplifier {
 public:
  Simplifier(Graph& graph, bool conv_fuses, bool conv_reads_bytes) : g_(graph), b_(graph), conv_fuses_(conv_fuses), conv_reads_bytes_(conv_reads_bytes) {}

  std::vector<NodeId> visit(NodeId id, std::span<const NodeId> in) {
    const Node& n = g_[id];
    if (NodeId folded = fold(n, in)) return {folded};
    switch (n.op) {
      case Op::reshape: return reshape(n, in[0]);
      case Op::permute: return permute(n, in[0]);
      case Op::expand:
        if (g_[in[0]].op == Op::expand) return {b_.expand(g_[in[0]].in[0], n.type().shape)};
        return {};
      case Op::add:
        if (is_literal(in[1], 0) && g_.dtype(in[0]) == n.type().dtype) return {in[0]};
        if (is_literal(in[0], 0)) return {in[1]};
        if (NodeId joined = joined_pads(n, in)) return {joined};
        return {};
      case Op::sub:
        if (is_literal(in[1], 0)) return {in[0]};
        return {};
      case Op::mul:
        if (is_literal(in[1], 1)) return {in[0]};
        if (is_literal(in[0], 1)) return {in[1]};
        return {};
      case Op::div:
        if (is_literal(in[1], 1)) return {in[0]};
        return {};
      case Op::neg:
        if (g_[in[0]].op == Op::neg) return {g_[in[0]].in[0]};
        return {};
      case Op::relu: return {positive_[in[0]] = g_.add(n.op, in, n.attrs, n.copy)};
      case Op::greater:
        if (auto it = positive_.find(in[0]);
            it != positive_.end() && is_literal(in[1], 0) && (conv_fuses_ || (convolved_.count(it->second) && follows_conv(in[0]))))
          return {b_.binary(n.op, it->second, 0.0)};
        return {};
      case Op::cast:
        if (g_.dtype(in[0]) == n.type().dtype) return {in[0]};
        if (g_[in[0]].op == Op::relu && size_of(n.type().dtype) == 2) return {positive_[g_[in[0]].in[0]] = g_.add(n.op, in, n.attrs, n.copy)};
        if (g_[in[0]].op == Op::literal && is_float(n.type().dtype) && is_float(g_.dtype(in[0])) && size_of(n.type().dtype) >= size_of(g_.dtype(in[0])))
          return {g_.literal(n.type().dtype, number_of(in[0]))};
        if (is_float(n.type().dtype) && size_of(n.type().dtype) == 2 && g_.dtype(in[0]) == DType::f32)
          if (NodeId before = before_widening(in[0], n.type().dtype)) return {before};
        return {};
      case Op::select:
        if (is_literal(in[0], 1)) return {in[1]};
        if (is_literal(in[0], 0)) return {in[2]};
        if (in[1] == in[2]) return {in[1]};
        return {};
      case Op::matmul: {
        NodeId a = narrow(in[0]), b = narrow(in[1]);
        if (!a && !b) return {};
        return {g_.add(Op::matmul, {a ? a : in[0], b ? b : in[1]}, n.attrs, n.copy)};
      }
      case Op::conv:
        convolved_.insert(in[0]);
        if (NodeId sums = conv_reads_bytes_ ? ops::conv_of_bytes(g_, n, in, conv_fuses_) : kNone) return {sums};
        return {};
      case Op::take:
        if (NodeId table = narrow(in[0])) return {b_.cast(g_.add(Op::take, {table, in[1]}, n.attrs, n.copy), n.type().dtype)};
        return {};
      default: return {};
    }
  }

 private:
  // For a value that is stored in 16 bits (an input, attention's result) and then only widened and moved: the narrow value, moved in the
  // same way. Products widen what they read, and only rows of a table are needed, so a wide copy is never made. kNone: `id` is not such a
  // value.
  NodeId narrow(NodeId id) {
    const Node n = g_[id];
    if (n.op == Op::cast) {
      NodeId stored = n.in[0];
      if (n.type().dtype != DType::f32 || !is_float(g_.dtype(stored)) || size_of(g_.dtype(stored)) != 2) return kNone;
      while (moves_whole(g_[stored].op)) stored = g_[stored].in[0];
      return g_[stored].op == Op::input || g_[stored].op == Op::get ? n.in[0] : kNone;
    }
    if (!moves_whole(n.op)) return kNone;
    NodeId below = narrow(n.in[0]);
    return below ? g_.add(n.op, {below}, n.attrs, n.copy) : kNone;
  }
  // The value that was widened from `dtype`, with the same movement applied to it; kNone: not such a value.
  NodeId before_widening(NodeId id, DType dtype) {
    const Node n = g_[id];
    if (n.op == Op::cast) return g_.dtype(n.in[0]) == dtype ? n.in[0] : kNone;
    if (!moves_whole(n.op)) return kNone;
    NodeId below = before_widening(n.in[0], dtype);
    return below ? g_.add(n.op, {below}, n.attrs, n.copy) : kNone;
  }
  // Whether only a bias lies between a convolution and this value.
  bool follows_conv(NodeId id) const {
    while (g_[id].op == Op::cast || g_[id].op == Op::add) id = g_[id].in[0];
    return g_[id].op == Op::conv;
  }
  // Views that the search for a narrow form looks through.
  static bool moves_whole(Op op) { return op == Op::reshape || op == Op::permute || op == Op::expand || op == Op::slice; }

  // Arithmetic on f32 literals only, rounded as a kernel would.
  NodeId fold(const Node& n, std::span<const NodeId> in) {
    if ((n.op != Op::add && n.op != Op::sub && n.op != Op::mul && n.op != Op::div) || n.type().dtype != DType::f32) return kNone;
    float v[2];
    for (size_t i = 0; i < 2; ++i) {
      NodeId id = in[i];
      while (g_[id].op == Op::expand || g_[id].op == Op::reshape) id = g_[id].in[0];
      if (g_[id].op != Op::literal) return kNone;
      v[i] = float(number_of(id));
    }
    float r = n.op == Op::add ? v[0] + v[1] : n.op == Op::sub ? v[0] - v[1] : n.op == Op::mul ? v[0] * v[1] : v[0] / v[1];
    return b_.full(n.type().shape, DType::f32, r);
  }

  // A literal's value as a kernel sees it: rounded to its type.
  double number_of(NodeId literal) const {
    const double value = g_[literal].attrs.reals[0];
    switch (g_.dtype(literal)) {
      case DType::bf16: return bf16_to_f32(f32_to_bf16(float(value)));
      case DType::f16: return f16_to_f32(f32_to_f16(float(value)));
      default: return value;
    }
  }

  bool is_literal(NodeId id, double value) const {
    while (g_[id].op == Op::expand || g_[id].op == Op::reshape) id = g_[id].in[0];
    return g_[id].op == Op::literal && g_[id].attrs.reals[0] == value;
  }

  std::vector<NodeId> reshape(const Node& n, NodeId x) {
    if (g_.shape(x) == n.type().shape) return {x};
    if (g_[x].op == Op::reshape) return {b_.reshape(g_[x].in[0], n.type().shape)};
    if (g_[x].op == Op::literal) return {b_.expand(x, n.type().shape)};
    return {};
  }

  std::vector<NodeId> permute(const Node& n, NodeId x) {
    const std::vector<int64_t>& axes = n.attrs.ints;
    int rank = int(axes.size());
    if (g_[x].op == Op::permute) {
      Shape both;
      for (int64_t a : axes) both.push_back(g_[x].attrs.ints[size_t(a)]);
      return {b_.permute(g_[x].in[0], both)};
    }
    // A transposed product is the product of the transposed operands in reverse order.
    if (g_[x].op == Op::matmul && rank >= 2 && axes[size_t(rank) - 1] == rank - 2 && axes[size_t(rank) - 2] == rank - 1) {
      bool batches_stay = true;
      for (int i = 0; i < rank - 2; ++i) batches_stay &= axes[size_t(i)] == i;
      if (batches_stay) return {g_.add(Op::matmul, {b_.transpose(g_[x].in[1]), b_.transpose(g_[x].in[0])}, g_[x].attrs, g_[x].copy)};
    }
    return {};
  }

  // The gradient of slices that split a tensor is a sum of padded pieces, which is a concat.
  NodeId joined_pads(const Node& n, std::span<const NodeId> in) {
    struct Piece {
      NodeId source;
      int64_t low, high;
    };
    std::vector<Piece> pieces;
    int axis = -1;
    auto collect = [&](auto& self, NodeId id) -> bool {
      if (g_[id].op == Op::add) return self(self, g_[id].in[0]) && self(self, g_[id].in[1]);
      if (g_[id].op == Op::concat && id != kNone) return false;
      if (g_[id].op != Op::pad || g_[id].attrs.reals[0] != 0) return false;
      const std::vector<int64_t>& a = g_[id].attrs.ints;
      int rank = int(a.size()) / 3, padded = -1;
      for (int i = 0; i < rank; ++i) {
        if (a[size_t(2 * rank + i)]) return false;
        if (a[size_t(i)] || a[size_t(rank + i)]) {
          if (padded >= 0) return false;
          padded = i;
        }
      }
      if (padded < 0 || (axis >= 0 && padded != axis)) return false;
      axis = padded;
      int64_t low = a[size_t(axis)];
      pieces.push_back({g_[id].in[0], low, low + g_.shape(g_[id].in[0])[axis]});
      return true;
    };
    for (NodeId i : in)
      if (!collect(collect, i)) return kNone;
    std::sort(pieces.begin(), pieces.end(), [](const Piece& x, const Piece& y) { return x.low < y.low; });
    int64_t at = 0;
    for (const Piece& p : pieces) {
      if (p.low != at) return kNone;
      at = p.high;
    }
    if (at != n.type().shape[axis]) return kNone;
    std::vector<NodeId> parts;
    for (const Piece& p : pieces) parts.push_back(p.source);
    return b_.concat(parts, axis);
  }

  Graph& g_;
  Builder b_;
  bool conv_fuses_, conv_reads_bytes_;
  // By operand of a relu: the result, narrow if a product reads it so. Whether the operand is positive is asked of the result, which is stored
  // for the next layer, so that the operand need not be.
  std::unordered_map<NodeId, NodeId> positive_;
  std::unordered_set<NodeId> convolved_;  // sources of convolutions, which are in memory
};

}  // namespace

std::vector<NodeId> canonicalize(Graph& graph, std::span<const NodeId> outputs, bool convolutions) {
  std::vector<NodeId> roots = decompose(graph, outputs, [&](NodeId id) { return graph[id].op == Op::conv && !convolutions; });
  Builder b(graph);
  return rewrite(graph, roots, [&](NodeId id, std::span<const NodeId> in) -> std::vector<NodeId> {
    const Node& n = graph[id];
    if (n.op == Op::stop_gradient || n.op == Op::custom) return {in[0]};
    if (!is_reduction(n.op)) return {};
    std::vector<int64_t> axes;
    for (int64_t a : n.attrs.ints)
      if (graph.shape(in[0])[int(a)] != 1) axes.push_back(a);
    if (axes.size() == n.attrs.ints.size()) return {};
    if (n.op == Op::arg_max || n.op == Op::arg_min) return {b.full(n.type().shape, DType::i64, 0)};
    Shape to = n.type().shape;
    NodeId left = axes.empty() ? in[0] : graph.add(n.op, in, {axes, {}, nullptr}, n.copy);
    return {b.reshape(left, to)};
  });
}

std::vector<NodeId> simplify(Graph& graph, std::span<const NodeId> outputs, bool conv_fuses, bool conv_reads_bytes) {
  std::vector<NodeId> roots(outputs.begin(), outputs.end());
  Simplifier s(graph, conv_fuses, conv_reads_bytes);
  for (int round = 0; round < 6; ++round) {
    std::vector<NodeId> next = rewrite(graph, roots, [&](NodeId id, std::span<const NodeId> in) { return s.visit(id, in); });
    if (next == roots) break;
    roots = std::move(next);
  }
  return roots;
}

}  // namespace ridge
