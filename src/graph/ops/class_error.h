// The error message for a number that Op::check_class found invalid, shared by all backends.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace ridge {

// Limits above any number of classes say what else was checked.
inline constexpr int64_t kCheckTimespans = int64_t(1) << 40;  // value: -1 NaN, -2 infinity, -3 -infinity, else -4 - size of the timespan in millionths
inline constexpr int64_t kCheckLengths = int64_t(1) << 41;    // plus the number of steps; value: the length, plus this if it is not negative

inline std::string class_error(int64_t value, int64_t position, int64_t limit) {
  if (limit >= kCheckLengths)
    return fmt::format("[circuit] length {} of sequence {} is out of range: the sequences have {} steps", value < 0 ? value : value - kCheckLengths, position,
                       limit - kCheckLengths);
  if (limit == kCheckTimespans) {
    constexpr const char* kNames[] = {"nan", "inf", "-inf"};
    const std::string number = value >= -3 ? kNames[-1 - value] : fmt::format("{:g}", -double(std::max<int64_t>(-4 - value, 1)) / 1e6);
    return fmt::format("[circuit] timespan {} at position {} is not a finite number of at least 0", number, position);
  }
  return fmt::format("[cross_entropy] target {} at position {} is not one of the {} classes; targets are 0 to {}, or the ignore index", value, position, limit,
                     limit - 1);
}

}  // namespace ridge
