#include "machine/features.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace ridge {
namespace {

TEST(Features, TheTierIsTheOneAskedFor) {
  const char* wish = std::getenv("RIDGE_ISA");
  if (wish && *wish) {
    EXPECT_EQ(name(isa_tier()), wish);
  } else {
    EXPECT_NE(isa_tier(), IsaTier::scalar);  // x86-64-v2 and arm64 have vectors
  }
  EXPECT_EQ(isa_tier(), isa_tier());
}

TEST(Features, NativeBf16BelongsToAvx512Only) {
  if (isa_tier() != IsaTier::avx512) {
    EXPECT_FALSE(cpu_has_avx512_bf16());
  }
}

}  // namespace
}  // namespace ridge
