// Random numbers as a pure function: Philox 4x32-10 of (seed, step, stream) and an element's global index.
#pragma once
#include <array>
#include <cstdint>

namespace ridge {

struct RandomKey {
  uint64_t seed = 0;
  uint32_t step = 0;
  uint32_t stream = 0;
};

// Four 32-bit words for block `block` of a stream. Element i uses word i % 4 of block i / 4.
inline std::array<uint32_t, 4> philox(RandomKey key, uint64_t block) {
  uint32_t c[4] = {uint32_t(block), uint32_t(block >> 32), key.step, key.stream};
  uint32_t k0 = uint32_t(key.seed), k1 = uint32_t(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = uint64_t(0xD2511F53) * c[0], p1 = uint64_t(0xCD9E8D57) * c[2];
    uint32_t n0 = uint32_t(p1 >> 32) ^ c[1] ^ k0, n2 = uint32_t(p0 >> 32) ^ c[3] ^ k1;
    c[1] = uint32_t(p1), c[3] = uint32_t(p0), c[0] = n0, c[2] = n2;
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
  return {c[0], c[1], c[2], c[3]};
}

inline uint32_t random_word(RandomKey key, uint64_t index) { return philox(key, index / 4)[index % 4]; }

// Uniform in [0, 1) with 24 bits: every value is exactly representable in f32.
inline float uniform_from(uint32_t word) { return float(word >> 8) * 0x1p-24f; }

}  // namespace ridge
