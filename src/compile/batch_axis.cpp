#include "compile/batch_axis.h"

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace ridge {
namespace {

// Sample s of `count` lies at index s * inner … s * inner + inner - 1 of an axis.
struct BatchAxis {
  int axis;
  int64_t inner, count;
  bool operator==(const BatchAxis&) const = default;
};
using Maybe = std::optional<BatchAxis>;

struct Coupled {
  std::string why;
};

class Tracker {
 public:
  Tracker(const Graph& g, std::span<const NodeId> inputs) : g_(g), at_(g.size()), summed_(g.size(), 0) {
    for (NodeId id : inputs) at_[id] = BatchAxis{0, 1, g.shape(id)[0]};
  }

  void visit(NodeId id) {
    const Node& n = g_[id];
    if (std::any_of(n.in.begin(), n.in.end(), [&](NodeId i) { return summed_[i]; }))
      after_sum(id);
    else if (std::any_of(n.in.begin(), n.in.end(), [&](NodeId i) { return at_[i].has_value(); }))
      at_[id] = follow(id);
  }

  bool batched(NodeId id) const { return at_[id].has_value(); }

 private:
  Maybe follow(NodeId id) {
    const Node& n = g_[id];
    if (is_elementwise(n.op) || n.op == Op::stop_gradient || n.op == Op::custom) return same(id);
    BatchAxis b = *first(n);
    const Shape& from = g_.shape(n.in[0]);
    switch (n.op) {
      case Op::get: return n.attrs.ints[0] == 0 || g_[n.in[0]].op == Op::sort ? Maybe(b) : BatchAxis{0, 1, b.count};
      case Op::reshape: return reshaped(b, from, n.type().shape);
      case Op::permute: return BatchAxis{int(std::find(n.attrs.ints.begin(), n.attrs.ints.end(), b.axis) - n.attrs.ints.begin()), b.inner, b.count};
      case Op::expand: return b;
      case Op::slice: {
        size_t rank = size_t(from.rank()), a = size_t(b.axis);
        bool whole = n.attrs.ints[a] == 0 && n.attrs.ints[rank + a] == from[b.axis] && n.attrs.ints[2 * rank + a] == 1;
        if (!whole) throw Coupled{"it cuts the batch axis"};
        return b;
      }
      case Op::pad: {
        size_t rank = size_t(from.rank()), a = size_t(b.axis);
        if (n.attrs.ints[a] || n.attrs.ints[rank + a] || n.attrs.ints[2 * rank + a]) throw Coupled{"it pads the batch axis"};
        return b;
      }
      case Op::flip:
      case Op::concat:
      case Op::windows:
      case Op::cumsum:
      case Op::sort:
        if (std::find(n.attrs.ints.begin(), n.attrs.ints.begin() + (n.op == Op::flip ? long(n.attrs.ints.size()) : 1), b.axis) !=
            n.attrs.ints.begin() + (n.op == Op::flip ? long(n.attrs.ints.size()) : 1))
          throw Coupled{"it works along the batch axis"};
        return n.op == Op::concat ? same(id) : Maybe(b);
      case Op::reduce_sum:
      case Op::reduce_max:
      case Op::reduce_min:
      case Op::reduce_prod:
      case Op::arg_max:
      case Op::arg_min: return reduced(id, b);
      case Op::take: {
        if (at_[n.in[0]]) throw Coupled{"it indexes a tensor made from the batch"};
        BatchAxis i = *at_[n.in[1]];
        return BatchAxis{int(n.attrs.ints[0]) + i.axis, i.inner, i.count};
      }
      case Op::gather:
        if (n.attrs.ints[0] == b.axis) throw Coupled{"it indexes along the batch axis"};
        return same(id);
      case Op::matmul: {
        int rank = from.rank();
        Maybe l = at_[n.in[0]], r = at_[n.in[1]];
        if ((l && l->axis == rank - 1) || (r && r->axis == rank - 2)) throw Coupled{"it sums over the batch axis"};
        if (l && r && (l->axis != r->axis || l->axis >= rank - 2)) throw Coupled{"it multiplies every sample with every other"};
        return l ? l : r;
      }
      case Op::conv:
        if (b.axis != 0 || at_[n.in[1]]) throw Coupled{"its weights or channels come from the batch"};
        return b;
      case Op::attention:
        for (size_t i = 0; i < 3; ++i)
          if (!at_[n.in[i]] || at_[n.in[i]]->axis != 0 || at_[n.in[i]]->inner != 1) throw Coupled{"its batch axis is not the samples'"};
        return b;
      case Op::scan: throw Coupled{"it runs over time; put the batch axis behind time and split outside"};
      default: throw Coupled{"it may mix samples"};
    }
  }

  Maybe first(const Node& n) const {
    for (NodeId i : n.in)
      if (at_[i]) return at_[i];
    return {};
  }

  Maybe same(NodeId id) const {
    Maybe found;
    for (NodeId i : g_[id].in) {
      if (!at_[i]) continue;
      if (found && !(*found == *at_[i])) throw Coupled{"its operands have their samples at different places"};
      found = at_[i];
    }
    return found;
  }

  static Maybe reshaped(BatchAxis b, const Shape& from, const Shape& to) {
    int64_t step = contiguous_strides(from)[b.axis] * b.inner;  // elements of one sample
    Shape strides = contiguous_strides(to);
    for (int a = 0; a < to.rank(); ++a)
      if (strides[a] <= step && step % strides[a] == 0 && strides[a] * to[a] == step * b.count) return BatchAxis{a, step / strides[a], b.count};
    throw Coupled{"it tears samples apart"};
  }

  Maybe reduced(NodeId id, BatchAxis b) {
    const std::vector<int64_t>& axes = g_[id].attrs.ints;
    if (std::find(axes.begin(), axes.end(), b.axis) != axes.end()) {
      if (g_[id].op != Op::reduce_sum) throw Coupled{"it reduces over the batch axis"};
      summed_[id] = 1;
      return {};
    }
    int before = int(std::count_if(axes.begin(), axes.end(), [&](int64_t a) { return a < b.axis; }));
    return BatchAxis{b.axis - before, b.inner, b.count};
  }

  // A sum over the batch may only be added up further: it is a loss, not a statistic that samples read again.
  void after_sum(NodeId id) {
    const Node& n = g_[id];
    bool linear = n.op == Op::reshape || n.op == Op::reduce_sum || n.op == Op::cast || n.op == Op::neg;
    if (n.op == Op::add || n.op == Op::sub) linear = std::all_of(n.in.begin(), n.in.end(), [&](NodeId i) { return summed_[i]; });
    if (n.op == Op::mul || n.op == Op::div) linear = !summed_[n.in[1]] && !at_[n.in[1]];
    if (n.op == Op::mul && summed_[n.in[1]]) linear = !summed_[n.in[0]] && !at_[n.in[0]];
    if (!linear) throw Coupled{"it uses a statistic of the whole batch, as batch norm does"};
    summed_[id] = 1;
  }

  const Graph& g_;
  std::vector<Maybe> at_;
  std::vector<char> summed_;
};

}  // namespace

std::string find_coupling(const Graph& g, std::span<const NodeId> batch_inputs, std::span<const NodeId> losses) {
  Tracker t(g, batch_inputs);
  for (NodeId id : topological(g, losses)) {
    try {
      t.visit(id);
    } catch (const Coupled& c) {
      const Node& n = g[id];
      std::string operands;
      for (NodeId i : n.in) operands += (operands.empty() ? "" : ", ") + to_string(g.type(i));
      return fmt::format("{}({}): {}", name(n.op), operands, c.why);
    }
  }
  for (NodeId id : losses)
    if (t.batched(id)) return fmt::format("the loss {} still has a batch axis: it must be a sum over samples", to_string(g.type(id)));
  return "";
}

}  // namespace ridge
