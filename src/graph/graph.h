// The graph: an append-only arena of hash-consed nodes. Equal nodes share one id, ids only grow, and operands have smaller ids than the
// nodes that use them.
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
  int64_t bytes() const;  // throws ErrorCode::value when the size does not fit into 63 bits
  bool operator==(const Type&) const = default;
};
std::string to_string(const Type& type);  // "f32[2, 3]"

// All properties of a node except its operands. Compared by content; `body` (a scan's loop, a user-defined gradient) is compared by
// address.
struct Attrs {
  std::vector<int64_t> ints;
  std::vector<double> reals;
  std::shared_ptr<const void> body;
  bool operator==(const Attrs&) const = default;
};

// A flag in Node::copy: the gradient of a loop recomputes this value. It affects only how work is counted. Nodes that differ only in this
// flag are merged; the merged node keeps the flag only if every request for it has set the flag.
inline constexpr uint16_t kRecomputed = 0x4000;
// Marks a copy that is always a separate kernel: its operand is complete before it writes.
inline constexpr uint16_t kSeparateKernel = 0x8000;

struct Node {
  Op op = Op::input;
  uint16_t copy = 0;  // copies made by recomputation are numbered from 1; no pass merges nodes with different numbers
  std::vector<NodeId> in;
  Attrs attrs;
  std::vector<Type> types;  // one per output; ops with several results expose them through `get`
  const Type& type() const { return types[0]; }
};

class Graph {
 public:
  Graph();

  // Returns the node (op, in, attrs, copy), reusing an equal existing one. Shape and dtype errors name the op and its operands.
  NodeId add(Op op, std::span<const NodeId> in, Attrs attrs = {}, uint16_t copy = 0);
  NodeId add(Op op, std::initializer_list<NodeId> in, Attrs attrs = {}, uint16_t copy = 0) {
    return add(op, std::span<const NodeId>(in.begin(), in.size()), std::move(attrs), copy);
  }
  NodeId input(Type type, std::string name);  // always creates a new node
  NodeId literal(DType dtype, double value);

  const Node& operator[](NodeId id) const { return nodes_[id]; }
  const Type& type(NodeId id) const { return nodes_[id].types[0]; }
  const Shape& shape(NodeId id) const { return nodes_[id].types[0].shape; }
  DType dtype(NodeId id) const { return nodes_[id].types[0].dtype; }
  NodeId size() const { return NodeId(nodes_.size()); }  // valid ids are 1 … size() - 1
  const std::string& input_name(NodeId id) const;

 private:
  std::deque<Node> nodes_;  // a deque keeps references stable
  std::unordered_multimap<uint64_t, NodeId> by_hash_;
  std::unordered_map<NodeId, std::string> input_names_;
};

// All nodes that `roots` depend on, operands first.
std::vector<NodeId> topological(const Graph& graph, std::span<const NodeId> roots);

// Whether the node recomputes a value that another node has already computed.
bool is_recomputed(const Graph& graph, NodeId id);

// Copies everything `roots` depend on from one graph into another. `known` maps nodes that are already there, and receives the new ones.
// `again` marks the new nodes as recomputation.
std::vector<NodeId> import_nodes(Graph& to, const Graph& from, std::span<const NodeId> roots, std::unordered_map<NodeId, NodeId>& known, bool again = false);

std::string to_string(const Graph& graph, std::span<const NodeId> roots);  // one line per node

}  // namespace ridge
