// Random groups of every form against the scalar evaluator.
#include "support/tile_fuzz.h"
#include "support/rounds.h"
#include "tile_harness.h"

namespace ridge::cpu::tile_test {
namespace {

TEST(TileFuzz, RandomGroups) {
  for (uint64_t seed = 0; seed < uint64_t(test::rounds(200)); ++seed) {
    Fuzz f(seed);
    f.make();
    check(f.b.g, f.memory, 3e-5);
    if (HasFatalFailure()) {
      ADD_FAILURE() << "seed " << seed;
      return;
    }
  }
}

}  // namespace
}  // namespace ridge::cpu::tile_test
