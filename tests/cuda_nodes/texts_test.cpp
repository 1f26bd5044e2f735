// The texts of single nodes compile for every chip, with a fixed number of launches.
#include <set>

#include "backend/cuda/conv_text.h"
#include "backend/cuda/make.h"
#include "graph/builder.h"
#include "support/cuda_device.h"
#include "support/node_case.h"
#include "support/nvrtc.h"

namespace ridge::cuda {
namespace {

// A node for every implementation of each operation.
std::vector<NodeId> large_nodes(Graph& g, DType t) {
  Builder b(g);
  auto input = [&](DType dtype, Shape s) { return g.input({dtype, s}, "x"); };
  auto x = [&](Shape s) { return input(t, s); };
  auto i64 = [&](Shape s) { return input(DType::i64, s); };
  return {g.add(Op::take_grad, {x({65536, 768}), i64({65536})}, {{0, 50304}, {}, nullptr}),
          g.add(Op::take_grad, {x({16384, 384}), i64({16384})}, {{0, 65}, {}, nullptr}), b.scatter(x({50000}), i64({100000}), x({100000}), 0),
          b.scatter(x({4096, 50}), i64({4096, 1}), x({4096, 1}), 1), b.scatter_add(x({50000}), i64({100000}), x({100000}), 0),
          g.add(Op::cumsum, {x({4000000})}, {{0, 0}, {}, nullptr}), g.add(Op::cumsum, {x({50257, 64})}, {{0, 1}, {}, nullptr}), b.sort(x({64, 50257}), 1).first,
          b.sort(x({64, 2000}), 1, true).first, g.add(Op::fold, {x({32, 64, 31, 64, 3})}, {{2, 3, 2, 1, 63}, {}, nullptr}),
          g.add(Op::pad, {x({32, 64, 31, 64})}, {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}, {0}, nullptr}),
          g.add(Op::dynamic_update_slice, {x({4096, 4096}), x({4096, 2048}), i64({}), i64({})}, {}),
          // Beyond the range of 32-bit indices.
          g.add(Op::fold, {x({70000, 31, 1000, 3})}, {{1, 3, 2, 1, 63}, {}, nullptr}), g.add(Op::pad, {x({70000, 40000})}, {{0, 0, 0, 0, 0, 1}, {0}, nullptr}),
          b.scatter_add(x({70000, 70000}), i64({2000, 100}), x({2000, 100}), 0)};
}

std::unique_ptr<Kernel> kernel_of(const Graph& g, NodeId id, const Chip& chip) { return make_node_kernel(g, g[id].op == Op::get ? g[id].in[0] : id, chip); }

class NodeTexts : public test::NvrtcTest {};

TEST_F(NodeTexts, CompileForEveryChip) {
  const bool all = test::is_set("RIDGE_FULL");
  std::vector<Job> jobs;
  size_t number = 0;
  for (size_t c = 0; c < test::all_chips().size(); ++c) {
    const Chip& chip = test::all_chips()[c];
    std::set<std::string> seen;
    for (DType t : test::kAllDTypes) {
      if (!all && t != DType::bf16) continue;
      Graph g;
      for (NodeId id : large_nodes(g, t))
        for (const KernelText& text : kernel_of(g, id, chip)->texts())
          // A sample: each text for one of the chips.
          if (seen.insert(text.entry + text.body).second && (all || number++ % 5 == c)) jobs.push_back({text, chip.target()});
    }
    // Convolutions that read bytes differ in this kernel only.
    for (DType to : {DType::f32, DType::bf16})
      if (all || c == size_t(to == DType::bf16)) jobs.push_back({conv_pack_text(DType::u8, to, 1, 4), chip.target()});
  }
  EXPECT_GE(jobs.size(), 15u);
  compile(jobs, all ? ".full" : "");
}

TEST(NodeLaunches, AreFew) {
  Graph g;
  const std::vector<NodeId> nodes = large_nodes(g, DType::f32);
  const int launches[] = {6, 4, 4, 2, 7, 2, 2, 8, 1, 1, 1, 2, 1, 1, 13};
  for (size_t i = 0; i < nodes.size(); ++i) {
    auto kernel = kernel_of(g, nodes[i], Chip());
    const NodeId id = g[nodes[i]].op == Op::get ? g[nodes[i]].in[0] : nodes[i];
    std::vector<Place> places;
    for (size_t k = 0; k < g[id].in.size() + g[id].types.size(); ++k) places.push_back({int32_t(k), 0});
    const int32_t next = int32_t(places.size());
    kernel->bind(places, {next, 0}, {next + 1, 0});
    EXPECT_EQ(kernel->launches(), launches[i]) << to_string(g, std::vector{id});
  }
}

}  // namespace
}  // namespace ridge::cuda
