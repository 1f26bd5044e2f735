#include "step/step_work.h"

#include "graph/ops/table.h"
#include "graph/scan.h"

namespace ridge {
namespace {

// How many operations of a product take as long on a CPU as one element of a sum or an elementwise operation, cheap ones and others.
constexpr double kCheap = 6, kFunction = 40;
// How many launches of a recording take as long as a time step of the kernels that run a whole loop, forward and backward.
constexpr double kLaunchesPerTimeStep = 3;

// Of the forward pass.
struct Forward {
  double flops = 0, kept = 0;  // kept: bytes that the backward pass reads
  double time_steps = 0, kernels = 0;

  void add(const Graph& g, std::span<const NodeId> roots, double times) {
    for (const NodeId id : topological(g, roots)) {
      const Node& n = g[id];
      const OpRow& r = row(n.op);
      if (n.op == Op::scan) {
        const ScanView v = scan_view(n);
        add(v.body.graph, results_of(v.body), times * double(v.steps));
        if (times == 1) time_steps += double(v.steps);
        continue;
      }
      const Cost cost = r.cost ? r.cost(g, id) : Cost{};
      const bool product = r.fusion == Fusion::product || r.fusion == Fusion::alone;
      flops += times * cost.flops * (product ? 1 : r.effort == Effort::full && (r.traits & OpRow::elementwise) ? kFunction : kCheap);
      if (product) kept += times * double(n.type().bytes()), kernels += times == 1;
    }
  }
};

}  // namespace

StepWork step_work(const StepModel& model) {
  Graph g;
  Builder b(g);
  double parameters = 0;
  StepWork work;
  std::vector<NodeId> weights, batch;
  for (const Parameter& p : model.parameters) weights.push_back(g.input({DType::f32, p.shape}, p.name)), parameters += double(p.shape.numel());
  for (const Type& t : model.batch) batch.push_back(g.input(t, "batch")), work.transfer_bytes += double(t.bytes());
  const RandomOperands random = {g.input({DType::i64, {}}, "seed"), g.input({DType::i64, {}}, "step"), g.input({DType::i64, {}}, "base"), 1};
  const StepLoss loss = model.loss(b, weights, batch, random);
  Forward forward;
  forward.add(g, std::vector<NodeId>{loss.sum, loss.count}, 1);
  // The backward pass is twice as long. Weights, gradients and moments are read or written ten times by the passes and the update.
  work.flops = 3 * forward.flops, work.bytes = 40 * parameters + 4 * forward.kept;
  work.launches = 20 + 3 * forward.kernels + kLaunchesPerTimeStep * forward.time_steps;
  return work;
}

}  // namespace ridge
