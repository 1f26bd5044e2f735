// bf16 and f16 as storage formats: conversion to and from f32, rounding to nearest even. Every vector version must match this scalar definition bit for bit.
#pragma once
#include <bit>
#include <cstdint>

namespace ridge {

inline float bf16_to_f32(uint16_t h) { return std::bit_cast<float>(uint32_t(h) << 16); }

inline uint16_t f32_to_bf16(float f) {
  uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffff) > 0x7f800000) return uint16_t((u >> 16) | 0x40);  // keep NaN a NaN
  return uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

inline float f16_to_f32(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x400000 : 0));
  if (rest < 0x400) return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(rest) * 0x1p-24f));
  return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000));
}

inline uint16_t f32_to_f16(float f) {
  uint32_t u = std::bit_cast<uint32_t>(f), sign = (u >> 16) & 0x8000, rest = u & 0x7fffffff;
  if (rest > 0x7f800000) return uint16_t(sign | 0x7e00 | ((rest >> 13) & 0x3ff));
  if (rest >= 0x477ff000) return uint16_t(sign | 0x7c00);  // 65520 and above round to infinity
  if (rest < 0x38800000) {                                 // subnormal: let the adder round at 2^-24
    float magic = std::bit_cast<float>(rest) + 0x1p-1f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(magic) - 0x3f000000));
  }
  return uint16_t(sign | ((rest + 0xfff + ((rest >> 13) & 1) - 0x38000000) >> 13));
}

}  // namespace ridge
