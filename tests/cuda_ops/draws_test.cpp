// Random numbers inside loops on the GPU match the definition, bit for bit.
#include <gtest/gtest.h>

#include "autograd/gradients.h"
#include "base/rng.h"
#include "compile/scan_segments.h"
#include "scan/bodies.h"
#include "scan/draw_loops.h"
#include "support/gpu_runner.h"

namespace ridge::test {
namespace {

class GpuLoopDraws : public CudaTest {};

// With backward and in segments; the nested loop forward only, because the simulated GPU is slow.
TEST_F(GpuLoopDraws, MatchTheDefinition) {
  for (bool nested : {false, true}) {
    const bool reverse = nested;
    DrawLoop loop = make_draw_loop(LoopForm::scan, nested, reverse, 30), hand = make_draw_loop(LoopForm::by_hand, nested, reverse, 30);
    auto with_gradients = [&](DrawLoop& l, std::vector<NodeId> roots) {
      if (nested) return roots;
      Builder b(l.graph);
      const NodeId floats[] = {roots[0], roots[2]};
      const std::vector<NodeId> grads = gradients(l.graph, mixed_loss(b, floats), l.wrt);
      roots.insert(roots.end(), grads.begin(), grads.end());
      return roots;
    };
    const std::vector<reference::Array> want = reference::evaluate(hand.graph, with_gradients(hand, hand.results), hand.values);
    const std::vector<NodeId> roots = with_gradients(loop, nested ? loop.results : segment_scans(loop.graph, loop.results).roots);
    const std::vector<Bytes> ran = Gpu::the().run(loop.graph, loop.inputs, roots, loop.values, "");
    EXPECT_EQ(reference::from_bytes(want[1].type, ran[1].data()).i, want[1].i);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(i == 1 || close(reference::from_bytes(want[i].type, ran[i].data()), want[i], {2e-5, 2e-5})) << "result " << i;
  }
}

// Samples 2 to 5 of nine, along the middle axis, at step 3 of a loop.
TEST_F(GpuLoopDraws, CountInTheWholeBatch) {
  Graph g;
  const NodeId seed = g.input({DType::i64, {}}, "seed"), step = g.input({DType::i64, {}}, "step"), base = g.input({DType::i64, {}}, "base");
  const NodeId words = g.add(Op::random_bits, {seed, step, base}, {{8, 3, 4, 5}, {1, 9}, nullptr});
  Values values;
  for (auto [id, value] : {std::pair{seed, 77.0}, {step, 4.0}, {base, 3 * 0x1p34 + 2 * 5}}) values[id] = reference::from_values(g.type(id), std::vector{value});
  const std::vector<Bytes> ran = Gpu::the().run(g, {seed, step, base}, {words}, values, "");
  const std::vector<int64_t> got = reference::from_bytes(g.type(words), ran[0].data()).i;
  size_t at = 0;
  for (uint64_t a = 0; a < 3; ++a)
    for (uint64_t b = 2; b < 6; ++b)
      for (uint64_t c = 0; c < 5; ++c) EXPECT_EQ(got[at++], int32_t(random_word({77, 4, 8}, (uint64_t(3) << 34) + (a * 9 + b) * 5 + c)));
}

}  // namespace
}  // namespace ridge::test
