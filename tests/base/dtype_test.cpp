#include "ridge/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace ridge {
namespace {

constexpr std::array<DType, kDTypes> kAll = {DType::boolean, DType::u8, DType::i32, DType::i64, DType::f16, DType::bf16, DType::f32, DType::f64};

TEST(DType, PromotionIsASemilattice) {
  for (DType a : kAll) {
    EXPECT_EQ(promote(a, a), a) << name(a);
    EXPECT_EQ(promote(DType::boolean, a), a) << name(a);
    for (DType b : kAll) {
      EXPECT_EQ(promote(a, b), promote(b, a)) << name(a) << " " << name(b);
      for (DType c : kAll) EXPECT_EQ(promote(promote(a, b), c), promote(a, promote(b, c))) << name(a) << " " << name(b) << " " << name(c);
    }
  }
}

TEST(DType, PromotionKeepsTheHigherKind) {
  for (DType a : kAll)
    for (DType b : kAll) {
      DType p = promote(a, b);
      EXPECT_EQ(is_float(p), is_float(a) || is_float(b)) << name(a) << " " << name(b);
      if (kind_of(a) == kind_of(b)) {
        EXPECT_GE(size_of(p), std::max(size_of(a), size_of(b)));
      }
    }
}

TEST(DType, PromotionFollowsPyTorchInSurprisingCases) {
  EXPECT_EQ(promote(DType::f16, DType::bf16), DType::f32);  // neither can represent the other
  EXPECT_EQ(promote(DType::i64, DType::f16), DType::f16);   // an integer never widens a float
  EXPECT_EQ(promote(DType::u8, DType::i32), DType::i32);
}

TEST(DType, NamesRoundTripAndUnknownOnesAreRejected) {
  for (DType a : kAll) EXPECT_EQ(dtype_from(name(a)), a);
  EXPECT_EQ(dtype_from("bfloat16"), DType::bf16);
  EXPECT_EQ(dtype_from("float"), DType::f32);
  for (const char* wrong : {"", "F32", "f33", "f3", "bool "}) EXPECT_FALSE(dtype_from(wrong)) << wrong;
}

TEST(DType, SizesMatchTheHostTypes) {
  EXPECT_EQ(size_of(DType::boolean), 1);
  EXPECT_EQ(size_of(DType::f16), 2);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::f32), int64_t(sizeof(float)));
  EXPECT_EQ(size_of(DType::i64), int64_t(sizeof(int64_t)));
}

}  // namespace
}  // namespace ridge
