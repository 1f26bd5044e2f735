// Fused groups built by every variant: the bits of the planner's choice where the variant promises them, and right values everywhere.
#include "support/rounds.h"
#include "support/tile_fuzz.h"
#include "tile_harness.h"

namespace ridge::cpu::tile_test {
namespace {

void check_variants(const TileGroup& group, const std::vector<Memory>& memory, double tolerance) {
  std::vector<Memory> want = memory, planned = memory;
  evaluate(group, want);
  run(group, planned);
  for (const NamedVariant& v : kernel_variants()) {
    if (v.kind != Tunable::fused) continue;
    SCOPED_TRACE(v.name);
    KernelVariant variant;
    v.set(variant);
    std::vector<Memory> got = memory;
    run({&group, 1}, got, Split::single_backwards, 1, variant);
    if (v.same_bits) {
      for (size_t m = 0; m < got.size(); ++m) ASSERT_EQ(got[m].bytes, planned[m].bytes) << "operand " << m << "\n" << to_string(group);
    }
    compare(group, got, want, tolerance);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(FusedVariants, KeepTheBitsOrTheValuesOfRandomGroups) {
  for (uint64_t seed = 0; seed < uint64_t(test::rounds(60)); ++seed) {
    Fuzz f(seed);
    f.make();
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    check_variants(f.b.g, f.memory, 3e-5);
    if (HasFatalFailure()) return;
  }
}

// Large enough to be prefetched and split: softmax over rows, and sums over long rows and columns.
TEST(FusedVariants, KeepTheBitsOrTheValuesOfLargeGroups) {
  Build softmax(Form::row, {600, 512}, 1);
  const int x = softmax.in(), e = softmax.op(Op::exp, softmax.op(Op::sub, x, softmax.reduce(Op::reduce_max, x)));
  softmax.out(softmax.op(Op::div, e, softmax.reduce(Op::reduce_sum, e)));
  std::vector<Memory> of_softmax(2, Memory(DType::f32, 600 * 512));
  of_softmax[0].fill(1);
  check_variants(softmax.g, of_softmax, 3e-5);
  for (const bool rows : {true, false}) {
    Build sums(rows ? Form::row : Form::column, rows ? Shape{2, 200000} : Shape{20000, 24}, 1);
    sums.store(sums.reduce(Op::reduce_sum, sums.in()), rows ? Shape{1, 0} : Shape{0, 1});
    std::vector<Memory> memory{{DType::f32, sums.g.domain.numel()}, {DType::f32, rows ? 2 : 24}};
    memory[0].fill(2);
    check_variants(sums.g, memory, 1e-3);  // of 20,000 or more
  }
}

}  // namespace
}  // namespace ridge::cpu::tile_test
