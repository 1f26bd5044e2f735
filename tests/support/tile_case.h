// Fused groups built by hand or at random, and their values in double precision, point by point.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "compile/tile_group.h"

namespace ridge::tile_test {

using Kind = TileNode::Kind;
using Form = TileGroup::Template;

struct Build {
  TileGroup g;
  Build(Form form, Shape domain, int reduced = 0) { g.form = form, g.domain = domain, g.reduced = reduced; }

  int operand() { return g.operands++; }
  int access(int operand, DType t, Shape strides, int64_t offset = 0) {
    TileAccess a;
    a.operand = operand, a.dtype = t, a.strides = strides, a.offset = offset;
    g.accesses.push_back(a);
    return int(g.accesses.size()) - 1;
  }
  int push(TileNode n) {
    g.nodes.push_back(n);
    return int(g.nodes.size()) - 1;
  }
  int load(int operand, DType t, Shape strides, int64_t offset = 0, int fallback = -1) {
    TileNode n;
    n.kind = Kind::load, n.dtype = t, n.access = access(operand, t, strides, offset), n.in[0] = fallback;
    return push(n);
  }
  int in(DType t = DType::f32) { return load(operand(), t, contiguous_strides(g.domain)); }
  int literal(double value, DType t = DType::f32) {
    TileNode n;
    n.kind = Kind::literal, n.dtype = t, n.value = value;
    return push(n);
  }
  int op(Op op, DType t, int a, int b = -1, int c = -1) {
    TileNode n;
    n.kind = Kind::elementwise, n.op = op, n.dtype = t, n.in = {a, b, c};
    return push(n);
  }
  int op(Op o, int a, int b = -1, int c = -1) { return op(o, DType::f32, a, b, c); }
  int reduce(Op op, int a, DType t = DType::f32) {
    TileNode n;
    n.kind = Kind::reduce, n.op = op, n.dtype = t, n.in[0] = a;
    return push(n);
  }
  int index(DType t, Shape strides, int64_t offset = 0) {
    TileNode n;
    n.kind = Kind::index, n.dtype = t, n.access = access(-1, t, strides, offset);
    return push(n);
  }
  int store(int value, Shape strides, int64_t offset = 0, int operand = -1) {
    TileNode n;
    n.kind = Kind::store, n.dtype = g.nodes[size_t(value)].dtype, n.in[0] = value;
    n.access = access(operand < 0 ? this->operand() : operand, n.dtype, strides, offset);
    return push(n);
  }
  int out(int value) { return store(value, contiguous_strides(g.domain)); }
};

// The memory of one operand, with sentinels on both sides.
struct Memory {
  static constexpr size_t kMargin = 256;
  std::vector<std::byte> bytes;
  DType dtype;
  int64_t size;
  Memory(DType t, int64_t n) : bytes(size_t(n * size_of(t)) + 2 * kMargin, std::byte(0xA5)), dtype(t), size(n) {}
  std::byte* data() { return bytes.data() + kMargin; }
  const std::byte* data() const { return bytes.data() + kMargin; }
  template <class T>
  T& at(int64_t i) {
    return reinterpret_cast<T*>(data())[i];
  }
  double get(int64_t i) const {
    auto* p = data();
    switch (dtype) {
      case DType::f32: return reinterpret_cast<const float*>(p)[i];
      case DType::i32: return reinterpret_cast<const int32_t*>(p)[i];
      case DType::i64: return double(reinterpret_cast<const int64_t*>(p)[i]);
      case DType::bf16: return bf16_to_f32(reinterpret_cast<const uint16_t*>(p)[i]);
      case DType::f16: return f16_to_f32(reinterpret_cast<const uint16_t*>(p)[i]);
      default: return double(uint8_t(p[i]));
    }
  }
  void set(int64_t i, double v) {
    auto* p = data();
    switch (dtype) {
      case DType::f32: reinterpret_cast<float*>(p)[i] = float(v); break;
      case DType::i32: reinterpret_cast<int32_t*>(p)[i] = int32_t(int64_t(v)); break;
      case DType::i64: reinterpret_cast<int64_t*>(p)[i] = int64_t(v); break;
      case DType::bf16: reinterpret_cast<uint16_t*>(p)[i] = f32_to_bf16(float(v)); break;
      case DType::f16: reinterpret_cast<uint16_t*>(p)[i] = f32_to_f16(float(v)); break;
      default: p[i] = std::byte(uint8_t(int64_t(v)));
    }
  }
  void fill(uint32_t seed, double low = -2, double high = 2) {
    for (int64_t i = 0; i < size; ++i) {
      double u = double(random_word({seed, 7, 9}, uint64_t(i))) * 0x1p-32;
      double v = low + (high - low) * u;
      set(i, dtype == DType::boolean ? double(u < 0.5) : is_float(dtype) ? v : std::floor(v));
    }
  }
  bool intact() const {
    for (size_t i = 0; i < kMargin; ++i)
      if (bytes[i] != std::byte(0xA5) || bytes[bytes.size() - 1 - i] != std::byte(0xA5)) return false;
    return true;
  }
};

double round_to(DType t, double v);
double scalar_op(Op op, DType t, double a, double b, double c);
void evaluate(const TileGroup& group, std::vector<Memory>& memory);  // in double, point by point

// Compares memory with the expected values: |difference| <= tolerance * (1 + |value|), plus one rounding step for 16-bit types.
void compare(const TileGroup& group, const std::vector<Memory>& got, const std::vector<Memory>& want, double tolerance);

// The loss of each row and the gradient of its logits.
inline Build cross_entropy(int64_t rows, int64_t classes) {
  Build b(Form::row, {rows, classes}, 1);
  int target = b.load(b.operand(), DType::i32, {1, 0}), x = b.in();
  int shifted = b.op(Op::sub, x, b.reduce(Op::reduce_max, x)), e = b.op(Op::exp, shifted), sum = b.reduce(Op::reduce_sum, e);
  int hit = b.op(Op::equal, DType::boolean, b.index(DType::i32, {0, 1}), target);
  int picked = b.reduce(Op::reduce_sum, b.op(Op::select, hit, shifted, b.literal(0)));
  b.store(b.op(Op::sub, b.op(Op::log, sum), picked), {1, 0});
  b.out(b.op(Op::add, b.op(Op::select, hit, b.literal(-1), b.literal(0)), b.op(Op::mul, b.op(Op::div, b.literal(1), sum), e)));
  return b;
}

inline std::vector<Memory> cross_entropy_memory(int64_t rows, int64_t classes) {
  std::vector<Memory> m{{DType::i32, rows}, {DType::f32, rows * classes}, {DType::f32, rows}, {DType::f32, rows * classes}};
  m[0].fill(5, 0, double(classes)), m[1].fill(1, -9, 9);
  return m;
}

}  // namespace ridge::tile_test
