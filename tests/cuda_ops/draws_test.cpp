// Random numbers inside loops on the GPU: those of the definition, bit for bit.
#include <gtest/gtest.h>

#include "autograd/gradients.h"
#include "compile/scan_segments.h"
#include "scan/bodies.h"
#include "scan/draw_loops.h"
#include "support/gpu_runner.h"

namespace ridge::test {
namespace {

class GpuLoopDraws : public CudaTest {};

// Backward and in stretches; the nested loop forward only, as the simulated GPU is slow.
TEST_F(GpuLoopDraws, AreThoseOfTheDefinition) {
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

}  // namespace
}  // namespace ridge::test
