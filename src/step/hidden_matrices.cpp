#include "step/hidden_matrices.h"

#include "graph/scan.h"

namespace ridge {
namespace {

struct ParameterUse {
  int rank = 0;
  bool hidden = false, table = false;
};

class WeightUses {
 public:
  WeightUses(const Graph& g, std::span<const NodeId> roots, std::vector<ParameterUse>& uses)
      : g_(g), order_(topological(g, roots)), uses_(uses), at_(g.size()), feeds_(g.size(), 0) {
    for (NodeId id : order_)
      if (g[id].op == Op::input) at_[id].data = true;
  }

  struct Value {
    std::vector<size_t> parameters = {};  // it holds these, perhaps in another layout
    bool weights = false, data = false;
  };
  void set(NodeId input, Value value) { at_[input] = value; }

  // What values are made of.
  void forward() {
    for (NodeId id : order_) {
      const Node& n = g_[id];
      if (n.op == Op::input || n.op == Op::stop_gradient) continue;
      Value& v = at_[id];
      for (NodeId i : n.in) v.data |= at_[i].data, v.weights |= at_[i].weights;
      v.data |= n.op == Op::scan, v.weights &= !v.data;
      if (n.op == Op::reshape || n.op == Op::permute || n.op == Op::expand || n.op == Op::slice || n.op == Op::cast || n.op == Op::concat)
        for (NodeId i : n.in) v.parameters.insert(v.parameters.end(), at_[i].parameters.begin(), at_[i].parameters.end());
      if (n.op == Op::take || n.op == Op::gather)
        for (size_t p : at_[n.in[0]].parameters) uses_[p].table = true;
    }
  }

  // Whether a value reaches a product with weights. Roots that do are set before.
  void backward() {
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      const Node& n = g_[*it];
      if (n.op == Op::scan) {
        loop(*it);
        continue;
      }
      for (NodeId i : n.in) feeds_[i] |= feeds_[*it];
      if (n.op != Op::matmul && n.op != Op::conv) continue;
      feeds_[n.in[0]] |= at_[n.in[1]].weights, feeds_[n.in[1]] |= at_[n.in[0]].weights;
      for (NodeId i : n.in)
        for (size_t p : at_[i].parameters) uses_[p].hidden |= feeds_[*it] && (n.op == Op::conv ? uses_[p].rank > 1 : uses_[p].rank == 2);
    }
  }

 private:
  void loop(NodeId id) {
    const ScanView v = scan_view(g_[id]);
    WeightUses inner(v.body.graph, results_of(v.body), uses_);
    for (size_t i = 0; i < v.constants.size(); ++i) inner.set(v.body.constant_in[i], at_[v.constants[i]]);
    inner.forward();
    for (NodeId out : results_of(v.body)) inner.feeds_[out] = feeds_[id];
    for (bool again = true; again;) {  // a carry is read by the next step
      again = false;
      inner.backward();
      for (size_t i = 0; i < v.carry.size(); ++i) {
        char& out = inner.feeds_[v.body.carry_out[i]];
        again |= inner.feeds_[v.body.carry_in[i]] && !out;
        out |= inner.feeds_[v.body.carry_in[i]];
      }
    }
    auto reach = [&](std::span<const NodeId> operands, std::span<const NodeId> inputs) {
      for (size_t i = 0; i < operands.size(); ++i) feeds_[operands[i]] |= inner.feeds_[inputs[i]];
    };
    reach(v.carry, v.body.carry_in), reach(v.sequences, v.body.sequence_in), reach(v.constants, v.body.constant_in);
  }

  const Graph& g_;
  const std::vector<NodeId> order_;
  std::vector<ParameterUse>& uses_;
  std::vector<Value> at_;
  std::vector<char> feeds_;
};

}  // namespace

std::vector<char> hidden_matrices(const Graph& graph, NodeId loss, std::span<const NodeId> parameters) {
  std::vector<ParameterUse> uses;
  for (NodeId p : parameters) uses.push_back({graph.shape(p).rank()});
  WeightUses network(graph, {&loss, 1}, uses);
  for (size_t i = 0; i < parameters.size(); ++i) network.set(parameters[i], {{i}, true, false});
  network.forward(), network.backward();
  std::vector<char> hidden;
  for (const ParameterUse& u : uses) hidden.push_back(u.hidden && !u.table);
  return hidden;
}

}  // namespace ridge
