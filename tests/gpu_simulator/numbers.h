// 16-bit and 32-bit numbers in memory, by CUDA's type codes.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace simulator {

constexpr int kF32 = 0, kF16 = 2, kBf16 = 14;

inline size_t size_of(int type) { return type == kF32 ? 4 : 2; }
inline bool known_type(int type) { return type == kF32 || type == kF16 || type == kBf16; }

inline float from_half(uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  float value = exponent == 31 ? (fraction ? NAN : INFINITY) : exponent ? std::ldexp(float(1024 + fraction), exponent - 25) : std::ldexp(float(fraction), -24);
  return h >> 15 ? -value : value;
}
inline uint16_t to_half(float x) {
  const auto sign = uint16_t(std::signbit(x) ? 0x8000 : 0);
  if (std::isnan(x)) return uint16_t(sign | 0x7e00);
  const float size = std::fabs(x);
  if (size == 0) return sign;
  if (size >= 65520) return uint16_t(sign | 0x7c00);
  int exponent = 0;
  std::frexp(size, &exponent);
  const int unit = std::max(exponent - 11, -24);  // exponent of the last place
  const auto steps = uint32_t(std::nearbyint(std::ldexp(size, -unit)));
  const uint32_t bits = unit == -24 ? steps : (uint32_t(unit + 24) << 10) + steps;  // a carry propagates into the exponent
  return uint16_t(sign | bits);
}
inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float load(const char* from, int type, size_t i) {
  if (type == kF32) {
    float value;
    return std::memcpy(&value, from + 4 * i, 4), value;
  }
  uint16_t half;
  std::memcpy(&half, from + 2 * i, 2);
  return type == kBf16 ? from_bits(uint32_t(half) << 16) : from_half(half);
}
inline void store(char* to, int type, size_t i, float value) {
  if (type == kF32) return void(std::memcpy(to + 4 * i, &value, 4));
  uint16_t half = 0;
  if (type == kBf16)
    half = std::isnan(value) ? 0x7fff : uint16_t((bits_of(value) + 0x7fff + (bits_of(value) >> 16 & 1)) >> 16);
  else
    half = to_half(value);
  std::memcpy(to + 2 * i, &half, 2);
}

}  // namespace simulator
