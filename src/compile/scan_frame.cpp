#include "compile/scan_frame.h"

#include "compile/plan_memory.h"
#include "graph/rewrite.h"

namespace ridge {

ScanFrame::ScanFrame(const Graph& graph, NodeId node) : view_(scan_view(graph[node])) {
  const ScanBody& b = view_.body;
  std::unordered_map<NodeId, NodeId> known;
  for (auto* list : {&b.carry_in, &b.sequence_in, &b.constant_in})
    for (NodeId id : *list) inputs.push_back(known[id] = body.input(b.graph.type(id), b.graph.input_name(id)));
  outputs = import_nodes(body, b.graph, results_of(b), known);
  for (NodeId id : b.carry_in) carry_bytes_.push_back(b.graph.type(id).bytes());
  for (NodeId id : b.sequence_in) sequence_bytes_.push_back(b.graph.type(id).bytes());
  for (NodeId id : b.step_out) output_bytes_.push_back(b.graph.type(id).bytes());
}

int64_t ScanFrame::lay_out(int64_t body_arena_bytes) {
  auto aligned = [](int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  int64_t end = aligned(body_arena_bytes);
  for (int64_t bytes : carry_bytes_) turn_at_.push_back(end), turn_bytes_.push_back(aligned(bytes)), end += 2 * aligned(bytes);
  for (int64_t bytes : output_bytes_) discard_at_.push_back(end), end += aligned(bytes);
  return end;
}

}  // namespace ridge
