#include "step/batch_sizes.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "base/error.h"
#include "graph/draws.h"
#include "graph/scan.h"

namespace ridge {
namespace {

// The value of a constant, i.e. a number not computed from inputs.
std::optional<double> written(const Graph& g, NodeId id) {
  const Node& n = g[id];
  switch (n.op) {
    case Op::literal: return n.attrs.reals[0];
    case Op::reshape:
    case Op::cast: return written(g, n.in[0]);
    case Op::add:
    case Op::mul:
    case Op::div: {
      const std::optional<double> x = written(g, n.in[0]), y = written(g, n.in[1]);
      if (!x || !y) return {};
      return n.op == Op::add ? *x + *y : n.op == Op::mul ? *x * *y : *x / *y;
    }
    default: return {};
  }
}

// Attributes except those that only determine the result's shape, which is compared separately.
std::vector<int64_t> fixed_ints(const Node& n) {
  std::vector<int64_t> ints = n.attrs.ints;
  switch (n.op) {
    case Op::iota: ints.resize(2); break;
    case Op::random_uniform:
    case Op::random_bits: ints.resize(1); break;
    case Op::reshape:
    case Op::expand: ints.clear(); break;
    case Op::slice: ints.erase(ints.begin() + long(ints.size() / 3), ints.begin() + long(2 * ints.size() / 3)); break;  // the stops
    default: break;
  }
  return ints;
}

}  // namespace

BatchSizes::BatchSizes(const BatchTrace& a, const BatchTrace& b, const BatchSizes* rule) : a_(a), b_(b), rule_(rule) {
  std::vector<std::pair<NodeId, NodeId>> roots;
  for (size_t i = 0; i < a.ratios.size(); ++i) {
    const auto [sum, count] = a.ratios[i];
    const auto [other_sum, other_count] = b.ratios[i];
    const std::optional<double> x = written(a.graph, count), y = written(b.graph, other_count);
    counts_samples_.push_back(x && y && *x > 0 && *x * double(b.samples) == *y * double(a.samples));
    roots.push_back({sum, other_sum});
    if (!counts_samples_[i] || (rule && !rule->counts_samples_[i])) roots.push_back({count, other_count});
  }
  compare(a.graph, b.graph, roots, {a.base});
  if (!difference_.empty() || a.gradients.size() != b.gradients.size() || a.gradients.empty()) return;
  for (size_t i = 0; i < a.gradients.size(); ++i) roots.push_back({a.gradients[i], b.gradients[i]});
  compare(a.graph, b.graph, roots, {a.base});
  if (!difference_.empty()) difference_ = "in the gradient of a custom operation, " + difference_;
}

// The shape that a node of the first trace would have with the second trace's number of samples.
Shape BatchSizes::predicted(const Graph& a, NodeId id) const {
  Shape out = a.shape(id);
  for (int axis : rule_->grown_axes(a, id)) out[axis] = out[axis] / a_.samples * b_.samples;
  return out;
}

// Skips views to the node whose elements they show. Traces may legitimately differ in views: one sample, for example, needs no expand.
NodeId BatchSizes::without_views(const Graph& g, NodeId id, bool first) const {
  if (!rule_) return id;
  auto elements = [&](NodeId n) { return (first ? predicted(g, n) : g.shape(n)).numel(); };
  auto is_view = [&](Op op) { return op == Op::reshape || op == Op::expand || op == Op::reduce_sum; };
  while (is_view(g[id].op) && elements(id) == elements(g[id].in[0])) id = g[id].in[0];
  return id;
}

std::string BatchSizes::describe(const Type& type) const {
  std::string out = std::string(name(type.dtype)) + "[";
  for (int i = 0; i < type.shape.rank(); ++i) {
    const int64_t size = type.shape[i], inner = size / a_.samples;
    out += i ? ", " : "";
    out += size == 0 || size % a_.samples ? fmt::format("{}", size) : inner == 1 ? "batch" : fmt::format("batch * {}", inner);
  }
  return out + "]";
}

// Visits users before their operands, so the last difference found is the first one in the losses.
void BatchSizes::compare(const Graph& a, const Graph& b, const std::vector<std::pair<NodeId, NodeId>>& roots, const std::vector<NodeId>& bases) {
  std::vector<char> counts(a.size(), 0);  // computed from the first sample's index: only draws use it, and they follow other rules
  for (NodeId id : bases) counts[id] = 1;
  NodeId highest = 0;
  for (auto [x, y] : roots) highest = std::max(highest, x);
  for (NodeId id = 1; id <= highest; ++id)
    for (NodeId in : a[id].in) counts[id] |= counts[in] && a.dtype(id) == DType::i64 && a.shape(id).rank() == 0;
  Partners& p = partners_[&a];
  p.graph = &b, p.node.assign(a.size(), kNone);
  auto different = [&](NodeId id, const std::string& why) { difference_ = fmt::format("{} {}: {}", name(a[id].op), describe(a.type(id)), why); };
  auto pair = [&](NodeId x, NodeId y, NodeId user) {
    x = without_views(a, x, true), y = without_views(b, y, false);
    if (p.node[x] && p.node[x] != y) return different(user, fmt::format("the loss is built differently for {} samples than for {}", a_.samples, b_.samples));
    p.node[x] = y;
  };
  for (auto [x, y] : roots) pair(x, y, x);
  for (NodeId id = highest; id > 0; --id) {
    if (!p.node[id]) continue;
    const Node &x = a[id], &y = b[p.node[id]];
    // The batch, the parameters and the keys of draws are created in the same order before the loss.
    if (x.op == Op::input && &a == &a_.graph && id != p.node[id]) different(id, "the loss uses different inputs for different numbers of samples");
    if (const std::string why = compare_nodes(a, id, y); !why.empty()) {
      different(id, why);
      if (x.op != y.op || x.in.size() != y.in.size()) continue;
    }
    if (x.op == Op::scan) compare_loops(x, y, counts);
    for (size_t i = 0; i < x.in.size(); ++i)
      if (!counts[x.in[i]]) pair(x.in[i], y.in[i], id);
  }
}

void BatchSizes::compare_loops(const Node& a, const Node& b, const std::vector<char>& counts) {
  const ScanView x = scan_view(a), y = scan_view(b);
  const std::vector<NodeId> from = results_of(x.body), to = results_of(y.body);
  if (from.size() != to.size()) return;  // already reported as a difference of types
  std::vector<std::pair<NodeId, NodeId>> roots;
  for (size_t i = 0; i < from.size(); ++i) roots.push_back({from[i], to[i]});
  std::vector<NodeId> bases;
  for (size_t i = 0; i < x.constants.size(); ++i)
    if (counts[x.constants[i]]) bases.push_back(x.body.constant_in[i]);
  compare(x.body.graph, y.body.graph, roots, bases);
}

std::string BatchSizes::compare_nodes(const Graph& a, NodeId id, const Node& y) const {
  const Node& x = a[id];
  const std::string otherwise = fmt::format("the loss is built differently for {} samples than for {}", a_.samples, b_.samples);
  if (x.op != y.op || x.in.size() != y.in.size() || x.types.size() != y.types.size()) return otherwise;
  const bool same_reals = std::equal(x.attrs.reals.begin(), x.attrs.reals.end(), y.attrs.reals.begin(), y.attrs.reals.end(),
                                     [](double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); });  // NaN equals NaN
  if (x.op == Op::literal && !same_reals)
    return fmt::format(
        "a number depends on the size of the batch: {:g} for {} samples, {:g} for {}; return the sum of the losses and how many they are, which the "
        "step divides",
        x.attrs.reals[0], a_.samples, y.attrs.reals[0], b_.samples);
  if (fixed_ints(x) != fixed_ints(y) || !same_reals) return fmt::format("it depends on the size of the batch");
  for (size_t k = 0; k < x.types.size(); ++k) {
    const Shape &s = x.types[k].shape, &t = y.types[k].shape;
    if (s.rank() != t.rank() || x.types[k].dtype != y.types[k].dtype) return otherwise;
    const Shape exact = rule_ && k == 0 ? predicted(a, id) : t;
    for (int i = 0; i < s.rank(); ++i) {
      const bool linear = s[i] == t[i] || s[i] * b_.samples == t[i] * a_.samples;
      if (linear && t[i] == exact[i]) continue;
      return fmt::format("its axis {} has {} elements for {} samples and {} for {}, {}", i, s[i], a_.samples, t[i], b_.samples,
                         linear ? fmt::format("not {} as other numbers of samples predict", exact[i]) : "which is neither fixed nor a multiple");
    }
  }
  return "";
}

std::vector<int> BatchSizes::grown_axes(const Graph& graph, NodeId id) const {
  const Partners& p = partners_.at(&graph);
  std::vector<int> out;
  if (!p.node[id]) return out;
  const Shape &x = graph.shape(id), &y = p.graph->shape(p.node[id]);
  for (int i = 0; i < x.rank(); ++i)
    if (x[i] != y[i]) out.push_back(i);
  return out;
}

}  // namespace ridge
