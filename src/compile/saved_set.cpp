#include "compile/saved_set.h"

#include <algorithm>
#include <unordered_map>

#include "compile/min_cut.h"
#include "graph/ops/table.h"

namespace ridge {

std::string_view name(Recompute level) {
  constexpr std::string_view names[] = {"free", "elementwise", "attention", "segments", "layers"};
  return names[int(level)];
}

std::optional<Recompute> parse_recompute(std::string_view text) {
  for (Recompute level : {Recompute::free, Recompute::elementwise, Recompute::attention, Recompute::segments, Recompute::layers})
    if (name(level) == text) return level;
  return {};
}

namespace {

constexpr int64_t kInfinite = FlowNetwork::kInfinite;

// Ops that fuse into the kernel that reads them.
bool cheap(Op op) { return (row(op).fusion == Fusion::tile && op != Op::dynamic_slice) || is_view(op) || op == Op::stop_gradient; }

int full_operands(const Graph& g, NodeId id) {
  int full = 0;
  for (NodeId in : g[id].in) {
    while (g[in].op == Op::expand || g[in].op == Op::reshape) in = g[in].in[0];
    full += g[in].op != Op::literal && g.shape(in).numel() * 8 > g.shape(id).numel();
  }
  return full;
}

bool reads_memory(Op op) { return !cheap(op) && op != Op::get; }

// Sums over rows or columns, and values computed from them alone (a norm's mean and deviation, a softmax's sum). They are much smaller than
// the tensor that they sum, which would have to be read again to recompute them.
std::vector<char> small_sums(const Graph& g, std::span<const NodeId> ahead) {
  std::vector<char> small(g.size(), 0);
  for (NodeId id : ahead) {
    const Node& n = g[id];
    if (n.types.size() != 1) continue;
    if (is_reduction(n.op)) {
      small[id] = g.shape(id).numel() * 8 <= g.shape(n.in[0]).numel();
    } else if (is_elementwise(n.op)) {
      bool from_sums = false, others = false;
      for (NodeId in : n.in) {
        while (g[in].op == Op::reshape) in = g[in].in[0];
        from_sums |= small[in] != 0;
        others |= !small[in] && g[in].op != Op::literal && !(g[in].op == Op::expand && g.shape(g[in].in[0]).numel() == 1);
      }
      small[id] = from_sums && !others;
    }
  }
  return small;
}

// The values that forward writes to memory anyway: those that a heavy kernel reads, or that are read after one. A product that only
// arithmetic reads ends in its epilogue.
std::vector<char> stored_by_forward(const Graph& g, std::span<const NodeId> ahead, bool conv_fuses) {
  std::vector<NodeId> next_heavy(g.size(), 0), last_reader(g.size(), 0);  // 0: none
  NodeId heavy = 0;
  for (size_t i = ahead.size(); i-- > 0;) {
    next_heavy[ahead[i]] = heavy;
    if (reads_memory(g[ahead[i]].op) && g[ahead[i]].op != Op::input && g[ahead[i]].op != Op::literal) heavy = ahead[i];
  }
  std::vector<char> stored(g.size(), 0);
  for (NodeId id : ahead) {
    if (is_view(g[id].op)) continue;
    auto see = [&](auto& self, NodeId in) -> void {
      last_reader[in] = std::max(last_reader[in], id);
      stored[in] |= reads_memory(g[id].op);
      if (is_view(g[in].op))
        for (NodeId i : g[in].in) self(self, i);
    };
    for (NodeId in : g[id].in) see(see, in);
  }
  for (NodeId id : ahead) {
    stored[id] |= !is_elementwise(g[id].op) && g[id].op != Op::matmul && !(g[id].op == Op::conv && conv_fuses);
    stored[id] |= next_heavy[id] && last_reader[id] > next_heavy[id];
  }
  return stored;
}

}  // namespace

SavedSet choose_saved(Graph& g, std::span<const NodeId> outputs, std::span<const NodeId> forward, Recompute level, bool conv_fuses) {
  std::vector<char> is_forward(g.size(), 0);
  std::vector<NodeId> ahead = topological(g, forward), all = topological(g, outputs);
  for (NodeId id : ahead) is_forward[id] = g[id].op != Op::input && g[id].op != Op::literal;
  // Forward also computes results that only backward reads (an attention's log-sum-exp).
  for (NodeId id : all)
    if (g[id].op == Op::get && is_forward[g[id].in[0]] && !is_forward[id]) is_forward[id] = 1, ahead.push_back(id);
  std::sort(ahead.begin(), ahead.end());

  auto recomputable = [&](NodeId id) {
    Op op = g[id].op == Op::get ? g[g[id].in[0]].op : g[id].op;
    if (cheap(op) || op == Op::custom) return true;
    if (op == Op::attention) return level >= Recompute::attention;
    return level == Recompute::layers && (op == Op::matmul || op == Op::conv);
  };
  std::vector<char> anchored(g.size(), 0);  // never recomputed: saved, unless nothing later needs it
  if (level == Recompute::layers) {
    // Values that everything later depends on: at their position in the order, no other forward value is still to be read. Views count as
    // their source, and values that depend on no floating input (position tables, targets) do not count.
    std::vector<NodeId> last_use(g.size(), 0);
    std::vector<char> counts(g.size(), 0);
    auto use = [&](auto& self, NodeId id, NodeId user) -> void {
      last_use[id] = std::max(last_use[id], user);
      if (is_view(g[id].op) || g[id].op == Op::get)
        for (NodeId in : g[id].in) self(self, in, user);
    };
    for (NodeId id : ahead) {
      for (NodeId in : g[id].in) counts[id] |= (g[in].op == Op::input && is_float(g.dtype(in))) || counts[in];
      if (!is_view(g[id].op) && g[id].op != Op::get)
        for (NodeId in : g[id].in) use(use, in, id);
    }
    int open = 0;
    std::unordered_map<NodeId, int> closes;
    for (NodeId id : ahead) {
      open -= closes[id];
      if (!is_forward[id] || !counts[id] || is_view(g[id].op) || g[id].op == Op::get || !last_use[id]) continue;
      anchored[id] = open == 0 && g[id].types.size() == 1;
      ++open, ++closes[last_use[id]];
    }
  }

  const std::vector<char> small = small_sums(g, ahead);
  const std::vector<char> stored = stored_by_forward(g, ahead, conv_fuses);
  std::vector<char> convolved(g.size(), 0);  // sources of convolutions, which the gradients of weights read again
  for (NodeId id : ahead)
    if (g[id].op == Op::conv) {
      NodeId at = g[id].in[0];
      while (is_view(g[at].op)) at = g[at].in[0];
      convolved[at] = 1;
    }

  // in(n) = 2n, out(n) = 2n + 1. Saving a value cuts the edge between them.
  int source = int(2 * g.size()), sink = source + 1;
  FlowNetwork net(size_t(sink) + 1);
  for (NodeId id : ahead) {
    if (!is_forward[id]) continue;
    int64_t bytes = 0;
    for (const Type& t : g[id].types) bytes += std::max<int64_t>(t.bytes(), 1);
    // Arithmetic on one tensor and some rows or numbers is never stored otherwise, so saving it would be an extra write: its operand is
    // preferred, and so is anything that forward stores anyway.
    if (is_elementwise(g[id].op) && full_operands(g, id) <= 1 && !small[id] && !convolved[id]) bytes += bytes / 4;
    if (!stored[id] && !small[id]) bytes *= 3;
    bool several = g[id].types.size() > 1;  // saved as individual results
    net.edge(int(2 * id), int(2 * id + 1), is_view(g[id].op) || several ? kInfinite : bytes);
    if (!recomputable(id) && g[id].op != Op::get) net.edge(source, int(2 * id), kInfinite);
    if (anchored[id] || (small[id] && is_reduction(g[id].op))) net.edge(source, int(2 * id), kInfinite);
    for (NodeId in : g[id].in)
      if (is_forward[in]) net.edge(int(2 * in + 1), int(2 * id), kInfinite);
  }
  for (NodeId id : all) {
    if (is_forward[id] || g[id].op == Op::input) continue;
    for (NodeId in : g[id].in) {
      if (!is_forward[in]) continue;
      net.edge(int(2 * in + 1), sink, kInfinite);
      if (level != Recompute::free || !reads_memory(g[id].op)) continue;
      // A kernel reads it from memory, so recomputing it would take a separate kernel: the source of the view is saved instead.
      NodeId at = in;
      while (is_strided_view(g[at].op) && is_forward[g[at].in[0]]) at = g[at].in[0];
      if (is_forward[at]) net.edge(source, int(2 * at), kInfinite);
    }
  }
  for (NodeId id : outputs)
    if (is_forward[id] && std::find(forward.begin(), forward.end(), id) == forward.end()) net.edge(source, int(2 * id), kInfinite);
  net.solve(source, sink);

  SavedSet result;
  std::vector<char> saved(g.size(), 0);
  for (NodeId id : ahead)
    if (is_forward[id] && net.before_last_cut(int(2 * id)) && !net.before_last_cut(int(2 * id + 1))) {
      saved[id] = 1, result.saved.push_back(id);
      for (const Type& t : g[id].types) result.bytes += t.bytes();
    }

  // Backward's own copies of values that were not saved.
  std::unordered_map<NodeId, NodeId> again, moved;
  auto remake = [&](auto& self, NodeId id) -> NodeId {
    if (!is_forward[id] || saved[id]) return id;
    if (auto it = again.find(id); it != again.end()) return it->second;
    std::vector<NodeId> in;
    bool same = true;
    for (NodeId i : std::vector<NodeId>(g[id].in)) in.push_back(self(self, i)), same &= in.back() == i;
    // A view of a saved value is free; anything else is a new copy that no pass merges with the original.
    NodeId made = is_view(g[id].op) || g[id].op == Op::get ? (same ? id : g.add(g[id].op, in, g[id].attrs, g[id].copy))
                                                           : g.add(g[id].op, in, g[id].attrs, uint16_t(g[id].copy + 1));
    again[id] = made;
    return made;
  };
  for (NodeId id : all) {
    if (is_forward[id] || g[id].op == Op::input || g[id].op == Op::literal) {
      moved[id] = id;
      continue;
    }
    std::vector<NodeId> in;
    bool same = true;
    for (NodeId i : std::vector<NodeId>(g[id].in)) in.push_back(is_forward[i] ? remake(remake, i) : moved.at(i)), same &= in.back() == i;
    moved[id] = same ? id : g.add(g[id].op, in, g[id].attrs, g[id].copy);
  }
  for (NodeId id : outputs) result.outputs.push_back(moved.at(id));
  return result;
}

}  // namespace ridge
