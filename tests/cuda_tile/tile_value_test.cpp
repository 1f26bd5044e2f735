// Every operation on every type, several in one kernel, against the scalar evaluator.
#include "backend/gpu/tile_kernel.h"
#include "tile_harness.h"

namespace ridge::cuda::tile_test {
namespace {

class CudaTileValues : public test::CudaTest {};

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
const DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8, DType::boolean};

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
bool wants_positive(Op op) { return op == Op::log || op == Op::sqrt || op == Op::rsqrt || op == Op::log1p || op == Op::pow; }

// All operations of one type: values, a second operand, a third, and positive values for those that need them.
struct AllOps {
  Build b{Form::map, {}};
  std::vector<Memory> memory;
  std::vector<Op> ops;

  AllOps(DType t, int64_t n) {
    b = Build(Form::map, {n});
    const int x = b.in(t), y = b.in(t), z = b.in(t), positive = b.in(t), choice = b.in(DType::boolean);
    for (int k = 0; k < 4; ++k) memory.emplace_back(t, n).fill(uint32_t(k), k == 3 ? 0.1 : t == DType::u8 ? 0 : -3, 3);
    memory.emplace_back(DType::boolean, n).fill(9);
    for (const OpRow& row : kOps) {
      if (row.op == Op::cast || row.op == Op::random_at || (!is_float(t) && float_only(row.op))) continue;  // random_at takes i64 and gives f32
      if (t == DType::boolean && (row.op == Op::neg || row.op == Op::sub || row.op == Op::abs || row.op == Op::pow || row.op == Op::div || row.op == Op::mod))
        continue;
      const DType to = gives_boolean(row.op) ? DType::boolean : t;
      const int first = row.op == Op::select ? choice : wants_positive(row.op) ? positive : x;
      b.out(b.op(row.op, to, first, row.arity > 1 ? (row.op == Op::pow ? positive : y) : -1, row.arity > 2 ? z : -1));
      memory.emplace_back(to, n);
      ops.push_back(row.op);
    }
  }
};

TEST_F(CudaTileValues, EveryOperationOnEveryType) {
  std::vector<AllOps> all;
  for (DType t : kTypes) {
    all.emplace_back(t, 333);
    ask({&all.back().b.g, 1});
  }
  for (AllOps& a : all) {
    check(a.b.g, a.memory, 4e-6);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaTileValues, SpecialValues) {
  const std::vector<float> x{kNan, kInf, -kInf, 0.f, -0.f, 1e30f, -1e30f, -1.f};
  AllOps all(DType::f32, int64_t(x.size()));
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t k = 0; k < 4; ++k) all.memory[k].at<float>(int64_t(i)) = k == 1 ? 0.5f : x[i];
  run(all.b.g, all.memory);
  const std::vector<std::pair<Op, std::vector<float>>> want{
      {Op::exp, {kNan, kInf, 0, 1, 1, kInf, 0, 0.36787944f}},
      {Op::expm1, {kNan, kInf, -1, 0, -0.f, kInf, -1, -0.63212055f}},
      {Op::log, {kNan, kInf, kNan, -kInf, -kInf, 69.07755f, kNan, kNan}},
      {Op::log1p, {kNan, kInf, kNan, 0, -0.f, 69.07755f, kNan, -kInf}},
      {Op::tanh, {kNan, 1, -1, 0, -0.f, 1, -1, -0.7615942f}},
      {Op::erf, {kNan, 1, -1, 0, -0.f, 1, -1, -0.8427008f}},
      {Op::sigmoid, {kNan, 1, 0, 0.5f, 0.5f, 1, 0, 0.26894143f}},
      {Op::softplus, {kNan, kInf, 0, 0.6931472f, 0.6931472f, 1e30f, 0, 0.31326166f}},
      {Op::sqrt, {kNan, kInf, kNan, 0, -0.f, 1e15f, kNan, kNan}},
      {Op::relu, {kNan, kInf, 0, 0, 0, 1e30f, 0, 0}},
      {Op::sign, {kNan, 1, -1, 0, -0.f, 1, -1, -1}},
      {Op::is_finite, {0, 0, 0, 1, 1, 1, 1, 1}},
      {Op::maximum, {kNan, kInf, 0.5f, 0.5f, 0.5f, 1e30f, 0.5f, 0.5f}},
      {Op::minimum, {kNan, 0.5f, -kInf, 0, -0.f, 0.5f, -1e30f, -1}},
      {Op::gelu_tanh, {kNan, kInf, 0, 0, 0, 1e30f, 0, -0.15880801f}},
      {Op::gelu_erf, {kNan, kInf, 0, 0, 0, 1e30f, 0, -0.15865526f}},
      {Op::silu, {kNan, kInf, 0, 0, 0, 1e30f, 0, -0.26894143f}},
      {Op::gelu_tanh_grad, {kNan, 1, 0, 0.5f, 0.5f, 1, 0, -0.08296409f}},
      {Op::gelu_erf_grad, {kNan, 1, 0, 0.5f, 0.5f, 1, 0, -0.08331547f}},
      {Op::silu_grad, {kNan, 1, 0, 0.5f, 0.5f, 1, 0, 0.07232949f}},
  };
  for (const auto& [op, values] : want) {
    const size_t at = 5 + size_t(std::find(all.ops.begin(), all.ops.end(), op) - all.ops.begin());
    for (size_t i = 0; i < x.size(); ++i) {
      const double got = all.memory[at].get(int64_t(i)), w = values[i];
      EXPECT_TRUE((std::isnan(got) && std::isnan(w)) || got == w || std::fabs(got - w) < 4e-7 * std::max(std::fabs(w), w == 0 ? 1e-6 : 0))
          << name(op) << " of " << x[i] << " is " << got << ", not " << w;
    }
  }
}

TEST_F(CudaTileValues, CastsBetweenAllTypes) {
  for (bool negative : {false, true}) {
    Build b(Form::map, {133});
    std::vector<Memory> m;
    for (DType from : kTypes) {
      const int x = b.in(from);
      m.emplace_back(from, 133).fill(3, negative && from != DType::u8 ? -90 : 0, 90);
      for (DType to : kTypes) {
        if (negative && to == DType::u8) continue;
        b.out(b.op(Op::cast, to, x));
        m.emplace_back(to, 133);
      }
    }
    check(b.g, m, 0);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaTileValues, FloatsOutOfRangeBecomeTheNearestIntegerAndWrap) {
  Build b(Form::map, {6});
  const int x = b.in();
  b.out(b.op(Op::cast, DType::i64, x)), b.out(b.op(Op::cast, DType::i32, x)), b.out(b.op(Op::cast, DType::u8, x));
  std::vector<Memory> m{{DType::f32, 6}, {DType::i64, 6}, {DType::i32, 6}, {DType::u8, 6}};
  const float in[] = {kNan, kInf, -kInf, 1e20f, 5e9f, -1.5f};
  std::memcpy(m[0].data(), in, sizeof in);
  run(b.g, m);
  const int64_t most = std::numeric_limits<int64_t>::max(), want[] = {0, most, -most - 1, most, 5000000000, -1};
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(m[1].at<int64_t>(i), want[i]);
    EXPECT_EQ(m[2].at<int32_t>(i), int32_t(uint32_t(want[i])));
    EXPECT_EQ(m[3].at<uint8_t>(i), uint8_t(want[i]));
  }
}

TEST_F(CudaTileValues, RandomNumbersMatchTheHost) {
  for (int64_t cols : {64, 33}) {
    Build b(Form::map, {5, cols});
    const int seed = b.load(b.operand(), DType::i64, {0, 0}), step = b.load(b.operand(), DType::i64, {0, 0}), base = b.load(b.operand(), DType::i64, {0, 0});
    auto random = [&](Op op, DType t, Shape strides, int offset, int from) {
      TileNode n;
      n.kind = Kind::random, n.op = op, n.dtype = t, n.in = {seed, step, from}, n.access = b.access(-1, DType::i64, strides, offset), n.stream = 77;
      b.out(b.push(n));
    };
    random(Op::random_uniform, DType::f32, {cols, 1}, 0, -1), random(Op::random_uniform, DType::f32, {cols, 1}, 4, base);
    random(Op::random_bits, DType::i32, {cols, 1}, 1, -1), random(Op::random_bits, DType::i32, {1, 5}, 0, -1);
    std::vector<Memory> m{{DType::i64, 1},        {DType::i64, 1},        {DType::i64, 1},       {DType::f32, 5 * cols},
                          {DType::f32, 5 * cols}, {DType::i32, 5 * cols}, {DType::i32, 5 * cols}};
    m[0].at<int64_t>(0) = 0x1234567890abcll, m[1].at<int64_t>(0) = 42, m[2].at<int64_t>(0) = int64_t(1) << 33;
    check(b.g, m, 0);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaTileValues, ReportsBadIndices) {
  const int64_t n = 37, d = 24, vocabulary = 11;
  Build b(Form::map, {n, d});
  const int ids = b.load(b.operand(), DType::i64, {1, 0});
  const int x = b.load(b.operand(), DType::bf16, {0, 1});
  TileAccess& a = b.g.accesses.back();
  a.gather = ids, a.gather_stride = d, a.gather_size = vocabulary;
  b.out(x);
  std::vector<Memory> m{{DType::i64, n}, {DType::bf16, vocabulary * d}, {DType::bf16, n * d}};
  m[0].fill(1, 0, double(vocabulary)), m[1].fill(2);
  check(b.g, m, 0);
  EXPECT_EQ(run(b.g, m).fault.raised, 0);
  for (int64_t bad : {int64_t(11), int64_t(-1), int64_t(1) << 40}) {
    m[0].set(7, double(bad));
    const FaultRecord fault = run(b.g, m).fault;
    EXPECT_EQ(fault.raised, 1);
    EXPECT_EQ(fault.value, bad);
    EXPECT_EQ(fault.limit, vocabulary);
  }
  Build c(Form::map, {n});
  const int target = c.in(DType::i64);
  TileNode check_node;
  check_node.kind = Kind::check, check_node.in[0] = target, check_node.value = double(vocabulary), check_node.access = c.access(-1, DType::i64, {1}, 1000);
  c.out(c.push(check_node));
  std::vector<Memory> k{{DType::i64, n}, {DType::f32, n}};
  k[0].fill(1, 0, double(vocabulary)), k[0].set(9, 12);
  const FaultRecord fault = run(c.g, k).fault;
  EXPECT_EQ(fault.value, 12);
  EXPECT_EQ(fault.position, 1009);
  for (int64_t i = 0; i < n; ++i) EXPECT_EQ(std::isnan(k[1].get(i)), i == 9);
}

// Reads that are contiguous across the output go through shared memory, bounds-checked, together with ordinary ones.
TEST_F(CudaTileValues, TransposedReads) {
  for (DType t : {DType::f32, DType::bf16, DType::i64}) {
    const int64_t a = 3, rows = 67, cols = 130;
    Build b(Form::map, {a, rows, cols});
    const int x = b.load(b.operand(), t, {1, a, a * rows}), y = b.load(b.operand(), t, {rows * cols, 1, rows});
    b.g.accesses.back().bounds = {{1, 2, 60}, {2, 0, 100}};
    const int z = b.in(t), row = b.load(b.operand(), t, {0, 1, 0});
    b.out(b.op(Op::add, t, b.op(Op::add, t, x, y), b.op(Op::add, t, z, row)));
    std::vector<Memory> m{{t, a * rows * cols}, {t, a * rows * cols}, {t, a * rows * cols}, {t, rows}, {t, a * rows * cols}};
    for (size_t k = 0; k < 4; ++k) m[k].fill(uint32_t(k), -9, 9);
    check(b.g, m, 1e-6);
    if (HasFatalFailure()) return;
  }
}

// Hundreds of updates of the same kind take few launches, in place, whatever their sizes.
TEST_F(CudaTileValues, ManyGroupsInOneLaunch) {
  std::vector<TileGroup> groups;
  std::vector<Memory> memory, want;
  for (int k = 0; k < 70; ++k) {
    const int64_t n = k % 7 == 0 ? 5003 : 1 + k * 3;
    Build b(Form::map, {n});
    const int p = b.in(), g = b.in(DType::bf16), rate = b.load(b.operand(), DType::f32, {0});
    b.store(b.op(Op::sub, p, b.op(Op::mul, b.op(Op::cast, g), rate)), {1}, 0, 0);
    std::vector<Memory> m{{DType::f32, n}, {DType::bf16, n}, {DType::f32, 1}};
    for (size_t i = 0; i < 3; ++i) m[i].fill(uint32_t(k + 5 * int(i)));
    groups.push_back(b.g);
    memory.insert(memory.end(), m.begin(), m.end());
    evaluate(b.g, m);
    want.insert(want.end(), m.begin(), m.end());
  }
  EXPECT_LE(run(groups, memory).launches, 2);
  compare(groups[0], memory, want, 1e-6);
}

// Sums of squares of tensors of any size, each to its own scalar.
TEST_F(CudaTileValues, ManyReductionsInOneLaunch) {
  std::vector<TileGroup> groups;
  std::vector<Memory> memory, want;
  for (int64_t n : {40000, 65536, 131072, 70000}) {
    Build b(Form::row, {n}, 1);
    const int x = b.in();
    b.store(b.reduce(Op::reduce_sum, b.op(Op::mul, x, x)), {0});
    std::vector<Memory> m{{DType::f32, n}, {DType::f32, 1}};
    m[0].fill(uint32_t(n));
    groups.push_back(b.g);
    memory.insert(memory.end(), m.begin(), m.end());
    evaluate(b.g, m);
    want.insert(want.end(), m.begin(), m.end());
  }
  EXPECT_EQ(run(groups, memory).launches, 2);
  compare(groups[0], memory, want, 1e-5);
}

TEST_F(CudaTileValues, EpilogueReadsSumsFromMemory) {
  const Shape s{2, 37, 53};
  Build b(Form::map, s);
  const int sums = b.push({});
  b.g.nodes[size_t(sums)].access = b.access(-1, DType::f32, {37 * 53, 53, 1});
  b.g.accumulator = b.g.nodes[size_t(sums)].access;
  int y = b.op(Op::add, sums, b.load(b.operand(), DType::f32, {0, 0, 1}));
  y = b.op(Op::add, b.op(Op::gelu_tanh, y), b.load(b.operand(), DType::f32, {53, 106, 1}));
  b.store(b.op(Op::cast, DType::bf16, y), {37 * 53, 53, 1});
  std::vector<Memory> m{{DType::f32, 53}, {DType::f32, 2 * 37 * 53}, {DType::bf16, s.numel()}, {DType::f32, s.numel()}};
  m[0].fill(1), m[1].fill(2), m[3].fill(3);
  auto kernel = make_epilogue_kernel(b.g, test::CudaDevice::the().chip());
  run(*kernel, m);
  for (int64_t i = 0; i < s.numel(); ++i) {
    const int64_t col = i % 53, row = i / 53 % 37, batch = i / 53 / 37;
    const double want = scalar_op(Op::gelu_tanh, DType::f32, m[3].get(i) + m[0].get(col), 0, 0) + m[1].get(batch * 53 + row * 106 + col);
    ASSERT_NEAR(m[2].get(i), want, 0x1p-8 * (1 + std::fabs(want)));
  }
}

}  // namespace
}  // namespace ridge::cuda::tile_test
