#include "autograd/gradients.h"

#include <algorithm>

#include "base/error.h"
#include "graph/builder.h"
#include "graph/ops/table.h"
#include "graph/rewrite.h"

namespace ridge {
namespace {

class Differentiator final : public GradContext {
 public:
  Differentiator(Graph& graph, std::span<const NodeId> outputs, std::span<const NodeId> wrt) : g_(graph), order_(topological(graph, outputs)) {
    // A node matters if it depends on one of wrt through floating values that propagate gradients.
    matters_.resize(graph.size());
    for (NodeId w : wrt) matters_[w] = 1;
    for (NodeId id : order_) {
      const Node& n = g_[id];
      if (matters_[id] || (row(n.op).traits & OpRow::no_gradient)) continue;
      bool floats = std::any_of(n.types.begin(), n.types.end(), [](const Type& t) { return is_float(t.dtype); });
      if (floats) matters_[id] = std::any_of(n.in.begin(), n.in.end(), [&](NodeId i) { return matters_[i]; });
    }
    cotangents_.resize(graph.size());
  }

  bool needs_decomposition() const {
    return std::any_of(order_.begin(), order_.end(), [&](NodeId id) { return matters_[id] && (row(g_[id].op).traits & OpRow::by_decomposition); });
  }

  void seed(NodeId id, NodeId cotangent) { accumulate(id, cotangent); }

  void run() {
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      node_ = *it;
      const Node& n = g_[node_];
      if (!matters_[node_] || n.in.empty() || cotangents_[node_].empty()) continue;
      if (n.op == Op::get) {
        auto& to = cotangents_[n.in[0]];
        to.resize(g_[n.in[0]].types.size(), kNone);
        join(to[n.attrs.ints[0]], cotangents_[node_][0]);
      } else {
        row(n.op).vjp(*this);
      }
    }
  }

  NodeId gradient(NodeId id) { return cotangents_[id].empty() || !cotangents_[id][0] ? Builder(g_).like(id, 0) : cotangents_[id][0]; }

  Graph& graph() override { return g_; }
  NodeId node() const override { return node_; }
  NodeId cotangent(int output) const override { return output < int(cotangents_[node_].size()) ? cotangents_[node_][output] : kNone; }
  bool needs(int operand) const override {
    NodeId id = g_[node_].in[operand];
    return matters_[id];
  }
  std::vector<NodeId> pull_back(Graph& graph, std::span<const NodeId> outputs, std::span<const NodeId> cotangents, std::span<const NodeId> wrt) const override {
    return vector_jacobian(graph, outputs, cotangents, wrt);
  }
  void add(int operand, NodeId gradient) override {
    if (!needs(operand)) return;
    NodeId id = g_[node_].in[operand];
    if (!(g_.type(gradient) == g_.type(id)))
      fail(ErrorCode::internal, "[{}] gradient {} for operand {} of type {}", name(g_[node_].op), to_string(g_.type(gradient)), operand,
           to_string(g_.type(id)));
    accumulate(id, gradient);
  }

 private:
  void join(NodeId& total, NodeId part) { total = total ? Builder(g_).add(total, part) : part; }
  void accumulate(NodeId id, NodeId gradient) {
    if (cotangents_[id].empty()) cotangents_[id].resize(1, kNone);
    join(cotangents_[id][0], gradient);
  }

  Graph& g_;
  std::vector<NodeId> order_;
  std::vector<char> matters_;
  std::vector<std::vector<NodeId>> cotangents_;  // per node that existed at the start, then per output
  NodeId node_ = kNone;
};

}  // namespace

std::vector<NodeId> vector_jacobian(Graph& graph, std::span<const NodeId> outputs, std::span<const NodeId> cotangents, std::span<const NodeId> wrt) {
  for (NodeId w : wrt)
    if (!is_float(graph.dtype(w))) fail(ErrorCode::dtype, "[grad] {} has no gradient: only floating tensors do", to_string(graph.type(w)));
  // Second derivatives may reach macro ops that have no gradient rule. Those and all other attention ops are then decomposed together,
  // so that shared values stay shared. wrt nodes are rewritten like the rest and found again by position.
  std::vector<NodeId> roots(outputs.begin(), outputs.end()), targets(wrt.begin(), wrt.end());
  if (Differentiator(graph, roots, targets).needs_decomposition()) {
    std::vector<NodeId> all = roots;
    all.insert(all.end(), targets.begin(), targets.end());
    all = decompose(graph, all, [&](NodeId id) { return graph[id].op == Op::attention || graph[id].op == Op::attention_grad; });
    std::copy(all.begin(), all.begin() + long(roots.size()), roots.begin());
    std::copy(all.begin() + long(roots.size()), all.end(), targets.begin());
  }
  Differentiator d(graph, roots, targets);
  for (size_t i = 0; i < roots.size(); ++i) d.seed(roots[i], cotangents[i]);
  d.run();
  std::vector<NodeId> out;
  for (NodeId t : targets) out.push_back(d.gradient(t));
  return out;
}

std::vector<NodeId> gradients(Graph& graph, NodeId loss, std::span<const NodeId> wrt) {
  if (graph.shape(loss).numel() != 1) fail(ErrorCode::shape, "[grad] the loss must be a scalar, got {}; sum or average it", to_string(graph.type(loss)));
  if (!is_float(graph.dtype(loss))) fail(ErrorCode::dtype, "[grad] the loss must be floating, got {}", to_string(graph.type(loss)));
  NodeId one = Builder(graph).like(loss, 1);
  return vector_jacobian(graph, {&loss, 1}, {&one, 1}, wrt);
}

}  // namespace ridge
