#include "backend/kernel_work.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "graph/ops/table.h"

namespace ridge {
namespace {

// One view of a buffer: loops of (size, stride) from an offset, in elements.
struct Touch {
  int64_t low = 0, high = 0;  // first element and one past the last
  double count = 0;           // upper bound of the number of elements
  std::vector<std::pair<int64_t, int64_t>> loops;
  bool operator<(const Touch& o) const { return std::tie(low, high, count, loops) < std::tie(o.low, o.high, o.count, o.loops); }
};

class TouchBuilder {
 public:
  explicit TouchBuilder(int64_t offset) { t_.low = offset, t_.high = offset + 1, t_.count = 1; }
  // Indices first … first + size - 1.
  void loop(int64_t size, int64_t stride, int64_t first = 0) {
    if (size <= 0) empty_ = true;
    if (stride == 0 || size <= 0) return;
    const int64_t from = first * stride, to = (first + size - 1) * stride;
    t_.low += std::min(from, to), t_.high += std::max(from, to), t_.count *= double(size);
    t_.loops.push_back({size, stride});
  }
  // For runtime indices: any element of the buffer may be accessed.
  void anywhere(int64_t elements) { t_.low = 0, t_.high = elements; }
  void repeat(int64_t times) { t_.count *= double(times); }
  Touch done() {
    if (empty_) return {};
    t_.count = std::min(t_.count, double(t_.high - t_.low));
    std::sort(t_.loops.begin(), t_.loops.end());
    return t_;
  }

 private:
  Touch t_;
  bool empty_ = false;
};

// Everything that a kernel touches, by buffer; reads and writes are counted separately.
class Traffic {
 public:
  explicit Traffic(const Graph& g) : g_(g) {}
  void add(NodeId owner, bool written, Touch t) {
    if (owner && t.count > 0) touched_[{owner, written}].insert(std::move(t));
  }
  template <class Counts>
  double bytes(const Counts& counts) const {
    double sum = 0;
    for (const auto& [key, views] : touched_)
      if (counts(key.first, key.second)) sum += elements(views, g_.shape(key.first).numel()) * double(size_of(g_.dtype(key.first)));
    return sum;
  }

 private:
  // Views that share elements touch at most the ranges they cover, and at most the whole buffer.
  static double elements(const std::set<Touch>& views, int64_t all) {
    double count = 0, stretches = 0;
    int64_t end = 0;
    for (const Touch& t : views) {  // ordered by their first elements
      count += t.count;
      stretches += double(std::max<int64_t>(0, t.high - std::max(t.low, end)));
      end = std::max(end, t.high);
    }
    return std::min({count, stretches, double(all)});
  }

  const Graph& g_;
  std::map<std::pair<NodeId, bool>, std::set<Touch>> touched_;
};

// The axes of the domain that a value of the group varies over.
std::vector<char> axes_of(const TileGroup& t, int node) {
  std::vector<char> axes(size_t(t.domain.rank()), 0);
  auto visit = [&](auto& self, int at) -> void {
    const TileNode& n = t.nodes[size_t(at)];
    if (n.access >= 0) {
      const TileAccess& a = t.accesses[size_t(n.access)];
      for (int i = 0; i < t.domain.rank(); ++i) axes[size_t(i)] |= a.strides[i] != 0;
      if (a.gather >= 0) self(self, a.gather);
    }
    for (int in : n.in)
      if (in >= 0) self(self, in);
  };
  visit(visit, node);
  return axes;
}

Touch touch_of(const TileGroup& t, const TileAccess& a, int64_t elements) {
  TouchBuilder b(a.offset);
  Shape low = Shape::filled(t.domain.rank(), 0), high = t.domain;
  for (const TileAccess::Bound& bound : a.bounds) {
    low[bound.axis] = std::max(low[bound.axis], bound.low);
    high[bound.axis] = std::min(high[bound.axis], bound.high);
  }
  for (int i = 0; i < t.domain.rank(); ++i) b.loop(high[i] - low[i], a.strides[i], low[i]);
  if (a.gather >= 0) {
    b.anywhere(elements);
    const std::vector<char> axes = axes_of(t, a.gather);
    for (int i = 0; i < t.domain.rank(); ++i)
      if (axes[size_t(i)] && a.strides[i] == 0) b.repeat(t.domain[i]);
  }
  return b.done();
}

void add_tiles(const ProgramKernel& k, const Graph& g, size_t first, Traffic& traffic) {
  for (const TileGroup& t : k.tiles) {
    for (const TileAccess& a : t.accesses) {
      if (a.operand < 0) continue;
      const ProgramOperand& o = k.operands[first + size_t(a.operand)];
      traffic.add(o.owner, o.written, touch_of(t, a, g.shape(o.owner).numel()));
    }
    first += size_t(t.operands);
  }
}

// An in-place update reads and writes only the part that it replaces.
bool updates_in_place(const Program& p, const ProgramKernel& k) {
  if (p.graph[k.group.node].op != Op::dynamic_update_slice) return false;
  const NodeId from = k.operands.front().owner, to = k.operands.back().owner;
  if (!from || !to) return false;
  const ProgramBuffer& b = p.buffer_of(to);
  if (b.place != ProgramBuffer::Place::output) return false;
  const int input = p.state_input[size_t(b.index)];
  return input >= 0 && p.inputs[size_t(input)] == from;
}

void add_node(const Program& p, const ProgramKernel& k, Traffic& traffic) {
  const bool in_place = updates_in_place(p, k);
  for (size_t i = 0; i < k.views.size(); ++i) {
    const View& view = k.views[i];
    if (in_place && i == 0) continue;
    TouchBuilder b(view.offset);
    if (in_place && i + 1 == k.views.size()) {
      const Shape& part = p.graph.shape(p.graph[k.group.node].in[1]);
      for (int a = 0; a < part.rank(); ++a) b.loop(part[a], contiguous_strides(p.graph.shape(view.base))[a]);
    } else {
      for (const std::vector<View::Loop>& axis : view.axes)
        for (const View::Loop& l : axis) b.loop(l.size, l.stride);
    }
    traffic.add(view.base, k.operands[i].written, b.done());
  }
}

// Adds the operands of the contraction, without the epilogue's, and returns their number.
size_t add_product(const Program& p, const ProgramKernel& k, Traffic& traffic) {
  const Graph& g = p.graph;
  if (g[k.group.node].op == Op::conv) return add_node(p, k, traffic), k.views.size();
  const bool stores = k.group.specs[0].members.empty();
  for (size_t i = 0; i < (stores ? 3u : 2u); ++i) {
    const ProgramOperand& o = k.operands[i];
    if (!o.owner) continue;
    TouchBuilder b(o.offset / size_of(g.dtype(o.owner)));
    for (const auto* loops : {&k.loops.batch, &k.loops.m, &k.loops.n, &k.loops.k})
      for (const ContractionLoops::Loop& l : *loops) b.loop(l.size, i == 0 ? l.a : i == 1 ? l.b : l.c);
    traffic.add(o.owner, o.written, b.done());
  }
  return stores ? 3 : 2;
}

}  // namespace

KernelWork work_of(const Program& p, const ProgramKernel& k) {
  const Graph& g = p.graph;
  KernelWork work;
  bool recomputes = false, computes = false;
  auto count = [&](NodeId id) {
    const Cost cost = row(g[id].op).cost(g, id);
    const bool again = is_recomputed(g, id);
    work.flops += cost.flops;
    if (g[id].op == Op::attention || g[id].op == Op::attention_grad)  // two products have 4 flops for each score and feature, five have 10
      work.exponentials += cost.flops / ((g[id].op == Op::attention ? 4.0 : 10.0) * double(g.shape(g[id].in[0]).back()));
    if (!again) work.algorithmic_flops += cost.flops - cost.again;
    (again ? recomputes : computes) |= again || !is_view(g[id].op);
  };
  if (k.group.node) count(k.group.node);
  for (const GroupSpec& spec : k.group.specs)
    for (NodeId id : spec.members) count(id);

  Traffic traffic(g);
  if (k.group.kind == Group::Kind::node)
    add_node(p, k, traffic);
  else
    add_tiles(k, g, k.group.kind == Group::Kind::matmul ? add_product(p, k, traffic) : 0, traffic);
  work.bytes = traffic.bytes([](NodeId, bool) { return true; });
  if (computes || !recomputes) work.unavoidable_bytes = traffic.bytes([&](NodeId owner, bool written) { return !written || !is_recomputed(g, owner); });
  return work;
}

}  // namespace ridge
