// Turns groups of nodes into kernels: loop nests, contractions, and the storage of their operands.
#include <unordered_map>

#include "base/error.h"
#include "compile/passes.h"

namespace ridge {

Storage storage_of(const Compilation& c, NodeId id) {
  if (auto it = c.placed.find(id); it != c.placed.end()) return it->second;
  if (!has_memory(c.program.graph, id, c.fused)) return {};
  return {id, 0, contiguous_strides(c.program.graph.shape(id))};
}

namespace {

std::string kernel_name(const Graph& g, const Group& group) {
  if (group.kind == Group::Kind::node) return std::string(name(g[group.node].op));
  size_t ops = 0;
  bool reduces = false;
  for (const GroupSpec& s : group.specs)
    for (NodeId id : s.members) ++ops, reduces |= is_reduction(g[id].op);
  if (group.kind == Group::Kind::matmul) return fmt::format("{}{}", name(g[group.node].op), ops ? fmt::format("+{}", ops) : "");
  std::string base = fmt::format("{}[{}]", reduces ? "reduce" : "map", ops);
  return group.specs.size() > 1 ? fmt::format("{}x{}", base, group.specs.size()) : base;
}

// Operands: A, B, C (C only without an epilogue), then the epilogue's.
void build_matmul(const Compilation& c, ProgramKernel& kernel) {
  const Program& p = c.program;
  const StorageFn where = [&](NodeId id) { return storage_of(c, id); };
  NodeId id = kernel.group.node;
  const Node& n = p.graph[id];
  std::optional<View> a = resolve_view(p.graph, n.in[0], where), b = resolve_view(p.graph, n.in[1], where);
  if (!a || !b) fail(ErrorCode::internal, "[compile] a matmul's operand is not a view");
  size_t rank = a->axes.size();
  bool epilogue = !kernel.group.specs[0].members.empty();
  Storage out = epilogue ? Storage{id, 0, contiguous_strides(n.type().shape)} : storage_of(c, id);
  auto both = [&](const std::vector<View::Loop>& x, const std::vector<View::Loop>& y) {
    auto loops = common_loops(x, y);
    if (!loops) fail(ErrorCode::internal, "[compile] a matmul's operands cut an axis differently");
    return *loops;
  };
  for (size_t i = 0; i + 2 < rank; ++i) {
    auto loops = both(a->axes[i], b->axes[i]);
    int64_t inner = 1;
    std::vector<ContractionLoops::Loop> part;
    for (auto it = loops.rbegin(); it != loops.rend(); ++it) part.push_back({(*it)[0], (*it)[1], (*it)[2], out.strides[int(i)] * inner}), inner *= (*it)[0];
    kernel.loops.batch.insert(kernel.loops.batch.end(), part.rbegin(), part.rend());
  }
  auto one = [&](const std::vector<View::Loop>& loops, int64_t stride, bool from_a, std::vector<ContractionLoops::Loop>& to) {
    int64_t inner = 1;
    for (const View::Loop& l : loops) inner *= l.size;
    for (const View::Loop& l : loops) {
      inner = l.size ? inner / l.size : 0;
      to.push_back({l.size, from_a ? l.stride : 0, from_a ? 0 : l.stride, stride * inner});
    }
  };
  one(a->axes[rank - 2], out.strides[int(rank) - 2], true, kernel.loops.m);
  one(b->axes[rank - 1], out.strides[int(rank) - 1], false, kernel.loops.n);
  for (auto& l : both(a->axes[rank - 1], b->axes[rank - 2])) kernel.loops.k.push_back({l[0], l[1], l[2], 0});
  kernel.operands.push_back({a->base, a->offset * size_of(p.graph.dtype(n.in[0])), false});
  kernel.operands.push_back({b->base, b->offset * size_of(p.graph.dtype(n.in[1])), false});
  if (!epilogue) kernel.operands.push_back({out.owner, out.offset * size_of(n.type().dtype), true});
}

// Operands, then results, unless an epilogue stores them. Views provide strides to kernels that accept them.
void build_node(Compilation& c, ProgramKernel& kernel, const std::vector<NodeId>& parts) {
  Program& p = c.program;
  const StorageFn where = [&](NodeId id) { return storage_of(c, id); };
  NodeId id = kernel.group.node;
  const Node& n = p.graph[id];
  for (NodeId in : n.in) {
    std::optional<View> v = resolve_view(p.graph, in, where);
    if (!v) fail(ErrorCode::internal, "[compile] an operand of {} is not a view", name(n.op));
    kernel.operands.push_back({v->base, v->offset * size_of(p.graph.dtype(in)), false});
    kernel.views.push_back(std::move(*v));
  }
  if (kernel.group.kind == Group::Kind::matmul && !kernel.group.specs[0].members.empty()) return;
  std::vector<NodeId> results(n.types.size(), kNone);
  if (n.types.size() == 1)
    results[0] = id;
  else
    for (NodeId part : parts) results[size_t(p.graph[part].attrs.ints[0])] = part;
  // Kernels that always write all their results also need memory for unused ones.
  if (n.op == Op::attention || n.op == Op::attention_grad)
    for (size_t i = 0; i < results.size(); ++i)
      if (!results[i]) results[i] = p.graph.add(Op::get, {id}, {{int64_t(i)}, {}, nullptr});
  for (size_t i = 0; i < results.size(); ++i) {
    View v;
    Storage place = results[i] ? storage_of(c, results[i]) : Storage{kNone, 0, contiguous_strides(n.types[i].shape)};
    v.source = results[i], v.base = place.owner, v.offset = place.offset;
    for (int a = 0; a < n.types[i].shape.rank(); ++a) v.axes.push_back({{n.types[i].shape[a], place.strides[a]}});
    kernel.operands.push_back({place.owner, place.offset * size_of(n.types[i].dtype), true});
    kernel.views.push_back(std::move(v));
  }
}

}  // namespace

void lower_kernels(Compilation& c) {
  Program& p = c.program;
  p.kernels.clear();
  const StorageFn where = [&](NodeId id) { return storage_of(c, id); };
  std::unordered_map<NodeId, std::vector<NodeId>> parts;  // the results that are read, of nodes with several results
  for (NodeId id : topological(p.graph, p.outputs))
    if (p.graph[id].op == Op::get) parts[p.graph[id].in[0]].push_back(id);
  for (Group& group : c.fused.groups) {
    ProgramKernel kernel;
    kernel.name = kernel_name(p.graph, group);
    kernel.group = std::move(group);
    const bool conv = kernel.group.kind == Group::Kind::matmul && p.graph[kernel.group.node].op == Op::conv;
    if (kernel.group.kind == Group::Kind::node || conv) build_node(c, kernel, parts[kernel.group.node]);
    if (kernel.group.kind != Group::Kind::node) {
      if (kernel.group.kind == Group::Kind::matmul && !conv) build_matmul(c, kernel);
      for (GroupSpec& spec : kernel.group.specs) {
        if (spec.members.empty()) continue;
        spec.repeated = &c.fused.repeated;
        LoweredGroup lowered = lower_group(p.graph, spec, where);
        if (!lowered.refusal.empty()) fail(ErrorCode::internal, "[compile] kernel {} cannot be lowered: {}", kernel.name, lowered.refusal);
        spec.repeated = nullptr;  // the set does not outlive the passes
        verify(lowered.group);
        kernel.tiles.push_back(std::move(lowered.group));
        for (size_t i = 0; i < lowered.operands.size(); ++i) kernel.operands.push_back({lowered.operands[i], 0, bool(lowered.written[i])});
      }
    }
    p.kernels.push_back(std::move(kernel));
  }
}

}  // namespace ridge
