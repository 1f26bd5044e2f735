// Every single-node kernel on the CPU.
#include "base/error.h"
#include "cpu_nodes/node_case.h"

namespace ridge::cpu {
namespace {

namespace node_laws = test::node_laws;

TEST(Scatter, LastOfEqualIndicesWins) { node_laws::scatter_sets_the_last_of_equal_indices<NodeCase>(); }
TEST(Scatter, AddsEveryElement) { node_laws::scatter_adds_every_element<NodeCase>(); }
TEST(Scatter, WorksInPlace) { node_laws::scatter_works_in_place<NodeCase>(); }
TEST(Scatter, ReportsIndicesOutOfRange) { node_laws::scatter_reports_indices_out_of_range<NodeCase>(); }
TEST(TakeGrad, SumsTheRowsOfEveryIndex) { node_laws::take_grad_sums_the_rows_of_every_index<NodeCase>(); }
TEST(TakeGrad, SplitsAFrequentIndex) { node_laws::take_grad_shares_out_one_frequent_index<NodeCase>(); }
TEST(TakeGrad, ReportsIndicesOutOfRange) { node_laws::take_grad_reports_indices_out_of_range<NodeCase>(); }
TEST(TakeGrad, RejectsIndicesIntoEmptyTensors) { node_laws::take_grad_reports_any_index_into_nothing<NodeCase>(); }
TEST(DynamicUpdateSlice, WritesAtClampedStarts) { node_laws::dynamic_update_slice_writes_at_clamped_starts<NodeCase>(); }
TEST(NodeKernels, MatchTheReference) { node_laws::node_kernels_agree_with_the_reference_on_all_samples<NodeCase>(); }
TEST(Pad, FillsBetweenAndAround) { node_laws::pad_fills_between_and_around<NodeCase>(); }
TEST(Pad, FillsWithInfinity) { node_laws::pad_fills_with_infinity<NodeCase>(); }
TEST(Fold, SumsAllWindowsOfAnElement) { node_laws::fold_sums_all_taps_of_an_element<NodeCase>(); }
TEST(Cumsum, RunsFromBothEnds) { node_laws::cumsum_runs_from_both_ends<NodeCase>(); }
TEST(Sort, KeepsEqualKeysInOrder) { node_laws::sort_keeps_equal_keys_in_order<NodeCase>(); }
TEST(Sort, PutsNaNLastAndZerosTogether) { node_laws::sort_puts_nan_last_and_zeros_together<NodeCase>(); }
TEST(Sort, OrdersExtremeIntegers) { node_laws::sort_orders_extreme_integers<NodeCase>(); }
TEST(Sort, ReturnsOnlyRequestedOutputs) { node_laws::sort_gives_only_what_is_wanted<NodeCase>(); }

TEST(NodeKernels, RejectOtherNodes) {
  Graph g;
  NodeId x = g.input({DType::f32, {3}}, "x");
  EXPECT_THROW(make_node_kernel(g, Builder(g).neg(x)), Error);
}

// Large problems keep sixteen threads busy in every expensive step.
TEST(NodeKernels, SplitLargeProblems) {
  Graph g;
  Builder b(g);
  auto input = [&](DType t, Shape s) { return g.input({t, s}, "x"); };
  auto i64 = [&](Shape s) { return input(DType::i64, s); };
  const DType f32 = DType::f32;
  const NodeId nodes[] = {
      g.add(Op::take_grad, {input(f32, {8192, 768}), i64({8192})}, {{0, 50257}, {}, nullptr}),
      g.add(Op::take_grad, {input(f32, {16384, 384}), i64({16384})}, {{0, 65}, {}, nullptr}),
      b.scatter_add(input(f32, {50000}), i64({1000000}), input(f32, {1000000}), 0),
      b.scatter(input(f32, {4096, 4096}), i64({4096, 64}), input(f32, {4096, 64}), 1),
      b.cumsum(input(f32, {4000000}), 0),
      b.cumsum(input(f32, {64, 50257}), 1),
      b.cumsum(input(f32, {50257, 64}), 0),
      b.sort(input(f32, {2000000}), 0).first,
      b.sort(input(f32, {64, 50257}), 1).first,
      g.add(Op::fold, {input(f32, {32, 64, 31, 64, 3})}, {{2, 3, 2, 1, 63}, {}, nullptr}),
      g.add(Op::pad, {input(f32, {32, 64, 31, 64})}, {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}, {0}, nullptr}),
      g.add(Op::pad, {input(f32, {1000000})}, {{0, 0, 1}, {0}, nullptr}),
      g.add(Op::dynamic_update_slice, {input(f32, {4096, 4096}), input(f32, {4096, 2000}), i64({}), i64({})}, {}),
  };
  for (NodeId id : nodes) {
    const NodeId node = g[id].op == Op::get ? g[id].in[0] : id;
    auto kernel = make_node_kernel(g, node);
    std::vector<Ref> refs;
    for (size_t i = 0; i < g[node].in.size() + g[node].types.size(); ++i) refs.push_back({int32_t(i), 0});
    std::vector<Task> tasks;
    kernel->bind(refs, {int32_t(refs.size()), 0}, tasks);
    double total = 0;
    for (const Task& t : tasks) total += double(t.units) * t.unit_ns;
    for (const Task& t : tasks) {
      if (double(t.units) * t.unit_ns > 0.06 * total) {
        EXPECT_GE(t.units, 16) << to_string(g, std::vector{node});
      }
    }
  }
}

}  // namespace
}  // namespace ridge::cpu
