#include "step/batch_axis.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "graph/draws.h"
#include "graph/ops/table.h"
#include "graph/scan.h"
#include "step/batch_sizes.h"

namespace ridge {
namespace {

using Maybe = std::optional<SampleAxis>;

class Tracker {
 public:
  // With `sizes`, also tracks whatever grows with the number of samples: draws, filled tensors, indices.
  Tracker(const Graph& g, std::span<const NodeId> inputs, const BatchSizes* sizes = nullptr, std::map<uint32_t, DrawAxis>* draws = nullptr)
      : g_(g), sizes_(sizes), draws_(draws), at_(g.size()), summed_(g.size(), 0) {
    for (NodeId id : inputs) at_[id] = SampleAxis{0, 1, g.shape(id)[0]};
  }

  void visit(NodeId id) {
    const Node& n = g_[id];
    if (n.op == Op::scan) return loop(id);
    if (n.op == Op::get && g_[n.in[0]].op == Op::scan) {
      const Result& r = results_.at(n.in[0])[size_t(n.attrs.ints[0])];
      at_[id] = r.at, summed_[id] = r.summed;
      return;
    }
    if (std::any_of(n.in.begin(), n.in.end(), [&](NodeId i) { return summed_[i]; }))
      after_sum(id);
    else if (std::any_of(n.in.begin(), n.in.end(), [&](NodeId i) { return at_[i].has_value(); }))
      follow(id);
    if (sizes_) follow_sizes(id);
  }

  bool batched(NodeId id) const { return at_[id].has_value(); }
  bool summed(NodeId id) const { return summed_[id]; }

 private:
  void follow(NodeId id) {
    std::vector<Maybe> in;
    for (NodeId i : g_[id].in) in.push_back(at_[i]);
    const BatchFlow flow = row(g_[id].op).batch({g_, id, in});
    at_[id] = flow.at, summed_[id] = flow.summed;
  }

  // The axis that grows with the number of samples.
  Maybe grown(NodeId id) const {
    Maybe found;
    for (int axis : sizes_->grown_axes(g_, id)) {
      if (found) throw Coupled{"two of its axes count samples"};
      found = SampleAxis{axis, g_.shape(id)[axis] / sizes_->samples(), sizes_->samples()};
    }
    return found;
  }

  void follow_sizes(NodeId id) {
    const Node& n = g_[id];
    const Maybe axis = grown(id);
    if (!at_[id] && (n.op == Op::expand || n.op == Op::iota || n.op == Op::random_uniform || n.op == Op::random_bits)) {
      if (axis && n.op == Op::iota && n.attrs.ints[1] == axis->axis) throw Coupled{"it numbers the samples, and each part of the batch would begin at 0"};
      at_[id] = axis;
    }
    if (axis && !(at_[id] && at_[id]->axis == axis->axis))
      throw Coupled{fmt::format("its axis {} is as long as there are samples, but is not made from the batch", axis->axis)};
    const std::optional<Draw> draw = draw_of(g_, id);
    if (!draw) return;
    const DrawAxis here = at_[id] ? DrawAxis{at_[id]->axis, at_[id]->inner} : DrawAxis{};
    const auto [before, fresh] = draws_->emplace(draw->stream, here);
    if (!fresh && !(before->second == here)) throw Coupled{fmt::format("another draw of stream {} has its samples on another axis", draw->stream)};
  }

  // The body must also keep samples independent. A carry that starts as one value for all samples gets its axis from the body's result.
  void loop(NodeId id) {
    const Node& n = g_[id];
    ScanView v = scan_view(n);
    const ScanBody& body = v.body;
    std::vector<NodeId> in;
    for (auto* list : {&body.carry_in, &body.sequence_in, &body.constant_in}) in.insert(in.end(), list->begin(), list->end());
    size_t carries = body.carry_in.size(), sequences = body.sequence_in.size();
    std::vector<Maybe> at(in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      if (summed_[n.in[i]]) throw Coupled{"it uses a statistic of the whole batch, as batch norm does"};
      at[i] = at_[n.in[i]];
      if (!at[i] || i < carries || i >= carries + sequences) continue;
      if (at[i]->axis == 0) throw Coupled{"its steps are the samples; put the batch axis after time"};
      --at[i]->axis;
    }
    const std::vector<NodeId> roots = results_of(body);
    const std::map<uint32_t, DrawAxis> before = draws_ ? *draws_ : std::map<uint32_t, DrawAxis>{};
    for (bool again = true; again;) {
      again = false;
      if (draws_) *draws_ = before;
      Tracker inner(body.graph, {}, sizes_, draws_);
      for (size_t i = 0; i < in.size(); ++i) inner.at_[in[i]] = at[i];
      for (NodeId node : topological(body.graph, roots)) inner.visit(node);
      results_[id].clear();
      for (size_t i = 0; i < carries; ++i) {
        NodeId out = body.carry_out[i];
        if (inner.summed_[out]) throw Coupled{"it carries a sum over samples from step to step"};
        if (inner.at_[out] && at[i] && !(*inner.at_[out] == *at[i])) throw Coupled{"its carries move the samples"};
        if (inner.at_[out] && !at[i]) at[i] = inner.at_[out], again = true;
        results_[id].push_back({at[i], false});
      }
      auto stacked = [](Maybe b) {
        if (b) ++b->axis;
        return b;
      };
      for (NodeId out : body.step_out) results_[id].push_back({stacked(inner.at_[out]), bool(inner.summed_[out])});
      for (size_t i = 0; i < carries; ++i) results_[id].push_back({stacked(at[i]), false});
    }
    at_[id] = results_[id][0].at, summed_[id] = results_[id][0].summed;  // used when the loop has a single result
  }

  // A sum over the batch may only be summed further: it is a loss, not a statistic that feeds back into samples.
  void after_sum(NodeId id) {
    const Node& n = g_[id];
    bool linear = n.op == Op::reshape || n.op == Op::reduce_sum || n.op == Op::neg || (n.op == Op::cast && is_float(n.type().dtype));
    if (n.op == Op::add || n.op == Op::sub) linear = std::all_of(n.in.begin(), n.in.end(), [&](NodeId i) { return summed_[i]; });
    if (n.op == Op::mul || n.op == Op::div) linear = !summed_[n.in[1]] && !at_[n.in[1]];
    if (n.op == Op::mul && summed_[n.in[1]]) linear = !summed_[n.in[0]] && !at_[n.in[0]];
    if (!linear) throw Coupled{"it uses a statistic of the whole batch, as batch norm does"};
    summed_[id] = 1;
  }

  struct Result {
    Maybe at;
    bool summed;
  };

  const Graph& g_;
  const BatchSizes* sizes_;
  std::map<uint32_t, DrawAxis>* draws_;
  std::unordered_map<NodeId, std::vector<Result>> results_;  // of scans
  std::vector<Maybe> at_;
  std::vector<char> summed_;
};

std::string follow_all(Tracker& t, const Graph& g, std::span<const NodeId> losses, const std::function<std::string(const Type&)>& describe) {
  for (NodeId id : topological(g, losses)) {
    try {
      t.visit(id);
    } catch (const Coupled& c) {
      const Node& n = g[id];
      std::string operands;
      for (NodeId i : n.in) operands += (operands.empty() ? "" : ", ") + describe(g.type(i));
      return fmt::format("{}({}): {}", name(n.op), n.in.empty() ? describe(n.type()) : operands, c.why);
    }
  }
  for (NodeId id : losses)
    if (t.batched(id)) return fmt::format("the loss {} still has a batch axis: it must be a sum over samples", describe(g.type(id)));
  return "";
}

}  // namespace

std::string find_coupling(const Graph& g, std::span<const NodeId> batch_inputs, std::span<const NodeId> losses) {
  Tracker t(g, batch_inputs);
  return follow_all(t, g, losses, [](const Type& type) { return to_string(type); });
}

BatchAxes follow_batch(const BatchTrace& a, const BatchTrace& b) {
  BatchAxes out;
  const BatchSizes sizes(a, b);
  out.coupling = sizes.difference();
  if (!out.coupling.empty()) return out;
  Tracker t(a.graph, a.batch, &sizes, &out.draws);
  std::vector<NodeId> roots;
  for (const auto [sum, count] : a.ratios) roots.insert(roots.end(), {sum, count});
  out.coupling = follow_all(t, a.graph, roots, [&](const Type& type) { return sizes.describe(type); });
  if (!out.coupling.empty()) return out;
  const auto grows = [&](size_t i) { return t.summed(a.ratios[i].count) || sizes.counts_samples(i); };
  if (!t.summed(a.ratios[0].sum)) out.coupling = "the sum of losses is not made from the batch: every part of the batch would add it again";
  if (!grows(0)) out.coupling = "the number of losses does not grow with the samples: return the sum of the losses and how many they are";
  for (size_t i = 1; i < a.ratios.size(); ++i)
    if (t.summed(a.ratios[i].sum) != grows(i))
      out.coupling =
          "of a named scalar only the sum or only the count grows with the samples: give a value for each sample, or a sum over samples and its count";
  return out;
}

std::string find_unpredicted(const BatchTrace& a, const BatchTrace& b, const BatchTrace& c) {
  const BatchSizes rule(a, b);
  return BatchSizes(a, c, &rule).difference();
}

}  // namespace ridge
