#include "graph/graph.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "graph/ops/table.h"

namespace ridge {
namespace {

uint64_t mix(uint64_t h, uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15 + (h << 6) + (h >> 2);
  return h * 0xff51afd7ed558ccd;
}

uint64_t hash(Op op, std::span<const NodeId> in, const Attrs& attrs, uint16_t copy) {
  uint64_t h = mix(uint64_t(op), copy);
  for (NodeId id : in) h = mix(h, id);
  for (int64_t v : attrs.ints) h = mix(h, uint64_t(v));
  for (double v : attrs.reals) h = mix(h, std::bit_cast<uint64_t>(v));
  return mix(h, reinterpret_cast<uint64_t>(attrs.body.get()));
}

// Literals are equal if their bits are: NaN must equal itself, and 0 differs from -0.
bool same_attrs(const Attrs& a, const Attrs& b) {
  auto same_bits = [](double x, double y) { return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y); };
  return a.ints == b.ints && std::equal(a.reals.begin(), a.reals.end(), b.reals.begin(), b.reals.end(), same_bits) && a.body == b.body;
}

}  // namespace

std::string_view name(Op op) {
  static constexpr std::string_view names[] = {
#define RIDGE_OP(name, ...) #name,
      RIDGE_ELEMENTWISE_OPS(RIDGE_OP) RIDGE_OTHER_OPS(RIDGE_OP)
#undef RIDGE_OP
  };
  return names[int(op)];
}

int64_t Type::bytes() const {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(shape.numel(), size_of(dtype), &bytes)) fail(ErrorCode::value, "[graph] {} takes more than 2^63 bytes", to_string(*this));
  return bytes;
}

std::string to_string(const Type& type) { return std::string(name(type.dtype)) + to_string(type.shape); }

Graph::Graph() { nodes_.emplace_back(); }

NodeId Graph::add(Op op, std::span<const NodeId> in, Attrs attrs, uint16_t copy) {
  const uint16_t own = copy & uint16_t(~kRecomputed);
  uint64_t h = hash(op, in, attrs, own);
  auto [first, last] = by_hash_.equal_range(h);
  for (auto it = first; it != last; ++it) {
    Node& n = nodes_[it->second];
    if (n.op != op || (n.copy & uint16_t(~kRecomputed)) != own || !std::equal(in.begin(), in.end(), n.in.begin(), n.in.end()) || !same_attrs(n.attrs, attrs))
      continue;
    n.copy &= copy | uint16_t(~kRecomputed);
    return it->second;
  }
  const OpRow& r = row(op);
  if (int(in.size()) < r.min_in || (r.max_in >= 0 && int(in.size()) > r.max_in))
    fail(ErrorCode::value, "[{}] got {} operands, takes {}", name(op), in.size(),
         r.max_in < 0 ? fmt::format("{} or more", r.min_in) : std::to_string(r.max_in));
  Type few[4];
  std::vector<Type> many;
  std::span<const Type> types;
  if (in.size() <= 4) {
    for (size_t i = 0; i < in.size(); ++i) few[i] = type(in[i]);
    types = {few, in.size()};
  } else {
    for (NodeId id : in) many.push_back(type(id));
    types = many;
  }
  Node node{op, copy, {in.begin(), in.end()}, std::move(attrs), {}};
  if (op == Op::get) {  // selects one result, so it needs the operand node and not just its first type
    const std::vector<Type>& outputs = nodes_[in[0]].types;
    if (node.attrs.ints.at(0) < 0 || node.attrs.ints[0] >= int64_t(outputs.size()))
      fail(ErrorCode::value, "[get] result {} of {} does not exist; it has {}", node.attrs.ints[0], name(nodes_[in[0]].op), outputs.size());
    node.types = {outputs[node.attrs.ints[0]]};
  } else {
    node.types = r.infer({op, types, node.attrs});
  }
  nodes_.push_back(std::move(node));
  by_hash_.emplace(h, NodeId(nodes_.size() - 1));
  return NodeId(nodes_.size() - 1);
}

NodeId Graph::input(Type type, std::string name) {
  for (int64_t d : type.shape)
    if (d < 0) fail(ErrorCode::shape, "[input] {} has a negative size: {}", name, to_string(type));
  Node node;
  node.types = {std::move(type)};
  nodes_.push_back(std::move(node));
  NodeId id = NodeId(nodes_.size() - 1);
  input_names_[id] = std::move(name);
  return id;
}

NodeId Graph::literal(DType dtype, double value) { return add(Op::literal, {}, {{int64_t(dtype)}, {value}, nullptr}); }

const std::string& Graph::input_name(NodeId id) const {
  static const std::string unnamed = "?";
  auto it = input_names_.find(id);
  return it == input_names_.end() ? unnamed : it->second;
}

std::vector<NodeId> topological(const Graph& graph, std::span<const NodeId> roots) {
  // Operands have smaller ids, so a downward loop can mark and collect without recursion.
  std::vector<char> marked(graph.size(), 0);
  NodeId highest = 0;
  for (NodeId r : roots) marked[r] = 1, highest = std::max(highest, r);
  std::vector<NodeId> order;
  for (NodeId id = highest; id > 0; --id)
    if (marked[id]) {
      order.push_back(id);
      for (NodeId in : graph[id].in) marked[in] = 1;
    }
  std::reverse(order.begin(), order.end());
  return order;
}

bool is_recomputed(const Graph& graph, NodeId id) {
  if (graph[id].op == Op::get) id = graph[id].in[0];
  constexpr uint16_t kCopies = 0x7fff;  // the highest bit marks a different kind of copy
  return !is_view(graph[id].op) && (graph[id].copy & kCopies) != 0;
}

std::vector<NodeId> import_nodes(Graph& to, const Graph& from, std::span<const NodeId> roots, std::unordered_map<NodeId, NodeId>& known, bool again) {
  for (NodeId id : topological(from, roots)) {
    if (known.count(id)) continue;
    const Node& n = from[id];
    if (n.op == Op::input) {
      known[id] = to.input(n.type(), from.input_name(id));
      continue;
    }
    std::vector<NodeId> in;
    for (NodeId i : n.in) in.push_back(known.at(i));
    const bool works = !is_view(n.op) && n.op != Op::get && n.op != Op::literal;
    known[id] = to.add(n.op, in, n.attrs, again && works ? n.copy | kRecomputed : n.copy);
  }
  std::vector<NodeId> out;
  for (NodeId r : roots) out.push_back(known.at(r));
  return out;
}

std::string to_string(const Graph& graph, std::span<const NodeId> roots) {
  std::string text;
  for (NodeId id : topological(graph, roots)) {
    const Node& n = graph[id];
    text += fmt::format("%{} = {}", id, name(n.op));
    if (n.copy & uint16_t(~kRecomputed)) text += fmt::format("'{}", n.copy & uint16_t(~kRecomputed));
    text += "(";
    for (size_t i = 0; i < n.in.size(); ++i) text += fmt::format("{}%{}", i ? ", " : "", n.in[i]);
    text += ")";
    if (n.op == Op::input) text += " \"" + graph.input_name(id) + "\"";
    for (size_t i = 0; i < n.attrs.ints.size(); ++i) text += fmt::format("{}{}", i ? "," : " ints=", n.attrs.ints[i]);
    for (size_t i = 0; i < n.attrs.reals.size(); ++i) text += fmt::format("{}{}", i ? "," : " reals=", n.attrs.reals[i]);
    for (const Type& t : n.types) text += " " + to_string(t);
    text += "\n";
  }
  return text;
}

}  // namespace ridge
