// Random groups of every form against the scalar evaluator.
#include "support/tile_fuzz.h"
#include "tile_harness.h"

namespace ridge::cuda::tile_test {
namespace {

class CudaTileFuzz : public test::CudaTest {};

// RIDGE_FUZZ: how many; the simulated GPU's compiler takes its time for each.
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

}  // namespace
}  // namespace ridge::cuda::tile_test
