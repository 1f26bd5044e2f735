// One attention problem with made-up operands, its answer in double precision, and the checks on a kernel's results.
#pragma once
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "backend/attention_desc.h"
#include "base/half.h"
#include "base/rng.h"

namespace ridge::test {
inline namespace attention_case {  // lets all tests be linked into one program

using Mask = AttentionDesc::Mask;

inline double load(DType t, const std::vector<std::byte>& bytes, int64_t i) {
  if (t == DType::f32) {
    float f;
    std::memcpy(&f, bytes.data() + i * 4, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, bytes.data() + i * 2, 2);
  return t == DType::bf16 ? bf16_to_f32(h) : f16_to_f32(h);
}

inline void store(DType t, std::vector<std::byte>& bytes, int64_t i, float f) {
  if (t == DType::f32) {
    std::memcpy(bytes.data() + i * 4, &f, 4);
  } else {
    const uint16_t h = t == DType::bf16 ? f32_to_bf16(f) : f32_to_f16(f);
    std::memcpy(bytes.data() + i * 2, &h, 2);
  }
}

enum class Layout { heads_first, qkv_slices, feature_stride };

struct AttentionCase {
  AttentionDesc d;
  int64_t length = -1, seed = 1234567890123, step = 7, base = 0;
  // Whole buffers, including the gaps between elements; operands start kMargin elements in.
  static constexpr int64_t kMargin = 24;
  std::vector<std::byte> q, k, v, out, dout, dq, dk, dv, mask, lse;

  static uint32_t hash(uint64_t x) { return random_word({99, 0, 0}, x); }
  static float value(uint64_t tag, uint64_t i) { return 2 * uniform_from(hash(tag << 40 | i)) - 1; }

  int64_t group() const { return d.heads / d.kv_heads; }
  int64_t valid_keys() const { return d.has_length ? length : d.keys; }
  bool sees(int64_t i, int64_t j) const { return j < valid_keys() && (!d.causal || j <= i + valid_keys() - d.queries); }
  double keep(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (d.dropout == 0) return 1;
    const uint64_t index = uint64_t(base + ((b * d.heads + h) * d.queries + i) * d.keys + j);
    return uniform_from(random_word({uint64_t(seed), uint32_t(step), d.stream}, index)) >= float(d.dropout) ? 1 / (1 - d.dropout) : 0;
  }
  double bias(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const auto& s = d.mask_strides;
    const int64_t at = b * s[0] + h * s[1] + i * s[2] + j * s[3];
    if (d.mask == Mask::none) return 0;
    if (d.mask == Mask::additive) return load(DType::f32, mask, at);
    return mask[size_t(at)] != std::byte{} ? 0 : -std::numeric_limits<double>::infinity();
  }
  double at(const std::vector<std::byte>& x, const AttentionDesc::Strides& s, int64_t b, int64_t h, int64_t i, int64_t c) const {
    return load(d.dtype, x, kMargin + b * s[0] + h * s[1] + i * s[2] + c * s[3]);
  }

  // Computes strides and fills the operands. Set the sizes, scale and options of d first.
  void make(Layout layout, std::array<bool, 4> mask_broadcast = {}) {
    auto lay = [&](std::vector<std::byte>& x, AttentionDesc::Strides& s, int64_t heads, int64_t length, uint64_t tag) {
      int64_t feature = layout == Layout::feature_stride ? 3 : 1, parts = layout == Layout::qkv_slices ? 3 : 1;
      if (layout == Layout::heads_first)
        s = {heads * length * d.dim, length * d.dim, d.dim, 1};
      else
        s = {length * parts * heads * d.dim * feature, d.dim * feature, parts * heads * d.dim * feature, feature};
      const int64_t count = d.batch * heads * length * d.dim * feature * parts + 2 * kMargin;
      x.resize(size_t(count * size_of(d.dtype)));
      for (int64_t i = 0; i < count; ++i) store(d.dtype, x, i, value(tag, uint64_t(i)));
    };
    lay(q, d.q, d.heads, d.queries, 1), lay(k, d.k, d.kv_heads, d.keys, 2), lay(v, d.v, d.kv_heads, d.keys, 3);
    lay(out, d.out, d.heads, d.queries, 4), lay(dout, d.dout, d.heads, d.queries, 5), lay(dq, d.dq, d.heads, d.queries, 6);
    lay(dk, d.dk, d.kv_heads, d.keys, 7), lay(dv, d.dv, d.kv_heads, d.keys, 8);
    lse.resize(size_t((d.batch * d.heads * d.queries + 2 * kMargin) * 4));
    for (size_t i = 0; i < lse.size() / 4; ++i) store(DType::f32, lse, int64_t(i), value(9, i));
    if (d.mask == Mask::none) return;
    const int64_t sizes[4] = {d.batch, d.heads, d.queries, d.keys};
    int64_t count = 1;
    for (int axis = 3; axis >= 0; --axis) {
      d.mask_strides[size_t(axis)] = mask_broadcast[size_t(axis)] ? 0 : count;
      if (!mask_broadcast[size_t(axis)]) count *= sizes[axis];
    }
    mask.resize(size_t(count * (d.mask == Mask::additive ? 4 : 1)));
    for (int64_t i = 0; i < count; ++i) {
      const bool may = hash(uint64_t(i) + 5'000'000) % 3 != 0;
      if (d.mask == Mask::additive)
        store(DType::f32, mask, i, may ? 3 * value(10, uint64_t(i)) : -std::numeric_limits<float>::infinity());
      else
        mask[size_t(i)] = std::byte(may ? 1 + i % 200 : 0);
    }
  }

  struct Answer {
    std::vector<double> out, lse, dq, dk, dv;  // [batch, heads, position, feature]
  };
  // `f`, if given, replaces q, k and v (for central differences).
  Answer solve(bool backward, const std::vector<double>* qq = nullptr, const std::vector<double>* kk = nullptr, const std::vector<double>* vv = nullptr) const;
  std::vector<double> dense(const std::vector<std::byte>& x, const AttentionDesc::Strides& s, int64_t heads, int64_t length) const {
    std::vector<double> y;
    for (int64_t b = 0; b < d.batch; ++b)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < length; ++i)
          for (int64_t c = 0; c < d.dim; ++c) y.push_back(at(x, s, b, h, i, c));
    return y;
  }
};

inline AttentionCase::Answer AttentionCase::solve(bool backward, const std::vector<double>* qq, const std::vector<double>* kk,
                                                  const std::vector<double>* vv) const {
  const std::vector<double> q_ = qq ? *qq : dense(q, d.q, d.heads, d.queries), k_ = kk ? *kk : dense(k, d.k, d.kv_heads, d.keys);
  const std::vector<double> v_ = vv ? *vv : dense(v, d.v, d.kv_heads, d.keys), g_ = dense(dout, d.dout, d.heads, d.queries);
  Answer a;
  a.out.assign(q_.size(), 0), a.dq.assign(q_.size(), 0), a.dk.assign(k_.size(), 0), a.dv.assign(k_.size(), 0);
  std::vector<double> s(size_t(d.keys), 0.0);
  for (int64_t b = 0; b < d.batch; ++b)
    for (int64_t h = 0; h < d.heads; ++h)
      for (int64_t i = 0; i < d.queries; ++i) {
        const int64_t row = ((b * d.heads + h) * d.queries + i) * d.dim, kv = (b * d.kv_heads + h / group()) * d.keys * d.dim;
        double top = -std::numeric_limits<double>::infinity(), sum = 0;
        for (int64_t j = 0; j < d.keys; ++j) {
          s[size_t(j)] = -std::numeric_limits<double>::infinity();
          if (!sees(i, j)) continue;
          double dot = 0;
          for (int64_t c = 0; c < d.dim; ++c) dot += q_[size_t(row + c)] * k_[size_t(kv + j * d.dim + c)];
          s[size_t(j)] = dot * d.scale + bias(b, h, i, j);
          top = std::max(top, s[size_t(j)]);
        }
        for (int64_t j = 0; j < d.keys; ++j) sum += s[size_t(j)] = std::isinf(s[size_t(j)]) ? 0 : std::exp(s[size_t(j)] - top);
        a.lse.push_back(sum == 0 ? -std::numeric_limits<double>::infinity() : top + std::log(sum));
        if (sum == 0) continue;
        for (int64_t j = 0; j < d.keys; ++j) {
          s[size_t(j)] /= sum;
          if (s[size_t(j)] == 0) continue;
          for (int64_t c = 0; c < d.dim; ++c) a.out[size_t(row + c)] += s[size_t(j)] * keep(b, h, i, j) * v_[size_t(kv + j * d.dim + c)];
        }
        if (!backward) continue;
        double delta = 0;
        for (int64_t c = 0; c < d.dim; ++c) delta += g_[size_t(row + c)] * a.out[size_t(row + c)];
        for (int64_t j = 0; j < d.keys; ++j) {
          if (s[size_t(j)] == 0) continue;
          double dp = 0;
          const double kept = keep(b, h, i, j), p = s[size_t(j)];
          for (int64_t c = 0; c < d.dim; ++c) dp += g_[size_t(row + c)] * v_[size_t(kv + j * d.dim + c)];
          const double ds = p * (dp * kept - delta) * d.scale;
          for (int64_t c = 0; c < d.dim; ++c) {
            a.dq[size_t(row + c)] += ds * k_[size_t(kv + j * d.dim + c)];
            a.dk[size_t(kv + j * d.dim + c)] += ds * q_[size_t(row + c)];
            a.dv[size_t(kv + j * d.dim + c)] += p * kept * g_[size_t(row + c)];
          }
        }
      }
  return a;
}

// Rounding of the stored type plus f32 sums of `terms` terms of magnitude about 1.
inline double tolerance(DType t, double terms) {
  const double stored = t == DType::f32 ? 0x1p-23 : t == DType::bf16 ? 0x1p-8 : 0x1p-11;
  return stored + 0x1p-23 * (8 + 2 * std::sqrt(terms));
}

inline void expect_near(const char* what, const std::vector<double>& got, const std::vector<double>& want, double tolerance, const std::string& label) {
  ASSERT_EQ(got.size(), want.size());
  double top = 1;
  for (double w : want) top = std::isfinite(w) ? std::max(top, std::abs(w)) : top;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;  // infinities too
    ASSERT_LE(std::abs(got[i] - want[i]), tolerance * top) << what << "[" << i << "] is " << got[i] << ", expected " << want[i] << " in " << label;
  }
}

inline std::string label(const AttentionCase& c) {
  const auto& d = c.d;
  return fmt::format("{} batch {} heads {}/{} queries {} keys {} dim {} causal {} mask {} length {} dropout {}", name(d.dtype), d.batch, d.heads, d.kv_heads,
                     d.queries, d.keys, d.dim, d.causal, int(d.mask), c.length, d.dropout);
}

// Checks that every byte outside the view's elements is unchanged.
inline void expect_untouched(const char* what, const AttentionCase& c, const std::vector<std::byte>& before, const std::vector<std::byte>& after,
                             const AttentionDesc::Strides& s, int64_t heads, int64_t length) {
  std::vector<char> mine(before.size(), 0);
  const int64_t size = size_of(c.d.dtype);
  for (int64_t b = 0; b < c.d.batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < length; ++i)
        for (int64_t f = 0; f < c.d.dim; ++f)
          for (int64_t byte = 0; byte < size; ++byte) mine[size_t((AttentionCase::kMargin + b * s[0] + h * s[1] + i * s[2] + f * s[3]) * size + byte)] = 1;
  for (size_t i = 0; i < before.size(); ++i) ASSERT_TRUE(mine[i] || before[i] == after[i]) << what << " was written outside itself at byte " << i;
}

// `run(backward)` fills the case's results. `inner`: rounding of the weights before the multiplication, 0 if they stay f32.
template <class C, class Run>
void check_attention(C& c, const std::string& where, Run run, double inner = 0) {
  const C before = c;
  const AttentionCase::Answer want = c.solve(true);
  run(false);
  const AttentionDesc& d = c.d;
  std::vector<double> lse;
  for (int64_t i = 0; i < d.batch * d.heads * d.queries; ++i) lse.push_back(load(DType::f32, c.lse, AttentionCase::kMargin + i));
  const double keys = double(d.keys), dim = double(d.dim), queries = double(d.queries * c.group());
  expect_near("lse", lse, want.lse, tolerance(DType::f32, dim), where);
  expect_near("out", c.dense(c.out, d.out, d.heads, d.queries), want.out, tolerance(d.dtype, keys + dim) + inner, where);
  run(true);
  const double rounding = 1 + (d.dtype == DType::f32 ? 0 : 2);  // delta is computed from the rounded output
  expect_near("dq", c.dense(c.dq, d.dq, d.heads, d.queries), want.dq, rounding * tolerance(d.dtype, 4 * (keys + dim)) + inner, where);
  expect_near("dk", c.dense(c.dk, d.dk, d.kv_heads, d.keys), want.dk, rounding * tolerance(d.dtype, 4 * (queries + dim)) + inner, where);
  expect_near("dv", c.dense(c.dv, d.dv, d.kv_heads, d.keys), want.dv, rounding * tolerance(d.dtype, 4 * (queries + dim)) + inner, where);
  expect_untouched("out", c, before.out, c.out, d.out, d.heads, d.queries);
  expect_untouched("dq", c, before.dq, c.dq, d.dq, d.heads, d.queries);
  expect_untouched("dk", c, before.dk, c.dk, d.dk, d.kv_heads, d.keys);
  expect_untouched("dv", c, before.dv, c.dv, d.dv, d.kv_heads, d.keys);
  for (int64_t i = 0; i < AttentionCase::kMargin; ++i) {
    ASSERT_EQ(load(DType::f32, before.lse, i), load(DType::f32, c.lse, i));
    const int64_t end = int64_t(c.lse.size()) / 4 - 1 - i;
    ASSERT_EQ(load(DType::f32, before.lse, end), load(DType::f32, c.lse, end));
  }
}

struct Heads {
  int64_t heads, kv_heads;
};
inline constexpr Heads kHeads[] = {{1, 1}, {4, 2}, {6, 1}};
inline constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
inline constexpr Layout kLayouts[] = {Layout::heads_first, Layout::qkv_slices, Layout::feature_stride};

}  // namespace attention_case
}  // namespace ridge::test
