// Random loop bodies: whatever is hoisted and however they are segmented, values and gradients do not change.
#include <gtest/gtest.h>

#include "compile/scan_hoist.h"
#include "compile/scan_segments.h"
#include "scan/random_body.h"

namespace ridge::test {
namespace {

class RandomLoops : public ::testing::TestWithParam<int> {};

TEST_P(RandomLoops, KeepTheirValues) {
  for (int i = 0; i < 25; ++i) {
    uint64_t seed = uint64_t(GetParam() * 25 + i) + 1;
    int64_t steps = std::array<int64_t, 4>{1, 3, 5, 7}[seed % 4];
    RandomBody r(seed, steps);
    std::vector<NodeId> results = r.make(), roots = results;
    Builder b(r.graph);
    std::vector<NodeId> grads = gradients(r.graph, mixed_loss(b, results), r.wrt);
    roots.insert(roots.end(), grads.begin(), grads.end());
    std::vector<reference::Array> want = reference::evaluate(r.graph, roots, r.values);
    auto expect = [&](const std::vector<reference::Array>& got, double tolerance, const char* what) {
      for (size_t k = 0; k < roots.size(); ++k) {
        double largest = 1;
        for (double v : want[k].f) largest = std::max(largest, std::fabs(v));
        EXPECT_TRUE(close(got[k], want[k], {tolerance, tolerance * largest})) << what << ", seed " << seed << ", result " << k;
      }
    };
    HoistedScans moved = hoist_scans(r.graph, roots);
    expect(reference::evaluate(r.graph, moved.roots, r.values), 1e-8, "moved out");
    std::vector<NodeId> cut = segment_scans(r.graph, results).roots, cut_grads = gradients(r.graph, mixed_loss(b, cut), r.wrt);
    cut.insert(cut.end(), cut_grads.begin(), cut_grads.end());
    expect(reference::evaluate(r.graph, hoist_scans(r.graph, cut).roots, r.values), 1e-8, "in stretches");
    if (i % 5) continue;
    std::vector<Bytes> ran = run_compiled(r.graph, r.inputs, roots, r.values, "", 2);
    std::vector<reference::Array> got;
    for (size_t k = 0; k < roots.size(); ++k) got.push_back(reference::from_bytes(want[k].type, ran[k].data()));
    // Rounding may flip a comparison inside; the values here keep their distance.
    expect(got, 0x1p-23 * 64 * double(1 + steps), "compiled");
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomLoops, ::testing::Range(0, 8));

}  // namespace
}  // namespace ridge::test
