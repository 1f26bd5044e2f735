// A permutation of 0 … n - 1 as a function: any place of it costs the same, and nothing is kept.
#pragma once
#include <bit>

#include "base/rng.h"

namespace ridge {

// Where `index` < n goes. A Feistel network permutes the next power of four; results of n and more go through it again, which ends because
// the way leads back to `index` itself at last. It is gone through fewer than four times on average, as n is more than a quarter of it.
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
