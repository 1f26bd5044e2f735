#include "base/bytes.h"

#include <gtest/gtest.h>

namespace ridge {
namespace {

TEST(Bytes, ParseBinaryAndDecimalUnits) {
  for (auto [text, bytes] : {std::pair("0", int64_t(0)),
                             {"100000", 100000},
                             {"512MiB", 512LL << 20},
                             {"2GB", 2'000'000'000},
                             {"1.5GiB", 3LL << 29},
                             {"2g", 2LL << 30},
                             {"7 kb", 7000},
                             {"1TiB", 1LL << 40},
                             {"1e3", 1000},
                             {"9223372036854775807", INT64_MAX},
                             {"5B", 5}})
    EXPECT_EQ(bytes_of(text), bytes) << text;
  for (const char* bad : {"", "x", "-1", "GB", "1XB", "1GB x", "9223372036854775808", "1e40", "1e10GB", "inf", "nan", "0x10", "+", " 1"})
    EXPECT_EQ(bytes_of(bad), std::nullopt) << bad;
}

TEST(Bytes, AreWrittenExactly) {
  for (int64_t bytes : {int64_t(0), int64_t(1), int64_t(999), int64_t(1000), int64_t(1024), int64_t(3) << 29, int64_t(2'000'000'000), INT64_MAX, INT64_MAX - 1,
                        int64_t(1) << 62})
    EXPECT_EQ(bytes_of(exact_bytes(bytes)), bytes) << exact_bytes(bytes);
  EXPECT_EQ(exact_bytes(512LL << 20), "512MiB");
  EXPECT_EQ(exact_bytes(2'000'000'000), "2GB");
}

}  // namespace
}  // namespace ridge
