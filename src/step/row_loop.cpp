#include "step/row_loop.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "graph/builder.h"
#include "graph/ops/table.h"
#include "graph/rewrite.h"
#include "graph/scan.h"

namespace ridge {
namespace {

class RowLoop {
 public:
  RowLoop(Graph& g, std::span<const NodeId> roots, std::span<const NodeId> batch)
      : g_(g), rows_(g.shape(batch[0])[0]), roots_(roots.begin(), roots.end()), order_(topological(g, roots)), first_(batch[0]) {
    for (auto* flags : {&varies_, &by_row_, &joined_, &put_out_}) flags->assign(g.size(), 0);
    for (NodeId id : batch) varies_[id] = by_row_[id] = 1;
  }

  std::vector<NodeId> run() {
    int products = 0;
    for (NodeId id : order_) {
      for (NodeId in : g_[id].in) varies_[id] |= varies_[in];
      if (!varies_[id] || g_[id].op == Op::input) continue;
      by_row_[id] = joined_[id] = keeps_rows(id);
      products += joined_[id] && g_[id].op == Op::matmul;
    }
    if (products < 2) return roots_;
    leave_views();
    return rewritten();
  }

 private:
  bool keeps_rows(NodeId id) const {
    const Node& n = g_[id];
    const int rank = g_.shape(id).rank();
    if (n.types.size() != 1 || rank == 0 || g_.shape(id)[0] != rows_) return false;
    bool same_rank = true;
    for (NodeId in : n.in) {
      if (!varies_[in]) continue;
      if (!by_row_[in] || g_.shape(in).rank() == 0 || g_.shape(in)[0] != rows_) return false;
      same_rank &= g_.shape(in).rank() == rank;
    }
    auto leaves_rows = [&] { return std::ranges::find(n.attrs.ints, 0) == n.attrs.ints.end(); };
    if (is_elementwise(n.op)) return same_rank;
    if (is_reduction(n.op)) return leaves_rows();
    switch (n.op) {
      case Op::reshape:
      case Op::stop_gradient: return true;
      case Op::expand:
      case Op::slice: return same_rank;
      case Op::permute:
      case Op::concat: return n.op == Op::permute ? n.attrs.ints[0] == 0 : n.attrs.ints[0] != 0;
      case Op::matmul: return rank == 2 && varies_[n.in[0]] && !varies_[n.in[1]] && g_.shape(n.in[1]).rank() == 2;
      default: return false;
    }
  }

  // Views that only values outside the loop read cost nothing there.
  void leave_views() {
    std::vector<char> read(g_.size(), 0);
    for (NodeId r : roots_) put_out_[r] = 1;
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      if (joined_[*it] && !read[*it] && is_strided_view(g_[*it].op)) joined_[*it] = 0;
      for (NodeId in : g_[*it].in) (joined_[*it] ? read : put_out_)[in] = 1;
    }
  }

  // What is the same for all samples is an operand of the loop; views of it, and what is computed from numbers alone, are inside.
  void enter(NodeId id) {
    NodeId source = id;
    while (is_strided_view(g_[source].op)) source = g_[source].in[0];
    if (known_.count(source)) return;
    const std::vector<NodeId> from = topological(g_, {&source, 1});
    if (std::ranges::none_of(from, [&](NodeId n) { return g_[n].op == Op::input; })) return;
    known_[source] = body_->graph.input(g_.type(source), "operand");
    body_->constant_in.push_back(known_[source]), operands_.push_back(source);
  }

  std::vector<NodeId> rewritten() {
    body_->carry_in = {body_->graph.input(g_.type(first_), "samples")};
    known_[first_] = body_->carry_in[0];
    std::vector<NodeId> outputs;
    for (NodeId id : order_) {
      if (!joined_[id]) continue;
      for (NodeId in : g_[id].in)
        if (!joined_[in]) enter(in);
      if (put_out_[id]) outputs.push_back(id);
    }
    body_->step_out = import_nodes(body_->graph, g_, outputs, known_);
    body_->carry_out = body_->carry_in;
    body_->segment = true;  // nothing is moved out of it again
    const NodeId samples[] = {first_};
    const ScanResult made = scan(g_, body_, samples, {}, operands_, 1);
    Builder b(g_);
    std::unordered_map<NodeId, NodeId> results;
    for (size_t i = 0; i < outputs.size(); ++i) results[outputs[i]] = b.reshape(made.outputs[i], g_.shape(outputs[i]));
    return rewrite(g_, roots_, [&](NodeId id, std::span<const NodeId>) -> std::vector<NodeId> {
      const auto it = results.find(id);
      return it == results.end() ? std::vector<NodeId>{} : std::vector<NodeId>{it->second};
    });
  }

  Graph& g_;
  int64_t rows_;
  std::vector<NodeId> roots_, order_;
  NodeId first_;
  std::vector<char> varies_, by_row_;   // depends on a sample; is computed from one sample
  std::vector<char> joined_, put_out_;  // is in the loop; is read outside of it
  std::shared_ptr<ScanBody> body_ = std::make_shared<ScanBody>();
  std::unordered_map<NodeId, NodeId> known_;
  std::vector<NodeId> operands_;
};

}  // namespace

std::vector<NodeId> join_rows(Graph& graph, std::span<const NodeId> roots, std::span<const NodeId> batch) { return RowLoop(graph, roots, batch).run(); }

}  // namespace ridge
