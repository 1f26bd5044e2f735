#include "compile/scan_segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "base/text.h"
#include "graph/builder.h"
#include "graph/rewrite.h"
#include "graph/scan.h"

namespace ridge {
namespace {

Shape stretches(int64_t count, int64_t length, Shape s) {
  s[0] = length;
  s.insert(0, count);
  return s;
}

std::shared_ptr<const ScanBody> stretch_body(const std::shared_ptr<const ScanBody>& step, int64_t length, bool reverse) {
  auto body = std::make_shared<ScanBody>();
  body->segment = true;
  auto inputs = [&](const std::vector<NodeId>& from, bool over_time) {
    std::vector<NodeId> to;
    for (NodeId id : from) {
      Type t = step->graph.type(id);
      if (over_time) t.shape.insert(0, length);
      to.push_back(body->graph.input(t, step->graph.input_name(id)));
    }
    return to;
  };
  body->carry_in = inputs(step->carry_in, false), body->sequence_in = inputs(step->sequence_in, true), body->constant_in = inputs(step->constant_in, false);
  ScanResult r = scan(body->graph, step, body->carry_in, body->sequence_in, body->constant_in, length, reverse);
  body->carry_out = r.carry, body->step_out = r.outputs;
  return body;
}

// Sequences and outputs get one more axis, for the stretches.
bool has_room(const Graph& graph, const ScanView& v) {
  return std::all_of(v.sequences.begin(), v.sequences.end(), [&](NodeId x) { return graph.shape(x).rank() < kMaxRank; }) &&
         std::all_of(v.body.step_out.begin(), v.body.step_out.end(), [&](NodeId y) { return v.body.graph.shape(y).rank() + 1 < kMaxRank; });
}

// One result per result of the scan, except the carries at the start of each step.
std::vector<NodeId> segmented(Graph& graph, const Node& node, std::span<const NodeId> in, int64_t length) {
  Builder b(graph);
  ScanView v = scan_view(node);
  auto step = std::static_pointer_cast<const ScanBody>(node.attrs.body);
  size_t carries = v.carry.size(), sequences = v.sequences.size();
  int64_t count = v.steps / length, rest = v.steps % length, start = v.reverse ? rest : 0;  // the remainder runs last
  std::vector<NodeId> main_x, rest_x;
  for (NodeId x : in.subspan(carries, sequences)) {
    NodeId part = b.slice(x, 0, start, start + count * length);
    main_x.push_back(b.reshape(part, stretches(count, length, b.shape(part))));
    if (rest) rest_x.push_back(v.reverse ? b.slice(x, 0, 0, rest) : b.slice(x, 0, count * length, v.steps));
  }
  std::span<const NodeId> constants = in.subspan(carries + sequences);
  ScanResult r = scan(graph, stretch_body(step, length, v.reverse), in.subspan(0, carries), main_x, constants, count, v.reverse);
  for (NodeId& y : r.outputs) {
    Shape s = b.shape(y);
    s.erase(0), s[0] = count * length;
    y = b.reshape(y, s);
  }
  if (rest) {
    ScanResult tail = scan(graph, step, r.carry, rest_x, constants, rest, v.reverse);
    r.carry = tail.carry;
    for (size_t i = 0; i < r.outputs.size(); ++i) {
      NodeId parts[] = {v.reverse ? tail.outputs[i] : r.outputs[i], v.reverse ? r.outputs[i] : tail.outputs[i]};
      r.outputs[i] = b.concat(parts, 0);
    }
  }
  std::vector<NodeId> results = r.carry;
  results.insert(results.end(), r.outputs.begin(), r.outputs.end());
  results.resize(node.types.size(), kNone);
  return results;
}

}  // namespace

int64_t segment_length(int64_t steps) {
  int64_t root = int64_t(std::ceil(std::sqrt(double(steps)) - 1e-9));
  for (int64_t away = 0; 2 * away < root; ++away)
    for (int64_t length : {root - away, root + away})
      if (length > 0 && steps % length == 0) return length;
  return root;
}

SegmentedScans segment_scans(Graph& graph, std::span<const NodeId> roots) {
  std::unordered_set<NodeId> entered;  // scans whose carries at the start of each step are read
  for (NodeId id : topological(graph, roots)) {
    const Node& n = graph[id];
    if (n.op != Op::get || graph[n.in[0]].op != Op::scan) continue;
    const ScanBody& body = scan_view(graph[n.in[0]]).body;
    if (n.attrs.ints[0] >= int64_t(body.carry_in.size() + body.step_out.size())) entered.insert(n.in[0]);
  }
  SegmentedScans out;
  out.roots = rewrite(graph, roots, [&](NodeId id, std::span<const NodeId> in) -> std::vector<NodeId> {
    if (graph[id].op != Op::scan || entered.count(id)) return {};
    ScanView v = scan_view(graph[id]);
    int64_t length = segment_length(v.steps);
    if (v.steps < 4 || v.carry.empty() || v.body.segment || !has_room(graph, v)) return {};
    int64_t rest = v.steps % length;
    out.notes.push_back(fmt::format("scan of {}: {} of {}{}", counted(v.steps, "step"),
                                    v.steps / length == 1 ? "1 stretch" : fmt::format("{} stretches", v.steps / length), length,
                                    rest ? fmt::format(" and one of {}", rest) : ""));
    return segmented(graph, graph[id], in, length);
  });
  return out;
}

}  // namespace ridge
