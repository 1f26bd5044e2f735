#include "compile/autocast.h"

#include <algorithm>

#include "graph/builder.h"
#include "graph/ops/table.h"
#include "graph/rewrite.h"
#include "graph/scan.h"

namespace ridge {
namespace {

// x in `compute`. The cast is applied to the source of a view: there it is done once for all views, and disappears if the source was
// already narrow.
NodeId narrow(Graph& g, NodeId x, DType compute) {
  const Node& n = g[x];
  if (n.type().dtype != DType::f32) return x;
  if (n.op == Op::cast && g.dtype(n.in[0]) == compute) return n.in[0];
  if (!is_view(n.op)) return Builder(g).cast(x, compute);
  std::vector<NodeId> in;
  for (NodeId i : n.in) in.push_back(narrow(g, i, compute));
  return g.add(n.op, in, n.attrs, n.copy);
}

// Whether it sums whole products: the gradient of a weight that all samples share. Sums over the rows of one product do not count, because
// the product then has other readers.
bool sums_products(const Graph& g, const Node& sum) {
  const int matrix = g.shape(sum.in[0]).rank() - 2;
  return g[sum.in[0]].op == Op::matmul && std::all_of(sum.attrs.ints.begin(), sum.attrs.ints.end(), [&](int64_t axis) { return axis < matrix; });
}

// The f32 value of x without rounding to 16 bits, if x consists of products or sums of products only; otherwise kNone.
NodeId unrounded(Graph& g, NodeId x) {
  const Node& n = g[x];
  if (n.op == Op::matmul) {
    Attrs attrs = n.attrs;
    attrs.ints[0] = int64_t(DType::f32);
    return g.add(Op::matmul, n.in, std::move(attrs), n.copy);
  }
  if (n.op == Op::conv) {
    Attrs attrs = n.attrs;
    attrs.ints.resize(size_t(1 + 5 * (n.type().shape.rank() - 2)));
    attrs.ints.push_back(int64_t(DType::f32));
    return g.add(Op::conv, n.in, std::move(attrs), n.copy);
  }
  if (n.op == Op::reduce_sum && sums_products(g, n)) return g.add(n.op, {unrounded(g, n.in[0])}, n.attrs, n.copy);
  if (n.op != Op::add && !is_view(n.op)) return kNone;
  std::vector<NodeId> in;
  for (NodeId i : n.in) {
    in.push_back(unrounded(g, i));
    if (!in.back()) return kNone;
  }
  return g.add(n.op, in, n.attrs, n.copy);
}

// Whether x is a single row that is added to all rows: a bias.
bool is_row(const Graph& g, NodeId x, int64_t columns) {
  while (g[x].op == Op::expand || g[x].op == Op::reshape) x = g[x].in[0];
  return g.shape(x).numel() <= columns;
}

}  // namespace

std::vector<NodeId> autocast(Graph& g, std::span<const NodeId> roots, DType compute) {
  Builder b(g);
  std::vector<int> uses(g.size(), 0);
  for (NodeId id : topological(g, roots))
    for (NodeId in : g[id].in) ++uses[in];
  return rewrite(g, roots, [&](NodeId id, std::span<const NodeId> in) -> std::vector<NodeId> {
    const Node n = g[id];
    // A product plus its bias is rounded once, after the sum. So its gradient is also one 16-bit tensor, used for both the product and the
    // bias.
    if (n.op == Op::add && n.type().dtype == DType::f32)
      for (size_t k : {0, 1}) {
        NodeId product = n.in[k], rounded = in[k];
        bool alone = uses[product] == 1;
        while (g[product].op == Op::reshape && g[rounded].op == Op::reshape)
          product = g[product].in[0], rounded = g[rounded].in[0], alone &= uses[product] == 1;
        if (!alone || g[product].op != Op::matmul || g[rounded].op != Op::cast || g.dtype(g[rounded].in[0]) != compute) continue;
        if (!(g.shape(n.in[k]) == n.type().shape) || !is_row(g, n.in[1 - k], n.type().shape.back())) continue;
        const NodeId wide = b.reshape(unrounded(g, g[rounded].in[0]), n.type().shape);
        return {b.cast(b.cast(b.add(wide, in[1 - k]), compute), DType::f32)};
      }
    if (n.op == Op::scan) {  // carries, sequences and outputs stay as they are
      auto body = std::make_shared<ScanBody>(scan_view(n).body);
      const std::vector<NodeId> results = autocast(body->graph, results_of(*body), compute);
      body->carry_out.assign(results.begin(), results.begin() + long(body->carry_in.size()));
      body->step_out.assign(results.begin() + long(body->carry_in.size()), results.end());
      return all_results(g, g.add(n.op, in, {n.attrs.ints, n.attrs.reals, body}, n.copy));
    }
    const size_t products = n.op == Op::matmul || n.op == Op::conv ? 2 : n.op == Op::attention ? 3 : 0;  // number of operands that are multiplied
    if (products == 0 || n.type().dtype != DType::f32) return {};
    std::vector<NodeId> operands(in.begin(), in.end());
    for (size_t i = 0; i < products; ++i) operands[i] = narrow(g, operands[i], compute);
    Attrs attrs = n.attrs;
    if (n.op == Op::matmul) attrs.ints[0] = int64_t(compute);
    const NodeId product = g.add(n.op, operands, std::move(attrs), n.copy);
    if (n.types.size() == 1) return {b.cast(product, DType::f32)};
    std::vector<NodeId> out;
    for (size_t i = 0; i < n.types.size(); ++i) out.push_back(b.cast(b.get(product, int(i)), n.types[i].dtype));
    return out;
  });
}

NodeId keep_wide(Graph& g, NodeId gradient) {
  const Node n = g[gradient];
  if (n.op == Op::cast && n.type().dtype == DType::f32 && size_of(g.dtype(n.in[0])) == 2) {
    const NodeId wide = unrounded(g, n.in[0]);
    return wide ? wide : gradient;
  }
  if (n.op != Op::add && !is_view(n.op)) return gradient;
  std::vector<NodeId> in;
  for (NodeId i : n.in) in.push_back(keep_wide(g, i));
  return in == n.in ? gradient : g.add(n.op, in, n.attrs, n.copy);
}

}  // namespace ridge
