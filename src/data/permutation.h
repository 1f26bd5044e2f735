// A permutation of 0 … n - 1 as a function: every position costs the same, and nothing is stored.
#pragma once
#include <bit>

#include "base/rng.h"

namespace ridge {

// The image of `index` < n. A Feistel network permutes the next power of four; results of n and above go through it again, which terminates because the cycle
// eventually returns to `index`. This takes fewer than four passes on average, since n is more than a quarter of that power.
inline uint64_t permuted(uint64_t index, uint64_t n, RandomKey key) {
  const int half = n > 1 ? (std::bit_width(n - 1) + 1) / 2 : 0;
  const uint64_t mask = (uint64_t(1) << half) - 1;
  constexpr uint64_t kRounds = 6;
  do {
    uint64_t left = index >> half, right = index & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (philox(key, round << 32 | right)[0] & mask);
      left = right;
      right = mixed;
    }
    index = left << half | right;
  } while (index >= n);
  return index;
}

}  // namespace ridge
