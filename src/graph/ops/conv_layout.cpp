#include "graph/ops/conv_layout.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "graph/ops/table.h"
#include "graph/rewrite.h"

namespace ridge::ops {
namespace {

using Order = std::vector<int64_t>;
const Order kLast = {0, 2, 3, 1}, kFirst = {0, 3, 1, 2};  // [N, C, H, W] to [N, H, W, C], and back

bool is_permute(const Node& n, const Order& order) { return n.op == Op::permute && n.attrs.ints == order; }
NodeId permuted(Graph& g, NodeId id, const Order& order, uint16_t copy = 0) { return g.add(Op::permute, {id}, {order, {}, nullptr}, copy); }

// The value with channels last: what is stored so, or a view of it.
NodeId last_of(Graph& g, NodeId id) { return is_permute(g[id], kFirst) ? g[id].in[0] : permuted(g, id, kLast); }

bool is_image_map(const Graph& g, NodeId id) {
  const Node& n = g[id];
  return is_elementwise(n.op) && n.type().shape.rank() == 4 && std::ranges::all_of(n.in, [&](NodeId in) { return g.shape(in) == n.type().shape; });
}

// The axes of a reduction of [N, C, H, W], as axes of [N, H, W, C]; nullopt where those that stay would be in another order.
std::optional<Order> moved_axes(const Graph& g, NodeId id) {
  const Node& n = g[id];
  if (!is_reduction(n.op) || n.op == Op::arg_max || n.op == Op::arg_min || g.shape(n.in[0]).rank() != 4) return std::nullopt;
  Order reduced, left;
  for (int64_t a = 0; a < 4; ++a) (std::ranges::find(n.attrs.ints, a) != n.attrs.ints.end() ? reduced : left).push_back(kFirst[size_t(a)]);
  if (!std::ranges::is_sorted(left)) return std::nullopt;
  std::ranges::sort(reduced);
  return reduced;
}

// wanted: elementwise nodes whose results convolutions read, directly or through others. may: those that nothing else reads but reductions that do not mind.
// read: what the wanted ones read.
struct ImageMaps {
  std::vector<char> wanted, may, read;
};

// Pictures stay as they are; only what is computed from them has its channels last.
bool reads_pictures(const Graph& g, const Node& conv) { return g.dtype(conv.in[0]) == DType::u8; }

// Gradients of weights read images in both operands.
ImageMaps image_maps(const Graph& g, std::span<const NodeId> order, std::span<const NodeId> roots, const std::vector<char>& fast) {
  ImageMaps maps{std::vector<char>(g.size(), 0), std::vector<char>(g.size(), 1), std::vector<char>(g.size(), 0)};
  auto &wanted = maps.wanted, &may = maps.may;
  auto want = [&](NodeId id) {
    while (g[id].op == Op::reshape || g[id].op == Op::permute) id = g[id].in[0];
    wanted[id] = is_image_map(g, id);
  };
  for (NodeId id : roots) may[id] = 0;
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const Node& n = g[*it];
    may[*it] = may[*it] && is_image_map(g, *it);
    if (!wanted[*it] && !may[*it] && !moved_axes(g, *it))
      for (NodeId in : n.in) may[in] = 0;
    if (wanted[*it])
      for (NodeId in : n.in) want(in), maps.read[in] = 1;
    if (n.op != Op::conv || n.type().shape.rank() != 4) continue;
    const Shape &window = g.shape(n.in[1]), &out = n.type().shape;
    const bool gradient = window[2] * window[3] > out[2] * out[3];
    if ((fast[*it] || gradient) && !reads_pictures(g, n)) want(n.in[0]);
    if (gradient) want(n.in[1]);
  }
  return maps;
}

// Whether all images among the operands are stored with channels last, and there are any.
bool reads_last(const Graph& g, std::span<const NodeId> in) {
  bool any = false;
  for (NodeId id : in) {
    const bool last = is_permute(g[id], kFirst);
    while (g[id].op == Op::expand || g[id].op == Op::reshape) id = g[id].in[0];
    if (!last && 8 * g.shape(id).numel() > g.shape(in[0]).numel()) return false;
    any |= last;
  }
  return any;
}

// A convolution's result that is stored with channels last, in the old order.
bool is_stored_last(const Graph& g, NodeId id) { return is_permute(g[id], kFirst) && g[g[id].in[0]].copy == kSeparateKernel; }

// A permute of a permute, as one.
NodeId joined(Graph& g, const Node& n, NodeId in) {
  const Order &outer = n.attrs.ints, &inner = g[in].attrs.ints;
  Order both;
  for (int64_t a : outer) both.push_back(inner[size_t(a)]);
  return std::ranges::is_sorted(both) ? g[in].in[0] : permuted(g, g[in].in[0], both);
}

}  // namespace

std::vector<NodeId> keep_channels_last(Graph& g, std::span<const NodeId> roots, const std::function<bool(const Graph&, NodeId)>& faster) {
  const std::vector<NodeId> order = topological(g, roots);
  std::vector<char> fast(g.size(), 0);
  for (NodeId id : order) fast[id] = g[id].op == Op::conv && g.shape(id).rank() == 4 && faster(g, id);
  if (std::ranges::none_of(fast, [](char f) { return f != 0; })) return {roots.begin(), roots.end()};
  const ImageMaps maps = image_maps(g, order, roots, fast);
  // Cheap arithmetic that something reads in the old order too, such as the features of a dense layer, is repeated in that order instead of stored for it.
  constexpr int kMostRepeated = 3;
  std::unordered_map<NodeId, std::pair<NodeId, int>> again;  // by image with channels last: the same value in the old order, and how many nodes compute it
  auto repeat = [&](const Node& n, std::span<const NodeId> in) -> std::pair<NodeId, int> {
    std::vector<NodeId> first(in.begin(), in.end());
    int count = 1;
    for (NodeId& i : first)
      if (auto it = again.find(i); it != again.end()) i = it->second.first, count += it->second.second;
    return {count == 1 ? kNone : g.add(n.op, first, n.attrs, n.copy), count};
  };
  return rewrite(g, roots, [&](NodeId id, std::span<const NodeId> in) -> std::vector<NodeId> {
    const Node n = g[id];
    if (maps.wanted[id] || (maps.may[id] && reads_last(g, in))) {
      std::vector<NodeId> last;
      for (NodeId i : in) last.push_back(last_of(g, i));
      const NodeId image = permuted(g, g.add(n.op, last, n.attrs, n.copy), kFirst);
      const bool reads = std::ranges::any_of(in, [&](NodeId i) { return again.count(i) || is_stored_last(g, i); });
      auto [node, count] = repeat(n, in);
      if (reads && row(n.op).effort == Effort::cheap && count <= kMostRepeated) again[image] = {node ? node : g.add(n.op, in, n.attrs, n.copy), count};
      return {image};
    }
    if (is_elementwise(n.op))
      if (const NodeId node = repeat(n, in).first) return {node};
    if (fast[id] && (is_permute(g[in[0]], kFirst) || (reads_pictures(g, n) && maps.read[id])))
      return {permuted(g, permuted(g, g.add(n.op, in, n.attrs, n.copy), kLast, kSeparateKernel), kFirst)};
    if (in.empty() || !is_permute(g[in[0]], kFirst)) return {};
    if (n.op == Op::permute) return {joined(g, n, in[0])};
    if (const auto axes = moved_axes(g, id)) return {g.add(n.op, {g[in[0]].in[0]}, {*axes, {}, nullptr}, n.copy)};
    return {};
  });
}

}  // namespace ridge::ops
