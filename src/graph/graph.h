// The graph: an append-only arena of hash-consed nodes. Equal nodes are one node; ids only grow, and a node's operands
// have smaller ids than the node.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/op.h"
#include "ridge/dtype.h"
#include "ridge/shape.h"

namespace ridge {

using NodeId = uint32_t;
inline constexpr NodeId kNone = 0;

struct Type {
  DType dtype = DType::f32;
  Shape shape;
  int64_t bytes() const;  // ErrorCode::value when it does not fit into 63 bits
  bool operator==(const Type&) const = default;
};
std::string to_string(const Type& type);  // "f32[2, 3]"

// Everything of a node that is not an operand. Compared by content; `body` (a scan's loop, a user's gradient) by address.
struct Attrs {
  std::vector<int64_t> ints;
  std::vector<double> reals;
  std::shared_ptr<const void> body;
  bool operator==(const Attrs&) const = default;
};

// In Node::copy: a loop's gradient computes this value a second time. It only affects how work is counted. Nodes that differ in nothing
// else are one node, which is marked as long as nobody asks for it without the mark.
inline constexpr uint16_t kAgain = 0x4000;

struct Node {
  Op op = Op::input;
  uint16_t copy = 0;  // recomputation makes copies above 0; no pass merges across them
  std::vector<NodeId> in;
  Attrs attrs;
  std::vector<Type> types;  // one per output; several only for ops whose results are taken with `get`
  const Type& type() const { return types[0]; }
};

class Graph {
 public:
  Graph();

  // The node (op, in, attrs, copy): an existing one when there is an equal one. Shape and dtype errors name op and operands.
  NodeId add(Op op, std::span<const NodeId> in, Attrs attrs = {}, uint16_t copy = 0);
  NodeId add(Op op, std::initializer_list<NodeId> in, Attrs attrs = {}, uint16_t copy = 0) {
    return add(op, std::span<const NodeId>(in.begin(), in.size()), std::move(attrs), copy);
  }
  NodeId input(Type type, std::string name);  // always a new node
  NodeId literal(DType dtype, double value);

  const Node& operator[](NodeId id) const { return nodes_[id]; }
  const Type& type(NodeId id) const { return nodes_[id].types[0]; }
  const Shape& shape(NodeId id) const { return nodes_[id].types[0].shape; }
  DType dtype(NodeId id) const { return nodes_[id].types[0].dtype; }
  NodeId size() const { return NodeId(nodes_.size()); }  // ids are 1 … size() - 1
  const std::string& input_name(NodeId id) const;

 private:
  std::deque<Node> nodes_;  // stable references
  std::unordered_multimap<uint64_t, NodeId> by_hash_;
  std::unordered_map<NodeId, std::string> input_names_;
};

// Nodes that `roots` depend on, operands first.
std::vector<NodeId> topological(const Graph& graph, std::span<const NodeId> roots);

// Whether the node computes what another one has computed before.
bool is_recomputed(const Graph& graph, NodeId id);

// Copies what `roots` depend on from one graph into another; `known` maps nodes that are there already and is extended. With `again` the
// new nodes are marked as computing something a second time.
std::vector<NodeId> import_nodes(Graph& to, const Graph& from, std::span<const NodeId> roots, std::unordered_map<NodeId, NodeId>& known, bool again = false);

std::string to_string(const Graph& graph, std::span<const NodeId> roots);  // one line a node

}  // namespace ridge
