// What the random numbers of instances are for: the streams of uniform_at() that tensor code and host environments share.
#pragma once
#include <cstdint>

#include "base/rng.h"

namespace ridge::rl::streams {

inline constexpr uint32_t kResetStream = 1, kStepStream = 2, kStickyStream = 3, kNoopStream = 4, kSeedStream = 5;

// One number of uniform_at(), and a seed for generators of other kinds.
inline std::array<uint32_t, 4> words_at(uint64_t seed, int64_t counter, int64_t lane, uint32_t stream) {
  return philox({seed, uint32_t(lane), 0x60000000u + stream + uint32_t(uint64_t(lane) >> 32)}, uint64_t(counter));
}
inline float uniform_at(uint64_t seed, int64_t counter, int64_t lane, uint32_t stream) { return uniform_from(words_at(seed, counter, lane, stream)[0]); }
inline uint64_t seed_at(uint64_t seed, int64_t counter, int64_t lane) {
  const std::array<uint32_t, 4> w = words_at(seed, counter, lane, kSeedStream);
  return uint64_t(w[0]) << 32 | w[1];
}

}  // namespace ridge::rl::streams
