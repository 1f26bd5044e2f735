// A circuit's step as a program that stays open.
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "backend/backend.h"
#include "base/error.h"
#include "eager/tensor_state.h"
#include "measure/default_team.h"
#include "ridge/circuits.h"
#include "runtime/executable.h"

namespace ridge {

struct CircuitStream::State {
  std::unique_ptr<Executable> program;
  std::vector<Tensor> weights;                   // everything that depends on weights alone, computed once
  std::vector<std::vector<float>> values, next;  // x, timespan and states; output and next states
  std::vector<const void*> in;
  std::vector<void*> out;
};

CircuitStream::CircuitStream(const Circuit& circuit, int64_t batch) : state_(std::make_unique<State>()) {
  State& s = *state_;
  if (batch < 1) fail(ErrorCode::value, "[stream] batch is {}; use at least 1", batch);
  std::vector<Tensor> given = {detail::placeholder({DType::f32, {batch, circuit.args().inputs}}, "x"), detail::placeholder({DType::f32, {}}, "timespan")};
  for (const Tensor& zero : circuit.zero_state(batch)) given.push_back(detail::placeholder({DType::f32, zero.shape()}, "state"));
  const CircuitOutput traced = circuit.step(given[0], {given.begin() + 2, given.end()}, given[1]);
  std::vector<Tensor> results = {traced.output};
  results.insert(results.end(), traced.state.begin(), traced.state.end());

  const std::shared_ptr<detail::Lazy> lazy = detail::common_lazy(results);
  std::vector<NodeId> roots, inputs;
  for (const Tensor& t : results) roots.push_back(detail::node_in(lazy, t));
  Graph graph;
  std::unordered_map<NodeId, NodeId> known;
  for (const Tensor& t : given) {
    inputs.push_back(graph.input(t.state()->type, t.state()->name));
    if (const auto it = lazy->node_of.find(t.state().get()); it != lazy->node_of.end()) known[it->second] = inputs.back();
  }
  std::vector<char> varies(lazy->graph.size(), 0);
  for (const auto& [id, input] : known) varies[id] = 1;
  for (NodeId id : topological(lazy->graph, roots)) {
    for (NodeId in : lazy->graph[id].in) varies[id] |= varies[in];
    if (!varies[id]) continue;
    for (NodeId in : lazy->graph[id].in) {
      if (varies[in] || known.count(in) || lazy->graph[in].op == Op::literal) continue;
      known[in] = graph.input(lazy->graph.type(in), "weights");
      inputs.push_back(known[in]);
      s.weights.push_back(detail::lazy_tensor(lazy, in));
    }
  }
  const std::vector<NodeId> outputs = import_nodes(graph, lazy->graph, roots, known);
  s.program = std::make_unique<Executable>(graph, inputs, outputs, CompileOptions(default_backend()));
  detail::evaluate(s.weights);

  for (const Tensor& t : given) s.values.emplace_back(size_t(t.size()));
  for (const Tensor& t : results) s.next.emplace_back(size_t(t.size()));
  for (auto& v : s.values) s.in.push_back(v.data());
  for (const Tensor& w : s.weights) s.in.push_back(w.data());
  for (auto& v : s.next) s.out.push_back(v.data());
  s.program->prepare();
}

CircuitStream::~CircuitStream() = default;
CircuitStream::CircuitStream(CircuitStream&&) noexcept = default;

std::span<const float> CircuitStream::step(std::span<const float> x, float timespan) {
  State& s = *state_;
  if (x.size() != s.values[0].size()) fail(ErrorCode::shape, "[stream] {} input values, a step takes {}", x.size(), s.values[0].size());
  if (!(timespan >= 0) || !std::isfinite(timespan)) fail(ErrorCode::value, "[stream] timespan {} is not a finite number of at least 0", timespan);
  std::copy(x.begin(), x.end(), s.values[0].begin());
  s.values[1][0] = timespan;
  s.program->run(s.in, s.out);
  for (size_t i = 2; i < s.values.size(); ++i) {  // the new state is the next step's old one
    s.values[i].swap(s.next[i - 1]);
    s.in[i] = s.values[i].data(), s.out[i - 1] = s.next[i - 1].data();
  }
  return s.next[0];
}

void CircuitStream::reset() {
  for (size_t i = 2; i < state_->values.size(); ++i) std::fill(state_->values[i].begin(), state_->values[i].end(), 0.0f);
}

std::span<float> CircuitStream::state(size_t index) {
  if (index + 2 >= state_->values.size()) fail(ErrorCode::value, "[stream] state {} does not exist; there are {}", index, state_->values.size() - 2);
  return state_->values[index + 2];
}

}  // namespace ridge
