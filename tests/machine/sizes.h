// Size constants for describing machines.
#pragma once

#include <cstdint>

namespace ridge {

constexpr int64_t kKiB = int64_t(1) << 10, kMiB = int64_t(1) << 20, kGiB = int64_t(1) << 30;

}  // namespace ridge
