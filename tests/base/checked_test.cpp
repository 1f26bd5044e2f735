#include "base/checked.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace ridge {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(CheckedProduct, IsExactUpToTheLimit) {
  EXPECT_EQ(checked_product("x", "things", {}), 1);
  EXPECT_EQ(checked_product("x", "things", {{"a", 3}, {"b", 5}, {"", 7}}), 105);
  EXPECT_EQ(checked_product("x", "things", {{"a", kMax}, {"b", 1}}), kMax);
  EXPECT_EQ(checked_product("x", "things", {{"a", int64_t(1) << 31}, {"b", (int64_t(1) << 32) - 1}}), kMax - (int64_t(1) << 31) + 1);
  EXPECT_EQ(checked_product("x", "things", {{"a", kMax}, {"b", kMax}, {"c", 0}}), 0) << "nothing of anything";
}

TEST(CheckedProduct, NamesTheFactorsOnOverflow) {
  for (int64_t b : {int64_t(1'000'000'000), kMax}) {
    try {
      checked_product("gpt", "tokens", {{"steps", 1'000'000'000'000}, {"batch", b}, {"", 8}});
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      EXPECT_EQ(std::string(e.what()).find("[gpt] steps=1000000000000 x batch=" + std::to_string(b) + " x 8 tokens"), 0u) << e.what();
    }
  }
  EXPECT_THROW(checked_product("x", "things", {{"a", int64_t(1) << 32}, {"b", int64_t(1) << 31}}), Error) << "2^63 itself";
}

}  // namespace
}  // namespace ridge
