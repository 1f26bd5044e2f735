#include "compile/scan_lift.h"

#include "base/error.h"

namespace ridge {
namespace {

// Whether it swaps the last two axes and nothing else.
bool is_transpose(const Node& n) {
  if (n.op != Op::permute) return false;
  const std::vector<int64_t>& axes = n.attrs.ints;
  size_t rank = axes.size();
  for (size_t i = 0; i + 2 < rank; ++i)
    if (axes[i] != int64_t(i)) return false;
  return rank >= 2 && axes[rank - 1] == int64_t(rank) - 2;
}

}  // namespace

bool can_lift(const Graph& body, NodeId id, const std::vector<char>& varies) {
  const Node& n = body[id];
  if (n.types.size() != 1 || n.type().shape.rank() >= kMaxRank) return false;
  for (NodeId in : n.in)
    if (body.shape(in).rank() >= kMaxRank) return false;
  const OpRow& r = row(n.op);
  return r.lift && !(r.has(OpRow::fixed_one) && varies[n.in[0]] && varies[n.in[1]]);
}

NodeId OverTime::value(NodeId id) {
  Lifted v = lift(id);
  if (v.varies) fail(ErrorCode::internal, "[scan] %{} of the body changes with the step", id);
  return v.id;
}

NodeId OverTime::stacked(NodeId id) {
  const LiftContext::Operand v[] = {lift(id)};
  return LiftContext{b_, body_[id], steps_, v}.stacked(0);
}

bool OverTime::varies(NodeId id) {
  if (auto it = known_.find(id); it != known_.end()) return it->second.varies;
  if (auto it = varies_.find(id); it != varies_.end()) return it->second;
  bool any = false;
  for (NodeId in : body_[id].in) any |= varies(in);
  return varies_[id] = any;
}

OverTime::Lifted OverTime::lift(NodeId id) {
  if (auto it = known_.find(id); it != known_.end()) return it->second;
  const Node& n = body_[id];
  if (n.op == Op::input) fail(ErrorCode::internal, "[scan] the body's input \"{}\" has no value outside", body_.input_name(id));
  std::vector<Lifted> in;
  bool varies = false;
  for (NodeId i : n.in) in.push_back(lift(i)), varies |= in.back().varies;
  Lifted out{kNone, varies};
  if (varies) {
    if (!row(n.op).lift) fail(ErrorCode::internal, "[scan] {} of the body cannot be computed for all steps at once", name(n.op));
    out.id = row(n.op).lift({b_, n, steps_, in});
  } else {
    std::vector<NodeId> ids;
    for (const Lifted& v : in) ids.push_back(v.id);
    out.id = b_.graph().add(n.op, ids, n.attrs, n.copy);
  }
  return known_[id] = out;
}

// The sum over time of a_t · b_t, as one contraction over time and the inner axis. A concat that forms the rows is split into its parts,
// because those are often unmodified sequences.
NodeId OverTime::product_over_time(const Node& n) {
  int rank = n.type().shape.rank();
  NodeId right = stacked(n.in[1]);
  Shape s = b_.shape(right), order, flat;
  for (int i = 1; i < rank - 1; ++i) order.push_back(i), flat.push_back(s[i]);
  Shape left_order = order, left_flat = flat;
  order.push_back(0), order.push_back(rank - 1), order.push_back(rank);
  flat.push_back(s[0] * s[rank - 1]), flat.push_back(s[rank]);
  right = b_.reshape(b_.permute(right, order), flat);
  left_order.push_back(rank - 1), left_order.push_back(0), left_order.push_back(rank);

  std::vector<NodeId> lefts;
  const Node& left = body_[n.in[0]];
  if (is_transpose(left) && body_[left.in[0]].op == Op::concat && body_[left.in[0]].attrs.ints[0] == rank - 1 && !known_.count(left.in[0]))
    for (NodeId part : body_[left.in[0]].in) lefts.push_back(b_.transpose(stacked(part)));
  else
    lefts.push_back(stacked(n.in[0]));
  std::vector<NodeId> products;
  for (NodeId x : lefts) {
    Shape to = left_flat, from = b_.shape(x);
    to.push_back(from[rank - 1]), to.push_back(from[0] * from[rank]);
    products.push_back(b_.graph().add(Op::matmul, {b_.reshape(b_.permute(x, left_order), to), right}, n.attrs, n.copy));
  }
  return products.size() == 1 ? products[0] : b_.concat(products, rank - 2);
}

NodeId OverTime::total(NodeId id) {
  const Node& n = body_[id];
  if (!varies(id)) return b_.mul(value(id), double(steps_));
  if (!given_.count(id)) switch (n.op) {
      case Op::add:
      case Op::sub: return b_.binary(n.op, total(n.in[0]), total(n.in[1]));
      case Op::neg: return b_.neg(total(n.in[0]));
      case Op::mul:
        for (size_t i = 0; i < 2; ++i)
          if (!varies(n.in[1 - i])) return b_.mul(total(n.in[i]), value(n.in[1 - i]));
        break;
      case Op::reshape:
      case Op::permute:
      case Op::slice:
      case Op::expand: return b_.graph().add(n.op, {total(n.in[0])}, n.attrs, n.copy);
      case Op::concat: {
        std::vector<NodeId> parts;
        for (NodeId part : n.in) parts.push_back(total(part));
        return b_.concat(parts, int(n.attrs.ints[0]));
      }
      case Op::reduce_sum: {
        std::vector<int64_t> axes = {0};
        for (int64_t a : n.attrs.ints) axes.push_back(a + 1);
        return b_.sum(stacked(n.in[0]), axes);
      }
      case Op::matmul:
        if (!varies(n.in[0])) return b_.graph().add(n.op, {value(n.in[0]), total(n.in[1])}, n.attrs, n.copy);
        if (!varies(n.in[1])) return b_.graph().add(n.op, {total(n.in[0]), value(n.in[1])}, n.attrs, n.copy);
        return product_over_time(n);
      case Op::cast:  // a product rounded to 16 bits: its sum is not rounded at all
        if (Node wide = body_[n.in[0]];
            wide.op == Op::matmul && !given_.count(n.in[0]) && size_of(wide.type().dtype) == 2 && varies(wide.in[0]) && varies(wide.in[1])) {
          wide.attrs.ints[0] = int64_t(n.type().dtype);
          return product_over_time(wide);
        }
        break;
      default: break;
    }
  const int64_t time[] = {0};
  return b_.sum(stacked(id), time);
}

}  // namespace ridge
