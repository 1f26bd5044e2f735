// A matmul case: buffers surrounded by sentinels, with a plain double-precision loop as the expected result.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cpu/matmul.h"
#include "base/half.h"

namespace ridge::test {
inline namespace matmul_case {  // lets all tests be linked into one program

using cpu::MatmulDesc;
using cpu::MatmulLoop;

inline float load(const std::vector<std::byte>& v, DType t, int64_t i) {
  if (t == DType::f32) {
    float x;
    std::memcpy(&x, v.data() + i * 4, 4);
    return x;
  }
  uint16_t h;
  std::memcpy(&h, v.data() + i * 2, 2);
  return t == DType::bf16 ? bf16_to_f32(h) : f16_to_f32(h);
}

inline void save(std::vector<std::byte>& v, DType t, int64_t i, float x) {
  if (t == DType::f32) {
    std::memcpy(v.data() + i * 4, &x, 4);
    return;
  }
  uint16_t h = t == DType::bf16 ? f32_to_bf16(x) : f32_to_f16(x);
  std::memcpy(v.data() + i * 2, &h, 2);
}

// Smallest and largest element that one operand's loops reach.
struct Extent {
  int64_t low = 0, high = 0;
};
inline Extent extent(const MatmulDesc& d, int64_t MatmulLoop::*stride) {
  Extent e;
  for (const auto* loops : {&d.batch, &d.m, &d.n, &d.k})
    for (const MatmulLoop& l : *loops) {
      int64_t far = std::max<int64_t>(0, l.size - 1) * (l.*stride);
      e.low += std::min<int64_t>(0, far), e.high += std::max<int64_t>(0, far);
    }
  return e;
}

inline int64_t size_of_loops(const std::vector<MatmulLoop>& loops) {
  int64_t n = 1;
  for (const MatmulLoop& l : loops) n *= l.size;
  return n;
}

inline int64_t offset_of(const std::vector<MatmulLoop>& loops, int64_t MatmulLoop::*stride, int64_t index) {
  int64_t at = 0;
  for (auto l = loops.rbegin(); l != loops.rend(); ++l) at += index % l->size * ((*l).*stride), index /= l->size;
  return at;
}

inline constexpr int64_t kGuard = 64;  // sentinel elements on both sides of an operand
inline constexpr std::byte kSentinel{0xAB};

struct Operand {
  std::vector<std::byte> bytes;
  int64_t origin = 0;  // element index of offset 0
  DType type = DType::f32;
};

inline Operand make_operand(DType type, Extent e, uint32_t seed) {
  Operand o;
  o.type = type;
  o.origin = kGuard - e.low;
  int64_t n = e.high - e.low + 1 + 2 * kGuard;
  o.bytes.assign(size_t(n * size_of(type)), kSentinel);
  std::mt19937 rng(seed);
  std::uniform_real_distribution<float> dist(-1, 1);
  for (int64_t i = kGuard; i < n - kGuard; ++i) save(o.bytes, type, i, dist(rng));
  return o;
}

struct Truth {
  int64_t at;  // element index in C's bytes
  double sum, magnitude;
};

struct MatmulCase {
  MatmulDesc desc;
  Operand a, b, c;

  explicit MatmulCase(MatmulDesc d, uint32_t seed = 1) : desc(std::move(d)) {
    a = make_operand(desc.a_type, extent(desc, &MatmulLoop::a), seed);
    b = make_operand(desc.b_type, extent(desc, &MatmulLoop::b), seed + 1);
    c = make_operand(desc.c_type, extent(desc, &MatmulLoop::c), seed + 2);
  }

  // Compares C's bytes after a run with the double-precision loop; elements that the loops do not reach must be unchanged.
  void compare(const std::vector<std::byte>& got, const std::vector<Truth>& truth) const {
    std::vector<char> written(got.size(), 0);
    int bad = 0, stray = 0;
    for (const Truth& t : truth) {
      // Summing k terms in any order has an error of at most about k roundings of the sum of magnitudes.
      const double unit = desc.c_type == DType::f32 ? 0 : desc.c_type == DType::bf16 ? 0x1p-8 : 0x1p-11;
      const double allowed =
          t.magnitude * double(size_of_loops(desc.k) + 2) * 0x1p-24 + std::abs(t.sum) * unit + 1e-30 + (desc.c_type == DType::f16 ? 0x1p-25 : 0);
      const double value = load(got, desc.c_type, t.at);
      if (!(std::abs(value - t.sum) <= allowed) && ++bad <= 3)
        ADD_FAILURE() << "element " << t.at << ": " << value << ", expected " << t.sum << " within " << allowed;
      for (int64_t byte = 0; byte < size_of(desc.c_type); ++byte) written[size_t(t.at * size_of(desc.c_type) + byte)] = 1;
    }
    for (size_t i = 0; i < got.size(); ++i) stray += !written[i] && got[i] != c.bytes[i];
    EXPECT_EQ(bad, 0);
    EXPECT_EQ(stray, 0) << "bytes outside C changed";
  }

  std::vector<Truth> double_loop() const {
    const int64_t batch = size_of_loops(desc.batch), m = size_of_loops(desc.m), n = size_of_loops(desc.n), k = size_of_loops(desc.k);
    std::vector<Truth> truth;
    for (int64_t e = 0; e < batch; ++e) {
      const std::vector<double> fa = gather(a, offset_of(desc.batch, &MatmulLoop::a, e), desc.m, &MatmulLoop::a);
      const std::vector<double> fb = gather(b, offset_of(desc.batch, &MatmulLoop::b, e), desc.n, &MatmulLoop::b);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          Truth t{};
          t.at = c.origin + offset_of(desc.batch, &MatmulLoop::c, e) + offset_of(desc.m, &MatmulLoop::c, i) + offset_of(desc.n, &MatmulLoop::c, j);
          for (int64_t q = 0; q < k; ++q) {
            const double x = fa[size_t(i * k + q)] * fb[size_t(j * k + q)];
            t.sum += x, t.magnitude += std::abs(x);
          }
          if (desc.accumulate) t.sum += load(c.bytes, c.type, t.at), t.magnitude += std::abs(load(c.bytes, c.type, t.at));
          if (desc.epilogue_scratch >= 0) t.sum = std::max(0., t.sum);
          truth.push_back(t);
        }
    }
    return truth;
  }

  // An operand's elements as [row][k].
  std::vector<double> gather(const Operand& o, int64_t offset, const std::vector<MatmulLoop>& rows, int64_t MatmulLoop::*stride) const {
    std::vector<double> out;
    const int64_t k = size_of_loops(desc.k);
    for (int64_t i = 0; i < size_of_loops(rows); ++i)
      for (int64_t q = 0; q < k; ++q) out.push_back(load(o.bytes, o.type, o.origin + offset + offset_of(rows, stride, i) + offset_of(desc.k, stride, q)));
    return out;
  }
};

// Plain matrices: A [m][k] or [k][m], B [k][n] or [n][k], C [m][n] or [n][m], with padding between rows.
inline MatmulDesc plain(int64_t m, int64_t n, int64_t k, bool ta = false, bool tb = false, bool tc = false, int64_t pad = 0) {
  MatmulDesc d;
  const int64_t lda = (ta ? m : k) + pad, ldb = (tb ? k : n) + pad, ldc = (tc ? m : n) + pad;
  d.m = {{m, ta ? 1 : lda, 0, tc ? 1 : ldc}};
  d.n = {{n, 0, tb ? ldb : 1, tc ? ldc : 1}};
  d.k = {{k, ta ? lda : 1, tb ? 1 : ldb, 0}};
  return d;
}

}  // namespace matmul_case
}  // namespace ridge::test
