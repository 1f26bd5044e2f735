// Runs on arm64 only: the tier is the requested one, and the scalar half conversions agree with the hardware's.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstdlib>

#include "base/half.h"
#include "machine/features.h"

namespace ridge {
namespace {

TEST(ArmFeatures, UsesTheRequestedTier) {
  const char* requested = std::getenv("RIDGE_ISA");
  EXPECT_EQ(name(isa_tier()), requested ? requested : "neon");
}

TEST(ArmHalf, WidensEveryF16LikeTheHardware) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    float ours = f16_to_f32(uint16_t(bits)), theirs = float(std::bit_cast<__fp16>(uint16_t(bits)));
    ASSERT_EQ(std::bit_cast<uint32_t>(ours), std::bit_cast<uint32_t>(theirs)) << bits;
  }
}

TEST(ArmHalf, RoundsLikeTheHardware) {
  for (uint64_t bits = 0; bits < 0x1'0000'0000; bits += 4093) {  // prime: all exponents, odd mantissas
    float value = std::bit_cast<float>(uint32_t(bits));
    if (value != value) continue;
    ASSERT_EQ(f32_to_f16(value), std::bit_cast<uint16_t>(__fp16(value))) << bits;
  }
}

}  // namespace
}  // namespace ridge
