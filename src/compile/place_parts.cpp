// Lets values be written directly into the buffer of the value that they are part of.
#include <unordered_map>
#include <unordered_set>

#include "compile/passes.h"

namespace ridge {

// Parts of a stored concat, and values that an output only reshapes, are written directly into it if they are kernel results that nothing
// else needs as a whole. The same holds for convolutions that an output only permutes, if the backend handles that well.
void place_parts(Compilation& c) {
  Program& p = c.program;
  std::unordered_map<NodeId, int> uses;
  for (NodeId id : topological(p.graph, p.outputs))
    for (NodeId in : p.graph[id].in) ++uses[in];
  for (NodeId id : p.outputs) ++uses[id];
  std::unordered_set<NodeId> updates;  // updates of state that is read: written after their readers have run, not part by part before
  for (auto [in, out] : c.options.state)
    if (uses[p.inputs[size_t(in)]]) updates.insert(p.outputs[size_t(out)]);
  const std::unordered_set<NodeId> program_outputs(p.outputs.begin(), p.outputs.end());
  // The rows of a product are one loop, so what follows it in its kernel cannot be written everywhere.
  std::unordered_map<NodeId, GroupSpec> epilogues;
  for (const Group& group : c.fused.groups)
    if (group.kind == Group::Kind::matmul)
      for (NodeId id : group.specs[0].members) epilogues[id] = group.specs[0];
  auto can_write = [&](NodeId source, const Storage& place) {
    const auto it = epilogues.find(source);
    if (it == epilogues.end()) return true;
    it->second.repeated = &c.fused.repeated;
    return lower_group(p.graph, it->second, [&](NodeId id) { return id == source ? place : storage_of(c, id); }).refusal.empty();
  };
  std::vector<Group> left;
  for (Group& group : c.fused.groups) {
    NodeId id = group.kind == Group::Kind::tile && group.specs.size() == 1 && group.specs[0].members.size() == 1 ? group.specs[0].members[0] : kNone;
    if (id && !updates.count(id) && p.graph[id].op == Op::permute) {
      const NodeId source = p.graph[id].in[0];
      if (p.graph[source].op == Op::conv && uses[source] == 1 && !c.placed.count(source) && c.target.stores_permuted && c.target.stores_permuted(p.graph, id)) {
        const Shape strides = contiguous_strides(p.graph.shape(id));
        Storage place{id, 0, strides};
        for (int i = 0; i < strides.rank(); ++i) place.strides[int(p.graph[id].attrs.ints[size_t(i)])] = strides[i];
        c.placed[source] = place;
        continue;
      }
    }
    if (!id || updates.count(id) || (p.graph[id].op != Op::concat && p.graph[id].op != Op::reshape)) {
      left.push_back(std::move(group));
      continue;
    }
    int axis = p.graph[id].op == Op::concat ? int(p.graph[id].attrs.ints[0]) : 0;
    Shape strides = contiguous_strides(p.graph.shape(id));
    std::vector<std::pair<NodeId, Storage>> plan;
    int64_t at = 0;
    std::vector<NodeId> parts = p.graph[id].in;
    if (p.graph[id].op == Op::reshape) parts = {id};  // an output that reshapes a kernel's result
    for (NodeId part : parts) {
      // Follow reshapes back to the kernel's result: its shape must split the part's strides evenly.
      NodeId source = part;
      bool alone = uses[part] == 1;
      while (p.graph[source].op == Op::reshape && (source == id || !c.fused.copies.count(source))) source = p.graph[source].in[0], alone &= uses[source] == 1;
      bool computed = alone && has_memory(p.graph, source, c.fused) && p.graph[source].op != Op::input && !c.placed.count(source) &&
                      !program_outputs.count(source) && p.graph[source].op != Op::scan && p.graph[source].op != Op::sort;
      if (p.graph[source].op == Op::get) {
        Op maker = p.graph[p.graph[source].in[0]].op;
        computed &= maker == Op::attention || maker == Op::attention_grad;
      } else if (computed) {
        computed = !is_view(p.graph[source].op) && (row(p.graph[source].op).fusion != Fusion::alone || p.graph[source].op == Op::conv);
      }
      if (!computed) break;
      // Strides of `part` inside the concat, then those of `source` by splitting axes.
      Domain d = Domain::of(p.graph.shape(source));
      Storage place{id, at ? at * strides[axis] : 0, Shape::filled(d.rank(), 0)};
      try {
        IndexMap map = split_linear(d, {0, d.full}, p.graph.shape(part));
        for (size_t a = 0; a < map.size(); ++a)
          for (int l = 0; l < d.rank(); ++l) place.strides[l] += map[a].strides[l] * strides[int(a)];
      } catch (const SplitAxis&) {
        break;
      } catch (const Refusal&) {
        break;
      }
      if (!can_write(source, place)) break;
      plan.push_back({source, place});
      at += p.graph.shape(part).rank() ? p.graph.shape(part)[axis] : 0;
    }
    if (plan.size() != parts.size()) {
      left.push_back(std::move(group));
      continue;
    }
    for (auto& [source, place] : plan) c.placed[source] = place;
  }
  c.fused.groups = std::move(left);
}

}  // namespace ridge
