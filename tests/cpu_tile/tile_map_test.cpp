// Map groups: every op, every type, every layout, against the scalar evaluator.
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "backend/cpu/tile_program.h"
#include "machine/features.h"
#include "tile_harness.h"

namespace ridge::cpu::tile_test {
namespace {

const int64_t kSizes[] = {0, 1, 3, 7, 16, 31, 33, 127, 1009, 5003};

struct OpRow {
  Op op;
  int arity;
};
const OpRow kOps[] = {
#define RIDGE_OP(name, arity, ...) {Op::name, arity},
    RIDGE_ELEMENTWISE_OPS(RIDGE_OP)
#undef RIDGE_OP
};

bool gives_boolean(Op op) { return op == Op::is_finite || op == Op::logical_not || (op >= Op::equal && op <= Op::logical_xor); }
bool float_only(Op op) {
  return (op >= Op::exp && op <= Op::tanh) || op == Op::sigmoid || (op >= Op::gelu_tanh && op <= Op::erf) || (op >= Op::gelu_tanh_grad && op <= Op::silu_grad);
}

TEST(TileMap, EveryOpOnEveryType) {
  for (DType t : {DType::f32, DType::i32, DType::i64, DType::bf16, DType::f16, DType::u8, DType::boolean}) {
    for (const OpRow& row : kOps) {
      if (row.op == Op::cast || row.op == Op::random_at || (!is_float(t) && float_only(row.op))) continue;  // random_at takes i64 and gives f32
      if (t == DType::boolean && (row.op == Op::neg || row.op == Op::sub || row.op == Op::abs || row.op == Op::pow || row.op == Op::div || row.op == Op::mod))
        continue;
      for (int64_t n : {1, 3, 33, 1009}) {
        Build b(Form::map, {n});
        int a = b.in(row.op == Op::select ? DType::boolean : t), x = row.arity > 1 ? b.in(t) : -1, y = row.arity > 2 ? b.in(t) : -1;
        b.out(b.op(row.op, gives_boolean(row.op) ? DType::boolean : t, a, x, y));
        std::vector<Memory> m;
        for (int k = 0; k < row.arity; ++k) {
          m.emplace_back(k == 0 && row.op == Op::select ? DType::boolean : t, n);
          const bool positive = row.op == Op::log || row.op == Op::sqrt || row.op == Op::rsqrt || row.op == Op::log1p || row.op == Op::pow;
          m.back().fill(uint32_t(k), positive ? 0.1 : t == DType::u8 ? 0 : -3, t == DType::u8 ? 3 : 3);
        }
        m.emplace_back(gives_boolean(row.op) ? DType::boolean : t, n);
        check(b.g, m, 2e-6);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(TileMap, CastsBetweenAllTypes) {
  const DType types[] = {DType::f32, DType::i32, DType::i64, DType::bf16, DType::f16, DType::u8, DType::boolean};
  for (DType from : types) {
    for (DType to : types) {
      Build b(Form::map, {133});
      b.out(b.op(Op::cast, to, b.in(from)));
      std::vector<Memory> m{{from, 133}, {to, 133}};
      m[0].fill(3, to == DType::u8 || from == DType::u8 ? 0 : -90, 90);
      check(b.g, m, 0);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TileMap, OddSizesOfAnyRank) {
  for (int64_t n : kSizes) {
    Build b(Form::map, {n});
    b.out(b.op(Op::add, b.op(Op::mul, b.in(), b.in()), b.literal(0.25)));
    std::vector<Memory> m{{DType::f32, n}, {DType::f32, n}, {DType::f32, n}};
    m[0].fill(1), m[1].fill(2);
    check(b.g, m, 1e-6);
  }
  for (Shape s : {Shape{3, 7}, Shape{33, 31}, Shape{2, 3, 5, 7}, Shape{1, 1, 1}, Shape{0, 5}, Shape{7, 1, 31, 1, 3}, Shape{}}) {
    Build b(Form::map, s);
    b.out(b.op(Op::sub, b.in(), b.in()));
    std::vector<Memory> m(3, Memory(DType::f32, s.numel()));
    m[0].fill(1), m[1].fill(2);
    check(b.g, m, 1e-6);
  }
}

// x[i, j, k] + row[i] + col[k] + plane[i, k] + scalar, in each operand position
TEST(TileMap, Broadcasts) {
  for (Shape s : {Shape{5, 4, 37}, Shape{3, 67, 3}, Shape{2, 2, 2000}, Shape{300, 2, 1}}) {
    for (Op op : {Op::sub, Op::div, Op::maximum}) {
      Build b(Form::map, s);
      int x = b.in(), row = b.load(b.operand(), DType::f32, {1, 0, 0}), col = b.load(b.operand(), DType::f32, {0, 0, 1});
      int mid = b.load(b.operand(), DType::f32, {0, 2, 0}), one = b.load(b.operand(), DType::f32, {0, 0, 0});
      int y = b.op(op, x, row);
      y = b.op(op, col, y);
      y = b.op(Op::add, b.op(op, mid, row), y);
      y = b.op(op, b.op(op, col, row), y);
      y = b.op(Op::clamp, y, b.op(Op::neg, b.op(Op::abs, row)), one);
      b.out(b.op(Op::select, b.op(Op::less, DType::boolean, row, col), y, one));
      std::vector<Memory> m{{DType::f32, s.numel()}, {DType::f32, s[0]}, {DType::f32, s[2]}, {DType::f32, 2 * s[1]}, {DType::f32, 1}, {DType::f32, s.numel()}};
      for (size_t k = 0; k < 5; ++k) m[k].fill(uint32_t(k), 1, 3);
      check(b.g, m, 4e-6);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TileMap, StridesOfAnySign) {
  for (DType t : {DType::f32, DType::bf16, DType::i64, DType::u8}) {
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{5, 7}, {67, 130}, {1, 33}, {257, 3}}) {
      const int64_t n = rows * cols;
      std::vector<std::pair<Shape, int64_t>> layouts{{{cols, 1}, 0},         {{1, rows}, 0},     {{-cols, -1}, n - 1},
                                                     {{cols, -1}, cols - 1}, {{2 * cols, 2}, 3}, {{-1, -rows}, n - 1}};
      for (const auto& [strides, offset] : layouts) {
        for (bool flip : {false, true}) {
          Build b(Form::map, {rows, cols});
          int a = b.load(b.operand(), t, strides, offset), c = b.load(b.operand(), t, {cols, 1});
          int y = b.op(Op::add, t, a, c);
          if (flip) {
            b.store(y, {1, rows}, 0);
          } else {
            b.store(y, {cols, 1}, 0);
          }
          std::vector<Memory> m{{t, 2 * n + 8}, {t, n}, {t, n}};
          m[0].fill(1, 0, 9), m[1].fill(2, 0, 9);
          check(b.g, m, 1e-6);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(TileMap, StridedAndWiderOutputs) {
  Build b(Form::map, {9, 35});
  int x = b.in();
  b.store(x, {80, 2}, 1);
  b.store(b.load(b.operand(), DType::f32, {1, 0}), {35, 1});  // broadcasts a row's value to the whole row
  b.store(b.literal(7, DType::i32), {35, 1});
  b.store(b.op(Op::cast, DType::boolean, x), {35, -1}, 34);
  std::vector<Memory> m{{DType::f32, 9 * 35}, {DType::f32, 9 * 80}, {DType::f32, 9}, {DType::f32, 9 * 35}, {DType::i32, 9 * 35}, {DType::boolean, 9 * 35}};
  m[0].fill(1), m[1].fill(5), m[2].fill(2);
  check(b.g, m, 0);
}

TEST(TileMap, UsesTheFallbackOutOfBounds) {
  for (DType t : {DType::f32, DType::bf16, DType::i64}) {
    for (int axis : {0, 1, 2}) {
      for (bool fallback : {false, true}) {
        Shape s{4, 6, 37};
        Build b(Form::map, s);
        int other = fallback ? b.load(b.operand(), t, {0, 1, 0}) : -1;
        int x = b.load(b.operand(), t, contiguous_strides(s), -2 * contiguous_strides(s)[axis], other);
        b.g.accesses[size_t(b.g.nodes[size_t(x)].access)].bounds = {{axis, 2, s[axis] - 1}, {0, 0, 4}};
        b.out(x);
        std::vector<Memory> m;
        if (fallback) m.emplace_back(t, 6);
        m.emplace_back(t, s.numel()), m.emplace_back(t, s.numel());
        for (size_t k = 0; k + 1 < m.size(); ++k) m[k].fill(uint32_t(k));
        check(b.g, m, 0);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// concat of [n, 5] and [n, 40] along the columns: the second is the first's fallback
TEST(TileMap, Concat) {
  for (int64_t n : {1, 3, 100}) {
    Build b(Form::map, {n, 45});
    int second = b.load(b.operand(), DType::f32, {40, 1}, -5);
    b.g.accesses.back().bounds = {{1, 5, 45}};
    int first = b.load(b.operand(), DType::f32, {5, 1}, 0, second);
    b.g.accesses.back().bounds = {{1, 0, 5}};
    b.out(first);
    std::vector<Memory> m{{DType::f32, n * 40}, {DType::f32, n * 5}, {DType::f32, n * 45}};
    m[0].fill(1), m[1].fill(2);
    check(b.g, m, 0);
  }
}

TEST(TileMap, GatherRowsAndElements) {
  for (DType index_type : {DType::i32, DType::i64}) {
    for (DType t : {DType::f32, DType::bf16}) {
      for (bool by_row : {true, false}) {
        const int64_t n = 50, d = 33, vocabulary = 11;
        Build b(Form::map, {n, d});
        int ids = b.load(b.operand(), index_type, by_row ? Shape{1, 0} : Shape{d, 1});
        int x = b.load(b.operand(), t, by_row ? Shape{0, 1} : Shape{0, 0});
        auto& a = b.g.accesses.back();
        a.gather = ids, a.gather_stride = by_row ? d : 1, a.gather_size = vocabulary;
        b.out(x);
        std::vector<Memory> m{{index_type, by_row ? n : n * d}, {t, vocabulary * d}, {t, n * d}};
        m[0].fill(1, 0, double(vocabulary)), m[1].fill(2);
        check(b.g, m, 0);
        m[0].set(7, 11);
        Outcome o = run(b.g, m);
        EXPECT_TRUE(o.fault);
        EXPECT_EQ(o.value, 11);
        EXPECT_EQ(o.limit, 11);
        m[0].set(7, -1);
        EXPECT_EQ(run(b.g, m).value, -1);
      }
    }
  }
}

TEST(TileMap, IndexAndRandom) {
  for (Shape strides : {Shape{100, 1}, Shape{1, 13}, Shape{0, 1}, Shape{50, 2}, Shape{7, 0}}) {
    Build b(Form::map, {13, 97});
    int seed = b.load(b.operand(), DType::i64, {0, 0}), step = b.load(b.operand(), DType::i64, {0, 0}), base = b.load(b.operand(), DType::i64, {0, 0});
    TileNode n;
    n.kind = Kind::random, n.op = Op::random_uniform, n.in = {seed, step, base}, n.stream = 5;
    n.access = b.access(-1, DType::i64, strides, 3);
    b.out(b.push(n));
    n.op = Op::random_bits, n.dtype = DType::i32, n.stream = 6, n.in[2] = -1;
    b.out(b.push(n));
    b.out(b.index(DType::i32, strides, -4));
    b.out(b.index(DType::i64, strides, int64_t(1) << 40));
    std::vector<Memory> m{{DType::i64, 1},       {DType::i64, 1},       {DType::i64, 1},      {DType::f32, 13 * 97},
                          {DType::i32, 13 * 97}, {DType::i32, 13 * 97}, {DType::i64, 13 * 97}};
    m[0].set(0, 123456789012345.0), m[1].set(0, 42), m[2].set(0, 17179869181.0);
    check(b.g, m, 0);
    if (HasFatalFailure()) return;
  }
}

TEST(TileMap, InPlaceWithSeveralOutputs) {
  const int64_t n = 6007;
  Build b(Form::map, {n});
  int p = b.in(), g = b.in(), mo = b.in();
  int m2 = b.op(Op::add, b.op(Op::mul, mo, b.literal(0.9)), b.op(Op::mul, g, b.literal(0.1)));
  b.store(m2, {1}, 0, 2);
  b.store(b.op(Op::sub, p, b.op(Op::mul, m2, b.op(Op::sqrt, b.op(Op::abs, p)))), {1}, 0, 0);
  std::vector<Memory> m(3, Memory(DType::f32, n));
  m[0].fill(1), m[1].fill(2), m[2].fill(3);
  check(b.g, m, 1e-6);
}

TEST(TileMap, LongChains) {
  for (int64_t n : {64, 5000}) {
    Build b(Form::map, {n});
    int x = b.in(), y = x;
    for (int k = 0; k < 1000; ++k) y = k % 2 ? b.op(Op::mul, y, b.literal(0.5)) : b.op(Op::add, y, x);
    b.out(y);
    std::vector<Memory> m(2, Memory(DType::f32, n));
    m[0].fill(1);
    check(b.g, m, 1e-5);
  }
}

TEST(TileMap, SeveralGroupsInOneTask) {
  std::vector<TileGroup> groups;
  std::vector<Memory> memory, want;
  for (int64_t n : {7, 0, 100003, 1, 33}) {
    Build b(Form::map, {n});
    b.out(b.op(Op::tanh, b.in()));
    groups.push_back(b.g);
    for (int k = 0; k < 2; ++k) memory.emplace_back(DType::f32, n), memory.back().fill(uint32_t(n + k));
  }
  want = memory;
  EXPECT_EQ(run(groups, memory).tasks, 1u);
  auto again = want;
  run(groups, again, Split::single_backwards);
  for (size_t k = 0; k < groups.size(); ++k) {
    EXPECT_EQ(memory[2 * k + 1].bytes, again[2 * k + 1].bytes);
    EXPECT_TRUE(memory[2 * k + 1].intact());
    for (int64_t i = 0; i < memory[2 * k].size; ++i) ASSERT_NEAR(memory[2 * k + 1].get(i), std::tanh(want[2 * k].get(i)), 3e-7);
  }
}

TEST(TileMap, StreamingStoresGiveTheSameBits) {
  const int64_t n = (1 << 21) + 5;
  for (int64_t offset : {0, 3}) {
    Build b(Form::map, {n - offset});
    b.store(b.op(Op::exp, b.load(b.operand(), DType::f32, {1})), {1}, offset);
    std::vector<Memory> plain(2, Memory(DType::f32, n)), streamed = plain;
    plain[0].fill(1), streamed[0].fill(1);
    run(b.g, plain);
    b.g.accesses.back().streaming = true;
    run(b.g, streamed, Split::thirds);
    EXPECT_EQ(plain[1].bytes, streamed[1].bytes);
  }
}

// Values that the roundings to bf16 treat differently: numbers of both signs and all sizes, denormal ones, ties, infinities, NaN.
void fill_for_rounding(Memory& m, uint32_t seed) {
  m.fill(seed, -4, 4);
  const uint32_t special[] = {0x00000001, 0x80012345, 0x007fffff, 0x3f808000, 0x3f818000, 0x7f7fffff,
                              0x7f800000, 0xff800000, 0x7fc00001, 0x7f800001, 0x80000000};
  for (int64_t i = 0, k = 0; i < m.size; i += 1 + i % 5, ++k) {
    const uint32_t bits = special[size_t(k) % std::size(special)];
    if (m.dtype == DType::f32)
      std::memcpy(&m.at<uint32_t>(i), &bits, 4);
    else
      m.at<uint16_t>(i) = uint16_t(bits >> 16);
  }
}

// Treats denormals as zeros in arithmetic, as threads do that run a program.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  explicit FlushDenormals(bool flush) : saved_(_mm_getcsr()) { _mm_setcsr(flush ? saved_ | 0x8040 : saved_); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  explicit FlushDenormals(bool) {}
#endif
};

// Compares a group with the same one that also puts out its intermediate values, so that every operation needs a pass of its own.
template <class Make>
void same_bits_in_passes(Shape domain, const std::vector<DType>& inputs, size_t instructions, const Make& make) {
  Build joined(Form::map, domain), passes(Form::map, domain);
  std::vector<int> seen;
  make(joined, seen);
  const int results = joined.g.operands - int(inputs.size());
  seen.clear();
  make(passes, seen);
  for (int value : seen) passes.out(value);
  if (has_bf16(isa_tier())) {
    EXPECT_EQ(plan_tile_group(joined.g)->phases[0].body.size(), instructions);
  }
  EXPECT_GT(plan_tile_group(passes.g)->phases[0].body.size(), instructions);
  std::vector<Memory> one;
  for (DType t : inputs) one.emplace_back(t, domain.numel()), fill_for_rounding(one.back(), uint32_t(one.size()));
  std::vector<Memory> many = one;
  for (int r = 0; r < results; ++r) one.emplace_back(DType::bf16, domain.numel()), many.emplace_back(DType::bf16, domain.numel());
  for (int value : seen) many.emplace_back(passes.g.nodes[size_t(value)].dtype, domain.numel());
  for (bool flush : {false, true}) {
    const FlushDenormals mode(flush);
    run(joined.g, one), run(passes.g, many);
    for (size_t k = 0; k < one.size(); ++k) {
      EXPECT_TRUE(one[k].intact());
      const size_t bytes = size_t(size_of(one[k].dtype));
      for (int64_t i = 0; i < one[k].size; ++i) {  // which of two NaN a product passes on is left to the compiler
        if (std::isnan(one[k].get(i)) && std::isnan(many[k].get(i))) continue;
        ASSERT_EQ(std::memcmp(one[k].data() + size_t(i) * bytes, many[k].data() + size_t(i) * bytes, bytes), 0)
            << "element " << i << " of operand " << k << ": " << one[k].get(i) << " and " << many[k].get(i) << "; in\n"
            << to_string(joined.g);
      }
    }
  }
}

const Shape kJoinedDomains[] = {Shape{1}, Shape{15}, Shape{16}, Shape{127}, Shape{128}, Shape{300}, Shape{5003}, Shape{7, 31}, Shape{65, 140}};

TEST(TileMap, RoundsToBf16AsItStores) {
  for (Shape domain : kJoinedDomains) {
    const auto as_bf16 = [](Build& b, int value) { b.out(b.op(Op::cast, DType::bf16, value)); };
    same_bits_in_passes(domain, {DType::f32, DType::f32, DType::f32}, 1, [&](Build& b, std::vector<int>& seen) {  // a pair
      const int x = b.in(), y = b.in(), z = b.in();
      seen = {b.op(Op::add, x, y)};
      seen.push_back(b.op(Op::mul, seen[0], z));
      as_bf16(b, seen[1]);
    });
    for (Op op : {Op::sub, Op::div})
      same_bits_in_passes(domain, {DType::f32, DType::f32}, 1, [&](Build& b, std::vector<int>& seen) {
        const int x = b.in(), y = b.in();
        seen = {b.op(op, x, y)};
        as_bf16(b, seen[0]);
      });
    for (Op op : {Op::relu, Op::gelu_tanh})
      same_bits_in_passes(domain, {DType::f32}, 1, [&](Build& b, std::vector<int>& seen) {
        seen = {b.op(op, b.in())};
        as_bf16(b, seen[0]);
      });
  }
}

// An activation between layers in bf16: what goes into it is stored, and what comes out; and its gradient times the incoming gradient.
TEST(TileMap, ActivationsInBf16RunInOnePassWithTheSameBits) {
  for (Shape domain : kJoinedDomains) {
    for (Op op : {Op::gelu_tanh, Op::gelu_erf, Op::tanh, Op::silu})
      same_bits_in_passes(domain, {DType::f32, DType::f32}, 2, [&](Build& b, std::vector<int>& seen) {
        const int x = b.in(), y = b.in(), sum = b.op(Op::add, x, y), rounded = b.op(Op::cast, DType::bf16, sum);
        b.out(rounded);
        seen = {b.op(Op::cast, rounded)};
        seen.push_back(b.op(op, seen[0]));
        b.out(b.op(Op::cast, DType::bf16, seen[1]));
      });
    for (Op op : {Op::gelu_tanh_grad, Op::gelu_erf_grad, Op::silu_grad})
      for (bool swapped : {false, true})
        same_bits_in_passes(domain, {DType::f32, DType::bf16}, 1, [&](Build& b, std::vector<int>& seen) {
          const int incoming = b.in(), before = b.in(DType::bf16);
          seen = {b.op(Op::cast, b.op(Op::cast, DType::bf16, incoming)), b.op(Op::cast, before)};
          seen.push_back(b.op(op, seen[1]));
          seen.push_back(swapped ? b.op(Op::mul, seen[0], seen[2]) : b.op(Op::mul, seen[2], seen[0]));
          b.out(b.op(Op::cast, DType::bf16, seen[3]));
        });
  }
}

TEST(TileMap, ASumWithAValueInBf16RunsInOnePassWithTheSameBits) {
  for (Shape domain : kJoinedDomains)
    for (bool swapped : {false, true})
      same_bits_in_passes(domain, {DType::f32, DType::f32}, 1, [&](Build& b, std::vector<int>& seen) {
        const int x = b.in(), y = b.in();
        seen = {b.op(Op::cast, b.op(Op::cast, DType::bf16, y))};
        seen.push_back(swapped ? b.op(Op::add, seen[0], x) : b.op(Op::add, x, seen[0]));
        b.out(b.op(Op::cast, DType::bf16, seen[1]));
      });
}

// An AdamW step as the optimizer writes it: p, m, v, gradient, whether the step is good, then eight scalars (see TileUpdate), then the results.
TileGroup adamw_group(Shape domain, bool reversed) {
  Build b(Form::map, domain);
  const Shape once(std::vector<int64_t>(domain.rank(), 0));
  const int p = b.in(), m = b.in(), v = b.in(), raw = b.in(), good = b.load(b.operand(), DType::boolean, once);
  int s[8];
  for (int& x : s) x = b.load(b.operand(), DType::f32, once);
  const int g = b.op(Op::mul, raw, s[0]), m1 = b.op(Op::add, m, b.op(Op::mul, b.op(Op::sub, g, m), s[1]));
  const int v1 = b.op(Op::add, b.op(Op::mul, v, s[2]), b.op(Op::mul, b.op(Op::mul, g, s[3]), g));
  const int bottom = b.op(Op::add, b.op(Op::div, b.op(Op::sqrt, v1), s[6]), s[7]), shrunk = reversed ? b.op(Op::mul, s[4], p) : b.op(Op::mul, p, s[4]);
  const int p1 = b.op(Op::sub, shrunk, b.op(Op::div, b.op(Op::mul, m1, s[5]), bottom));
  b.out(b.op(Op::select, good, p1, p)), b.out(b.op(Op::select, good, m1, m)), b.out(b.op(Op::select, good, v1, v));
  return b.g;
}

TEST(TileMap, AnUpdateRunsInOnePassWithTheSameBits) {
  for (Shape domain : {Shape{3}, Shape{33}, Shape{5003}, Shape{65, 128}, Shape{7, 31}}) {
    for (bool good : {true, false}) {
      const TileGroup group = adamw_group(domain, false), passes = adamw_group(domain, true);  // p * shrink with swapped operands is not recognised
      EXPECT_EQ(plan_tile_group(group)->phases[0].body.size(), 1u);
      EXPECT_GT(plan_tile_group(passes)->phases[0].body.size(), 9u);
      std::vector<Memory> m(4, Memory(DType::f32, domain.numel()));
      m[0].fill(1), m[1].fill(2), m[2].fill(3, 0, 2), m[3].fill(4);
      m.emplace_back(DType::boolean, 1);
      m.back().data()[0] = std::byte(good);
      for (float x : {0.5f, 0.1f, 0.99f, 0.01f, 0.999f, 1e-2f, 0.3f, 1e-8f}) {
        m.emplace_back(DType::f32, 1);
        std::memcpy(m.back().data(), &x, 4);
      }
      m.insert(m.end(), 3, Memory(DType::f32, domain.numel()));
      check(group, m, 2e-6);
      std::vector<Memory> one = m, many = m;
      run(group, one), run(passes, many);
      for (size_t k = 0; k < m.size(); ++k) ASSERT_EQ(one[k].bytes, many[k].bytes) << "operand " << k;
    }
  }
}

}  // namespace
}  // namespace ridge::cpu::tile_test
