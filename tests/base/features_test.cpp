#include "machine/features.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace ridge {
namespace {

TEST(Features, UseTheRequestedTier) {
  const char* requested = std::getenv("RIDGE_ISA");
  if (requested && *requested) {
    EXPECT_EQ(name(isa_tier()), requested);
  } else {
    EXPECT_NE(isa_tier(), IsaTier::scalar);  // x86-64-v2 and arm64 have vectors
  }
  EXPECT_EQ(isa_tier(), isa_tier());
}

TEST(Features, TiersOfAvx512) {
  for (IsaTier tier : {IsaTier::scalar, IsaTier::sse4, IsaTier::avx2, IsaTier::neon, IsaTier::sve}) EXPECT_FALSE(has_avx512(tier)) << name(tier);
  EXPECT_TRUE(has_avx512(IsaTier::avx512) && has_avx512(IsaTier::avx512bf16));
  EXPECT_EQ(name(IsaTier::avx512bf16), "avx512bf16");
  EXPECT_TRUE(has_avx512(IsaTier::amx) && has_bf16(IsaTier::amx) && has_bf16(IsaTier::avx512bf16) && !has_bf16(IsaTier::avx512));
  EXPECT_EQ(name(IsaTier::amx), "amx");
}

}  // namespace
}  // namespace ridge
