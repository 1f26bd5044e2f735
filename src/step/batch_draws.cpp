#include "step/batch_draws.h"

#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "graph/builder.h"
#include "graph/draws.h"
#include "graph/rewrite.h"
#include "graph/scan.h"

namespace ridge {
namespace {

// How much a scalar grows per unit of the first sample's index; none: not linearly.
using PerSample = std::optional<int64_t>;

class WholeBatch {
 public:
  WholeBatch(int64_t whole, const std::map<uint32_t, DrawAxis>& draws) : whole_(whole), draws_(draws) {}
  bool changed = false;

  // `known`: growth of inputs; all other inputs do not depend on the base. `base` is created on demand.
  std::vector<NodeId> rewrite_all(Graph& g, std::span<const NodeId> roots, const std::unordered_map<NodeId, PerSample>& known,
                                  const std::function<NodeId()>& base) {
    std::vector<PerSample> grows(g.size(), 0);
    for (NodeId id : topological(g, roots)) {
      const auto it = known.find(id);
      grows[id] = it != known.end() ? it->second : per_sample(g, id, grows);
    }
    return rewrite(g, roots, [&](NodeId id, std::span<const NodeId> in) -> std::vector<NodeId> {
      if (g[id].op == Op::scan) return loop(g, id, in, grows, base);
      const std::optional<Draw> draw = draw_of(g, id);
      return draw ? counted(g, id, *draw, in, grows[g[id].in[draw->base]], base) : std::vector<NodeId>{};
    });
  }

 private:
  static PerSample per_sample(const Graph& g, NodeId id, const std::vector<PerSample>& grows) {
    const Node& n = g[id];
    bool depends = false;
    for (NodeId in : n.in) depends |= grows[in] != PerSample(0);
    if (!depends) return 0;
    auto operand = [&](size_t i) { return grows[n.in[i]]; };
    switch (n.op) {
      case Op::reshape: return operand(0);
      case Op::add: return operand(0) && operand(1) ? PerSample(*operand(0) + *operand(1)) : PerSample();
      case Op::mul:
        for (size_t i : {0, 1})
          if (const Node& factor = g[n.in[i]]; factor.op == Op::literal && operand(1 - i)) return *operand(1 - i) * int64_t(factor.attrs.reals[0]);
        return {};
      default: return {};
    }
  }

  std::vector<NodeId> counted(Graph& g, NodeId id, const Draw& draw, std::span<const NodeId> operands, PerSample has, const std::function<NodeId()>& base) {
    const Node n = g[id];
    if (!has) fail(ErrorCode::unsupported, "{} {}: the index of its first element does not grow by a fixed number per sample", name(n.op), to_string(n.type()));
    const auto it = draws_.find(draw.stream);
    if (it == draws_.end())
      fail(ErrorCode::unsupported, "{} {}: it is drawn only for some sizes of the batch (stream {})", name(n.op), to_string(n.type()), draw.stream);
    const DrawAxis at = it->second;
    int64_t wants = 0, outer = 1;
    if (at.axis >= 0) {
      wants = at.inner * contiguous_strides(draw.shape)[at.axis];
      for (int i = 0; i < at.axis; ++i) outer *= draw.shape[i];
    }
    if (*has == wants && outer <= 1) return {};
    changed = true;
    Builder b(g);
    std::vector<NodeId> in(operands.begin(), operands.end());
    if (*has != wants) in[draw.base] = b.add(in[draw.base], b.mul(base(), double(wants - *has)));
    Attrs attrs = n.attrs;
    if (outer > 1) attrs.reals = {double(at.axis), double(at.inner * whole_)};
    return all_results(g, g.add(n.op, in, attrs, n.copy));
  }

  std::vector<NodeId> loop(Graph& g, NodeId id, std::span<const NodeId> operands, const std::vector<PerSample>& grows, const std::function<NodeId()>& base) {
    const Node n = g[id];
    const ScanBody& before = scan_view(n).body;
    bool draws = false;
    for_each_draw_in(g, id, [&](const Graph&, NodeId, const Draw&) { draws = true; });
    if (!draws) return {};
    auto body = std::make_shared<ScanBody>(before);
    std::unordered_map<NodeId, PerSample> known;
    size_t at = 0;
    for (auto* list : {&before.carry_in, &before.sequence_in, &before.constant_in})
      for (NodeId in : *list) {
        const PerSample outside = grows[n.in[at++]];
        known[in] = list == &before.constant_in || outside == PerSample(0) ? outside : PerSample();
      }
    NodeId inner_base = kNone;
    auto make_base = [&] {
      if (!inner_base) body->constant_in.push_back(inner_base = body->graph.input({DType::i64, {}}, "base"));
      return inner_base;
    };
    const bool outside = std::exchange(changed, false);
    const std::vector<NodeId> roots = rewrite_all(body->graph, results_of(before), known, make_base);
    if (!changed) {
      changed = outside;
      return {};
    }
    body->carry_out.assign(roots.begin(), roots.begin() + long(before.carry_out.size()));
    body->step_out.assign(roots.begin() + long(before.carry_out.size()), roots.end());
    std::vector<NodeId> in(operands.begin(), operands.end());
    if (inner_base) in.push_back(base());
    return all_results(g, g.add(Op::scan, in, {n.attrs.ints, n.attrs.reals, body}, n.copy));
  }

  const int64_t whole_;
  const std::map<uint32_t, DrawAxis>& draws_;
};

}  // namespace

std::vector<NodeId> count_in_whole_batch(Graph& g, std::span<const NodeId> roots, NodeId base, int64_t whole, const std::map<uint32_t, DrawAxis>& draws,
                                         bool& changed) {
  WholeBatch w(whole, draws);
  std::vector<NodeId> out = w.rewrite_all(g, roots, {{base, 1}}, [&] { return base; });
  changed = w.changed;
  return out;
}

}  // namespace ridge
