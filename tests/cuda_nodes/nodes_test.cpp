// Every single-node kernel on the GPU, and that its bits are the same from call to call.
#include "backend/cuda/make.h"
#include "base/error.h"
#include "support/cuda_device.h"
#include "support/node_laws.h"

namespace ridge::cuda {
namespace {

namespace node_laws = test::node_laws;

struct NodeCase : test::NodeCase {
  // The simulated GPU is slow: one dtype of each kind, and large problems only in f32, unless all are requested.
  static bool runs(DType t, int64_t elements = 0) {
    static const bool all = test::tests_real_gpu() || test::is_set("RIDGE_FULL");
    return all || (t == DType::f32 && elements < 100000) || (elements < 10000 && (t == DType::bf16 || t == DType::i64 || t == DType::boolean));
  }

  std::vector<std::vector<std::byte>> run(std::byte before) {
    test::CudaDevice& device = test::CudaDevice::the();
    const std::unique_ptr<Kernel> kernel = make_node_kernel(graph, node, device.chip());
    const std::vector<Type> all = types();
    const size_t operands = graph[node].in.size();
    std::vector<DeviceMemory> memory;
    std::vector<Place> places;
    for (size_t i = 0; i < all.size(); ++i) {
      std::vector<std::byte> bytes(size_t(all[i].bytes()), before);
      if (i < operands) reference::to_bytes(operand(i), bytes.data());
      memory.push_back(device.memory(bytes.data(), all[i].bytes()));
      places.push_back(i >= operands && !is_wanted(i - operands) ? Place() : Place{int32_t(i), 0});
    }
    if (in_place) places[operands] = places[0];
    const std::vector<std::byte> work(size_t(kernel->workspace_bytes()), before);
    memory.push_back(device.memory(work.data(), int64_t(work.size())));
    const FaultRecord none;
    memory.push_back(device.memory(&none, sizeof none));
    std::vector<DevicePointer> bases;
    for (const DeviceMemory& m : memory) bases.push_back(m.get());
    device.ask(kernel->texts());
    kernel->load(device);
    const int32_t space = int32_t(all.size());
    kernel->bind(places, work.empty() ? Place() : Place{space, 0}, {space + 1, 0});
    device.enqueue(*kernel, bases);
    FaultRecord fault;
    std::memcpy(&fault, device.read(memory.back(), sizeof fault).data(), sizeof fault);
    fault_limit = fault.raised ? fault.limit : -1, fault_value = fault.value;
    std::vector<std::vector<std::byte>> results;
    for (size_t i = operands; i < all.size(); ++i)
      results.push_back(places[i] ? device.read(memory[size_t(places[i].base)], all[i].bytes()) : std::vector<std::byte>());
    return results;
  }

  // The bits do not depend on the previous contents of memory.
  std::vector<reference::Array> results() override {
    const auto first = run(std::byte(0xa5));
    EXPECT_EQ(run(std::byte(0x3c)), first) << to_string(graph, std::vector{node});
    std::vector<reference::Array> arrays;
    for (size_t i = 0; i < first.size(); ++i)
      arrays.push_back(first[i].empty() ? reference::Array{} : reference::from_bytes(graph[node].types[i], first[i].data()));
    return arrays;
  }
};

class GpuNodes : public test::CudaTest {};

TEST_F(GpuNodes, ScatterLastOfEqualIndicesWins) { node_laws::scatter_sets_the_last_of_equal_indices<NodeCase>(); }
TEST_F(GpuNodes, ScatterAddsEveryElement) { node_laws::scatter_adds_every_element<NodeCase>(); }
TEST_F(GpuNodes, ScatterWorksInPlace) { node_laws::scatter_works_in_place<NodeCase>(); }
TEST_F(GpuNodes, ScatterReportsIndicesOutOfRange) { node_laws::scatter_reports_indices_out_of_range<NodeCase>(); }
TEST_F(GpuNodes, TakeGradSumsTheRowsOfEveryIndex) { node_laws::take_grad_sums_the_rows_of_every_index<NodeCase>(); }
TEST_F(GpuNodes, TakeGradSplitsAFrequentIndex) { node_laws::take_grad_shares_out_one_frequent_index<NodeCase>(); }
TEST_F(GpuNodes, TakeGradReportsIndicesOutOfRange) { node_laws::take_grad_reports_indices_out_of_range<NodeCase>(); }
TEST_F(GpuNodes, TakeGradRejectsIndicesIntoEmptyTensors) { node_laws::take_grad_reports_any_index_into_nothing<NodeCase>(); }
TEST_F(GpuNodes, DynamicUpdateSliceWritesAtClampedStarts) { node_laws::dynamic_update_slice_writes_at_clamped_starts<NodeCase>(); }
TEST_F(GpuNodes, MatchTheReference) { node_laws::node_kernels_agree_with_the_reference_on_all_samples<NodeCase>(); }
TEST_F(GpuNodes, PadFillsBetweenAndAround) { node_laws::pad_fills_between_and_around<NodeCase>(); }
TEST_F(GpuNodes, PadFillsWithInfinity) { node_laws::pad_fills_with_infinity<NodeCase>(); }
TEST_F(GpuNodes, FoldSumsAllWindowsOfAnElement) { node_laws::fold_sums_all_taps_of_an_element<NodeCase>(); }
TEST_F(GpuNodes, CumsumRunsFromBothEnds) { node_laws::cumsum_runs_from_both_ends<NodeCase>(); }
TEST_F(GpuNodes, SortKeepsEqualKeysInOrder) { node_laws::sort_keeps_equal_keys_in_order<NodeCase>(); }
TEST_F(GpuNodes, SortPutsNanLastAndZerosTogether) { node_laws::sort_puts_nan_last_and_zeros_together<NodeCase>(); }
TEST_F(GpuNodes, SortOrdersExtremeIntegers) { node_laws::sort_orders_extreme_integers<NodeCase>(); }
TEST_F(GpuNodes, SortReturnsOnlyRequestedOutputs) { node_laws::sort_gives_only_what_is_wanted<NodeCase>(); }

TEST(GpuNodeKernels, RejectOtherNodes) {
  Graph g;
  NodeId x = g.input({DType::f32, {3}}, "x");
  EXPECT_THROW(make_node_kernel(g, Builder(g).neg(x), Chip()), Error);
}

}  // namespace
}  // namespace ridge::cuda
