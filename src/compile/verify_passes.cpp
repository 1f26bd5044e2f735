// The conditions that must hold after each pass. Cheap: each node, group or operand is examined once.
#include <algorithm>

#include "base/error.h"
#include "compile/passes.h"

namespace ridge {
namespace {

template <class... Args>
void require(bool holds, fmt::format_string<const Args&...> text, const Args&... args) {
  if (!holds) fail(ErrorCode::internal, "[verify] {}", fmt::format(text, args...));
}

// Nodes that need a kernel to compute them.
bool is_computed(const Compilation& c, NodeId id) {
  const Op op = c.program.graph[id].op;
  return op != Op::input && op != Op::get && has_memory(c.program.graph, id, c.fused);
}

// The index of each node's group; kNowhere: in no group.
constexpr int kNowhere = -1;
std::vector<int> places(const Compilation& c) {
  std::vector<int> place(c.program.graph.size(), kNowhere);
  auto put = [&](NodeId id, size_t at) {
    require(place[id] == kNowhere, "%{} is computed by groups {} and {}", id, place[id], at);
    place[id] = int(at);
  };
  for (size_t i = 0; i < c.fused.groups.size(); ++i) {
    if (c.fused.groups[i].node) put(c.fused.groups[i].node, i);
    for (const GroupSpec& spec : c.fused.groups[i].specs)
      for (NodeId id : spec.members) put(id, i);
  }
  return place;
}

}  // namespace

void verify_graph(const Compilation& c) {
  const Graph& g = c.program.graph;
  require(c.program.outputs.size() == c.output_types.size(), "{} outputs became {}", c.output_types.size(), c.program.outputs.size());
  for (size_t i = 0; i < c.output_types.size(); ++i)
    if (const Type& now = g.type(c.program.outputs[i]), &asked = c.output_types[i]; !(now == asked))
      require(false, "output {} was {} and is {}", i, to_string(asked), to_string(now));
  for (NodeId id : topological(g, c.program.outputs))
    for (NodeId in : g[id].in) require(in != kNone && in < id, "%{} reads %{}, which does not come before it", id, in);
}

void verify_canonical(const Compilation& c) {
  verify_graph(c);
  const Graph& g = c.program.graph;
  for (NodeId id : topological(g, c.program.outputs)) {
    const Node& n = g[id];
    require(n.op != Op::stop_gradient && n.op != Op::custom && (n.op != Op::conv || c.target.convolutions), "{} %{} is still there", name(n.op), id);
    if (is_reduction(n.op))
      for (int64_t axis : n.attrs.ints) require(g.shape(n.in[0])[int(axis)] != 1, "{} %{} goes over one element", name(n.op), id);
  }
}

void verify_outputs(const Compilation& c) {
  verify_graph(c);
  std::unordered_set<NodeId> seen;
  for (NodeId id : c.program.outputs) {
    require(seen.insert(id).second, "%{} is output twice", id);
    require(c.program.graph[id].op != Op::input && c.program.graph[id].op != Op::literal, "output %{} is not computed", id);
  }
}

void verify_groups(const Compilation& c) {
  verify_outputs(c);
  const Graph& g = c.program.graph;
  const std::vector<int> place = places(c);
  auto require_computed = [&](NodeId id) {
    each_source(g, c.fused, id, [&](NodeId source) {
      const NodeId maker = g[source].op == Op::get ? g[source].in[0] : source;
      require(!is_computed(c, maker) || place[maker] != kNowhere, "{} %{} is read but no group computes it", name(g[maker].op), maker);
    });
  };
  for (NodeId id : c.program.outputs) require_computed(id);
  for (NodeId id : topological(g, c.program.outputs))
    if (place[id] != kNowhere)
      for (NodeId in : g[id].in) require_computed(in);
}

void verify_order(const Compilation& c) {
  verify_groups(c);
  const Graph& g = c.program.graph;
  const std::vector<int> place = places(c);
  for (NodeId id : topological(g, c.program.outputs))
    for (NodeId in : g[id].in)
      if (place[id] != kNowhere)
        each_source(g, c.fused, in, [&](NodeId source) {
          const NodeId maker = g[source].op == Op::get ? g[source].in[0] : source;
          require(place[maker] <= place[id], "{} %{} of group {} reads %{} of group {}", name(g[id].op), id, place[id], maker, place[maker]);
        });
}

void verify_kernels(const Compilation& c) {
  verify_outputs(c);
  const Program& p = c.program;
  struct Uses {
    int first_write = -1, last_write = -1, first_read = -1, last_read = -1;
  };
  std::unordered_map<NodeId, Uses> uses;
  for (int k = 0; k < int(p.kernels.size()); ++k)
    for (const ProgramOperand& o : p.kernels[size_t(k)].operands) {
      Uses& u = uses[o.owner];
      int &first = o.written ? u.first_write : u.first_read, &last = o.written ? u.last_write : u.last_read;
      first = first < 0 ? k : first, last = k;
    }
  for (const auto& [owner, u] : uses) {
    if (!owner) continue;
    const bool given = p.graph[owner].op == Op::input;
    require(given ? u.last_write < 0 : u.first_write >= 0, "%{} is {}", owner, given ? "an input that a kernel writes" : "read but never written");
    require(given || u.first_read < 0 || u.first_read >= u.last_write, "kernel {} reads %{}, which kernel {} still writes", u.first_read, owner, u.last_write);
  }
  for (size_t i = 0; i < p.outputs.size(); ++i) {
    require(uses[p.outputs[i]].last_write >= 0, "no kernel writes output {}", i);
    if (p.state_input[i] < 0) continue;
    const NodeId old_value = p.inputs[size_t(p.state_input[i])];
    require(uses[old_value].last_read <= uses[p.outputs[i]].first_write, "kernel {} reads the state that kernel {} has overwritten", uses[old_value].last_read,
            uses[p.outputs[i]].first_write);
  }
}

void verify_buffers(const Compilation& c) {
  verify_kernels(c);
  const Program& p = c.program;
  for (int k = 0; k < int(p.kernels.size()); ++k) {
    const ProgramKernel& kernel = p.kernels[size_t(k)];
    for (const ProgramOperand& o : kernel.operands)
      if (o.owner) {
        const ProgramBuffer& b = p.buffer_of(o.owner);
        require(b.first <= k && k <= b.last, "kernel {} uses %{}, which lives from {} to {}", k, o.owner, b.first, b.last);
      }
  }
  for (const ProgramBuffer& b : p.buffers)
    if (b.alias >= 0) {
      const ProgramBuffer& from = p.buffers[size_t(b.alias)];
      require(from.place == ProgramBuffer::Place::arena && from.last == b.first && from.bytes == b.bytes, "%{} takes over memory that %{} still uses", b.owner,
              from.owner);
    }
}

}  // namespace ridge
