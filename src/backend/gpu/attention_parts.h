// Shared by the attention kernels: operands by name, and the numbers they pass as arguments.
#pragma once
#include <algorithm>
#include <cmath>

#include "backend/attention_desc.h"
#include "backend/gpu/kernel.h"

namespace ridge::gpu {

inline void copy(const AttentionDesc::Strides& from, int64_t (&to)[4]) { std::copy(from.begin(), from.end(), to); }

inline float kept_factor(const AttentionDesc& d) { return d.dropout < 1 ? float(1 / (1 - d.dropout)) : 0.0f; }
// A uniform random number is k · 2^-24; elements with k below this limit are dropped.
inline uint32_t dropout_limit(const AttentionDesc& d) { return uint32_t(std::ceil(double(float(d.dropout)) * 0x1p24)); }

// Whether rows are made of aligned 16-byte pieces, so that a thread can move eight elements at a time.
inline bool in_pieces(const AttentionDesc::Strides& s) { return s[3] == 1 && s[0] % 8 == 0 && s[1] % 8 == 0 && s[2] % 8 == 0; }

inline bool in_pieces(const AttentionDesc& d, bool backward) {
  bool all = d.dim % 8 == 0 && size_of(d.dtype) == 2;
  for (const AttentionDesc::Strides* s : {&d.q, &d.k, &d.v, &d.out}) all = all && in_pieces(*s);
  if (backward)
    for (const AttentionDesc::Strides* s : {&d.dout, &d.dq, &d.dk, &d.dv}) all = all && in_pieces(*s);
  return all;
}

// The operands by name, in the node's operand order.
struct AttentionPlaces {
  Place q, k, v, mask, length, seed, step, base, out, lse, dout, dq, dk, dv, delta;

  AttentionPlaces() = default;
  AttentionPlaces(const AttentionDesc& d, bool backward, std::span<const Place> operands) {
    size_t i = 0;
    auto next = [&] {
      if (i == operands.size()) fail(ErrorCode::binding, "[attention] {} operands are too few", operands.size());
      return operands[i++];
    };
    q = next(), k = next(), v = next();
    if (d.mask != AttentionDesc::Mask::none) mask = next();
    if (d.has_length) length = next();
    if (d.dropout > 0) seed = next(), step = next(), base = next();
    out = next(), lse = next();
    if (backward) dout = next(), dq = next(), dk = next(), dv = next();
    if (i != operands.size()) fail(ErrorCode::binding, "[attention] {} operands where {} are described", operands.size(), i);
  }
};

}  // namespace ridge::gpu
