// Random groups of every form against the scalar evaluator.
#include "support/tile_fuzz.h"
#include "tile_harness.h"

namespace ridge::cuda::tile_test {
namespace {

class CudaTileFuzz : public test::CudaTest {};

// RIDGE_FUZZ: how many; the simulated GPU's compiler is slow.
TEST_F(CudaTileFuzz, RandomGroups) {
  const char* asked = std::getenv("RIDGE_FUZZ");
  const uint64_t count = asked ? uint64_t(std::atoll(asked)) : test::tests_real_gpu() ? 200 : 8;
  std::vector<Fuzz> all;
  for (uint64_t seed = 0; seed < count; ++seed) {
    all.emplace_back(seed).make();
    ask({&all.back().b.g, 1});
  }
  for (uint64_t seed = 0; seed < count; ++seed) {
    check(all[seed].b.g, all[seed].memory, 3e-5, int(seed % 3));
    if (HasFatalFailure()) {
      ADD_FAILURE() << "seed " << seed;
      return;
    }
  }
}

// In a launch with a group that needs 64-bit indices, all groups use 64-bit indices and come from a table.
TEST_F(CudaTileFuzz, WideElementNumbersGiveTheSameBits) {
  Build far(Form::map, {0});
  far.store(far.load(far.operand(), DType::f32, {1}, int64_t(1) << 40), {1});
  for (uint64_t seed : {1, 2, 5}) {
    Fuzz f(seed);
    f.make();
    std::vector<Memory> alone = f.memory, beside = f.memory;
    beside.insert(beside.end(), 2, Memory(DType::f32, 0));
    run(f.b.g, alone);
    const TileGroup groups[] = {f.b.g, far.g};
    run(groups, beside);
    for (size_t m = 0; m < alone.size(); ++m) EXPECT_EQ(alone[m].bytes, beside[m].bytes) << "seed " << seed << " operand " << m << "\n" << to_string(f.b.g);
  }
}

}  // namespace
}  // namespace ridge::cuda::tile_test
