// Test values, drawn from a fixed stream so that every run sees the same ones.
#pragma once
#include <cmath>
#include <string>
#include <unordered_map>

#include "backend/reference/evaluate.h"
#include "graph/ops/table.h"

namespace ridge::test {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0xd1342543de82ef95 + 1) {}
  double uniform(double low, double high) { return low + (high - low) * double(next() >> 11) * 0x1p-53; }
  int64_t below(int64_t n) { return int64_t(next() % uint64_t(n)); }

 private:
  uint64_t next() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

// Values of a sample's operand: integers are rounded down, all are drawn at least `avoid` away from whole numbers.
inline reference::Array draw(const Sample::Operand& operand, double avoid, Random& random) {
  std::vector<double> v(size_t(operand.type.shape.numel()));
  for (double& x : v) do
      x = random.uniform(operand.low, operand.high);
    while (std::fabs(x - std::nearbyint(x)) < avoid);
  return reference::from_values(operand.type, v);
}

inline reference::Array draw(const Type& type, Random& random, double low = -2, double high = 2) { return draw({type, low, high}, 0, random); }

using Values = std::unordered_map<NodeId, reference::Array>;

// One call of an op as a graph: its operands are inputs with values, its results are outputs.
struct SampleGraph {
  Graph graph;
  std::vector<NodeId> inputs;
  NodeId node = kNone;
  std::vector<NodeId> outputs;
  Values values;
};

inline SampleGraph sample_graph(Op op, const Sample& sample, Random& random) {
  SampleGraph s;
  const OpRow& r = row(op);
  for (const Sample::Operand& operand : sample.in) {
    if (r.max_in >= 0 && int(s.inputs.size()) == r.max_in) break;  // samples are shared by ops with fewer operands
    NodeId id = s.graph.input(operand.type, "x" + std::to_string(s.inputs.size()));
    s.inputs.push_back(id);
    s.values[id] = draw(operand, sample.avoid, random);
  }
  s.node = s.graph.add(op, s.inputs, sample.attrs);
  size_t many = s.graph[s.node].types.size();
  if (many == 1) s.outputs = {s.node};
  for (size_t i = 0; many > 1 && i < many; ++i) s.outputs.push_back(s.graph.add(Op::get, {s.node}, {{int64_t(i)}, {}, nullptr}));
  return s;
}

inline std::string describe(Op op, const Sample& sample) {
  std::string text(name(op));
  for (const Sample::Operand& o : sample.in) text += " " + to_string(o.type);
  for (int64_t v : sample.attrs.ints) text += " " + std::to_string(v);
  return text;
}

}  // namespace ridge::test
