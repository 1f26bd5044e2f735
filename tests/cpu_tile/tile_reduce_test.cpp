// Row and column groups against the scalar evaluator.
#include "machine/features.h"
#include "tile_harness.h"

namespace ridge::cpu::tile_test {
namespace {

Build softmax(Shape domain, int reduced, bool streaming = false, Form form = Form::row) {
  Build b(form, domain, reduced);
  int x = b.in(), e = b.op(Op::exp, b.op(Op::sub, x, b.reduce(Op::reduce_max, x)));
  b.out(b.op(Op::div, e, b.reduce(Op::reduce_sum, e)));
  b.g.accesses.back().streaming = streaming;
  return b;
}

Build layer_norm(int64_t rows, int64_t cols, DType t = DType::f32) {
  Build b(Form::row, {rows, cols}, 1);
  auto wide = [&](int v) { return t == DType::f32 ? v : b.op(Op::cast, v); };
  int x = wide(b.in(t)), gamma = wide(b.load(b.operand(), t, {0, 1})), beta = b.load(b.operand(), DType::f32, {0, 1});
  int scale = b.literal(1.0 / double(cols));
  int mean = b.op(Op::mul, b.reduce(Op::reduce_sum, x), scale);
  int centred = b.op(Op::sub, x, mean);
  int var = b.op(Op::mul, b.reduce(Op::reduce_sum, b.op(Op::mul, centred, centred)), scale);
  int rstd = b.op(Op::rsqrt, b.op(Op::add, var, b.literal(1e-5)));
  int y = b.op(Op::add, b.op(Op::mul, b.op(Op::mul, centred, rstd), gamma), beta);
  b.out(t == DType::f32 ? y : b.op(Op::cast, t, y));
  b.store(mean, {1, 0});
  b.store(rstd, {1, 0});
  return b;
}

TEST(TileRow, Softmax) {
  for (Shape s :
       {Shape{1, 1}, Shape{3, 7}, Shape{31, 33}, Shape{2, 5, 64}, Shape{5, 768}, Shape{2, 5003}, Shape{1, 120001}, Shape{70, 3}, Shape{3, 0}, Shape{0, 3}}) {
    for (int reduced : {1, s.rank()}) {
      Build b = softmax(s, reduced);
      std::vector<Memory> m(2, Memory(DType::f32, s.numel()));
      m[0].fill(1, -20, 20);
      check(b.g, m, 1e-6);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TileRow, LayerNorm) {
  for (DType t : {DType::f32, DType::bf16}) {
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {7, 31}, {100, 64}, {33, 768}, {3, 4097}, {2, 100003}, {1, 400000}}) {
      Build b = layer_norm(rows, cols, t);
      std::vector<Memory> m{{t, rows * cols}, {t, cols}, {DType::f32, cols}, {t, rows * cols}, {DType::f32, rows}, {DType::f32, rows}};
      for (size_t k = 0; k < 3; ++k) m[k].fill(uint32_t(k));
      check(b.g, m, 2e-5);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TileRow, EveryReductionOfEveryLength) {
  for (DType t : {DType::f32, DType::i32, DType::i64}) {
    for (Op op : {Op::reduce_sum, Op::reduce_max, Op::reduce_min, Op::reduce_prod, Op::arg_max, Op::arg_min}) {
      const bool arg = op == Op::arg_max || op == Op::arg_min;
      for (auto [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {5, 3}, {40, 17}, {3, 1009}, {2, 9001}, {1, 200003}, {1000, 2}}) {
        Build b(Form::row, {rows, cols}, 1);
        b.store(b.reduce(op, b.in(t), arg ? DType::i64 : t), {1, 0});
        std::vector<Memory> m{{t, rows * cols}, {arg ? DType::i64 : t, rows}};
        const bool prod = op == Op::reduce_prod;
        m[0].fill(1, prod ? 1 : -50, prod ? (is_float(t) ? 1.001 : 2) : 50);
        check(b.g, m, prod ? 1e-6 + 3e-7 * double(cols) : 1e-5 * std::sqrt(double(cols)));  // elements up to 50
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(TileRow, NanWinsAndTiesGoToTheFirst) {
  for (int64_t cols : {5, 33, 5003, 100001}) {
    Build b(Form::row, {4, cols}, 1);
    int x = b.in();
    for (Op op : {Op::reduce_max, Op::reduce_min}) b.store(b.reduce(op, x), {1, 0});
    for (Op op : {Op::arg_max, Op::arg_min}) b.store(b.reduce(op, x, DType::i64), {1, 0});
    std::vector<Memory> m{{DType::f32, 4 * cols}, {DType::f32, 4}, {DType::f32, 4}, {DType::i64, 4}, {DType::i64, 4}};
    m[0].fill(1);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    m[0].at<float>(cols - 1) = nan, m[0].at<float>(cols + 2) = nan, m[0].at<float>(cols + 4) = nan;
    for (int64_t i = 0; i < cols; ++i) m[0].at<float>(2 * cols + i) = 1.f;
    for (int64_t i = 0; i < cols; ++i) m[0].at<float>(3 * cols + i) = -std::numeric_limits<float>::infinity();
    check(b.g, m, 0);
    if (HasFatalFailure()) return;
  }
}

TEST(TileRow, StridedTransposedAndSeveralAxes) {
  // [4, 3, 5, 6] with the last two axes reduced, read in several layouts
  Shape s{4, 3, 5, 6};
  for (Shape strides : {Shape{90, 30, 6, 1}, Shape{1, 4, 12, 60}, Shape{90, 30, 1, 5}, Shape{30, 120, 6, 1}, Shape{0, 30, 6, 1}, Shape{90, 30, 6, 0}}) {
    Build b(Form::row, s, 2);
    int x = b.load(b.operand(), DType::f32, strides), w = b.load(b.operand(), DType::f32, {0, 0, 1, 0}), row = b.load(b.operand(), DType::f32, {1, 0, 0, 0});
    int y = b.op(Op::mul, x, w), sum = b.reduce(Op::reduce_sum, y), top = b.reduce(Op::arg_max, y, DType::i64);
    b.out(b.op(Op::sub, b.op(Op::add, y, row), sum));
    b.store(sum, {3, 1, 0, 0});
    b.store(top, {3, 1, 0, 0});
    std::vector<Memory> m{{DType::f32, 360}, {DType::f32, 5}, {DType::f32, 4}, {DType::f32, 360}, {DType::f32, 12}, {DType::i64, 12}};
    for (size_t k = 0; k < 3; ++k) m[k].fill(uint32_t(k));
    check(b.g, m, 1e-5);
    if (HasFatalFailure()) return;
  }
}

TEST(TileRow, ManyShortRows) {
  const int64_t rows = 1 << 20;
  Build b(Form::row, {rows, 3}, 1);
  b.store(b.reduce(Op::reduce_sum, b.in()), {1, 0});
  std::vector<Memory> m{{DType::f32, 3 * rows}, {DType::f32, rows}};
  m[0].fill(1);
  check(b.g, m, 1e-6);
}

TEST(TileRow, InPlaceAndConstantInput) {
  Build b(Form::row, {7, 300}, 1);
  int x = b.in();
  int sum = b.reduce(Op::reduce_sum, b.literal(0.5)), norm = b.reduce(Op::reduce_sum, b.op(Op::mul, x, x));
  int weight = b.reduce(Op::reduce_max, b.load(b.operand(), DType::f32, {0, 1}));
  b.store(b.op(Op::mul, b.op(Op::mul, x, b.op(Op::rsqrt, norm)), b.op(Op::mul, weight, sum)), {300, 1}, 0, 0);
  std::vector<Memory> m{{DType::f32, 2100}, {DType::f32, 300}};
  m[0].fill(1), m[1].fill(2);
  check(b.g, m, 3e-5);
}

// Softmax cross-entropy with a gathered target and the exponentials used after the second sum
TEST(TileRow, CrossEntropyWithGather) {
  for (int64_t vocabulary : {11, 5003, 150001}) {
    const int64_t rows = 6;
    Build b(Form::row, {rows, vocabulary}, 1);
    int target = b.load(b.operand(), DType::i64, {1, 0}), x = b.in();
    int picked = b.load(1, DType::f32, {vocabulary, 0});
    auto& a = b.g.accesses.back();
    a.gather = target, a.gather_stride = 1, a.gather_size = vocabulary;
    int top = b.reduce(Op::reduce_max, x), e = b.op(Op::exp, b.op(Op::sub, x, top)), sum = b.reduce(Op::reduce_sum, e);
    b.store(b.op(Op::sub, b.op(Op::add, b.op(Op::log, sum), top), picked), {1, 0});
    int hot = b.op(Op::cast, b.op(Op::equal, DType::boolean, b.index(DType::i64, {0, 1}), target));
    b.out(b.op(Op::sub, b.op(Op::div, e, sum), hot));
    std::vector<Memory> m{{DType::i64, rows}, {DType::f32, rows * vocabulary}, {DType::f32, rows}, {DType::f32, rows * vocabulary}};
    m[0].fill(5, 0, double(vocabulary)), m[1].fill(1, -9, 9);
    check(b.g, m, 2e-6);
    if (HasFatalFailure()) return;
  }
}

// The exponentials and the mask are used after the sums. Both of a row this long do not fit: only the exponentials are kept.
TEST(TileRow, KeepsExponentialsWhereNotEverythingFits) {
  const int64_t rows = 3, classes = 50021;
  Build b = cross_entropy(rows, classes);
  check(b.g, cross_entropy_memory(rows, classes), 2e-6);
  const int64_t kept = plan_tile_group(b.g)->tile_bytes;
  EXPECT_GT(kept, 4 * classes);
  EXPECT_LT(kept, 2 * 4 * classes);
}

// Few long rows are shared by all threads, part by part; enough rows are not, because parts keep nothing. The bits are the same.
TEST(TileRow, FewLongRowsAreSharedByAllThreads) {
  const int64_t classes = 50257;
  for (auto [rows, threads, units] :
       {std::array<int64_t, 3>{1, 1, 1}, {1, 2, 24}, {1, 16, 24}, {16, 1, 16}, {16, 2, 16}, {16, 13, 256}, {16, 64, 256}, {64, 512, 64}}) {
    Build b = cross_entropy(rows, classes);
    std::vector<Memory> m = cross_entropy_memory(rows, classes), alone = m;
    EXPECT_EQ(run(b.g, m, Split::thirds, int(threads)).units, units) << rows << " rows, " << threads << " threads";
    run(b.g, alone);
    for (size_t k = 0; k < m.size(); ++k) ASSERT_EQ(m[k].bytes, alone[k].bytes) << rows << " rows, " << threads << " threads";
  }
}

TEST(TileRow, SumOfManyIsAccurate) {
  const int64_t n = 1 << 22;
  Build b(Form::row, {n}, 1);
  b.store(b.reduce(Op::reduce_sum, b.in()), {0});
  std::vector<Memory> m{{DType::f32, n}, {DType::f32, 1}};
  m[0].fill(1, 0, 1);
  double exact = 0;
  for (int64_t i = 0; i < n; ++i) exact += m[0].get(i);
  EXPECT_GT(run(b.g, m).tasks, 1u);
  EXPECT_NEAR(m[1].get(0), exact, exact * 4 * 0x1p-24);
}

TEST(TileColumn, EveryReduction) {
  for (DType t : {DType::f32, DType::i32, DType::i64}) {
    for (Op op : {Op::reduce_sum, Op::reduce_max, Op::reduce_min, Op::reduce_prod, Op::arg_max, Op::arg_min}) {
      const bool arg = op == Op::arg_max || op == Op::arg_min;
      for (Shape s : {Shape{1, 1, 1}, Shape{2, 3, 5}, Shape{1, 100, 33}, Shape{1, 5003, 7}, Shape{3, 31, 1009}, Shape{1, 40000, 3}, Shape{2, 0, 4}}) {
        if (s.numel() == 0 && op != Op::reduce_sum) continue;
        Build b(Form::column, s, 1);
        b.store(b.reduce(op, b.in(t), arg ? DType::i64 : t), {s[2], 0, 1});
        std::vector<Memory> m{{t, s.numel()}, {arg ? DType::i64 : t, s[0] * s[2]}};
        const bool prod = op == Op::reduce_prod;
        m[0].fill(1, prod ? 1 : -50, prod ? (is_float(t) ? 1.001 : 2) : 50);
        if (s.numel() == 0) {
          run(b.g, m);
          for (int64_t i = 0; i < m[1].size; ++i) EXPECT_EQ(m[1].get(i), 0);
          continue;
        }
        check(b.g, m, prod ? 1e-6 + 3e-7 * double(s[1]) : 1e-5 * std::sqrt(double(s[1])));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Gradients of gamma and beta, with the elementwise product also stored and an epilogue on the sums
TEST(TileColumn, NormGradients) {
  for (auto [rows, cols] : {std::pair<int64_t, int64_t>{3, 5}, {1000, 64}, {2049, 768}, {30, 3001}}) {
    Build b(Form::column, {rows, cols}, 1);
    int x = b.in(), dy = b.in(DType::bf16), mean = b.load(b.operand(), DType::f32, {1, 0}), old = b.load(b.operand(), DType::f32, {0, 1});
    int wide = b.op(Op::cast, dy), product = b.op(Op::mul, b.op(Op::sub, x, mean), wide);
    b.store(b.op(Op::add, b.reduce(Op::reduce_sum, product), old), {0, 1});
    b.store(b.reduce(Op::reduce_sum, wide), {0, 1});
    b.out(product);
    std::vector<Memory> m{{DType::f32, rows * cols}, {DType::bf16, rows * cols}, {DType::f32, rows},       {DType::f32, cols},
                          {DType::f32, cols},        {DType::f32, cols},         {DType::f32, rows * cols}};
    for (size_t k = 0; k < 4; ++k) m[k].fill(uint32_t(k));
    check(b.g, m, 1e-4);
    if (HasFatalFailure()) return;
  }
}

// Narrow strips that stay in the cache, one strip split into parts, and columns that are neither.
const Shape kColumnShapes[] = {Shape{1, 1},      Shape{3, 7},    Shape{31, 33},     Shape{2, 5, 64},    Shape{64, 1100},
                               Shape{700, 1100}, Shape{9001, 3}, Shape{30000, 5},   Shape{5, 1, 40, 3}, Shape{3, 20000},
                               Shape{0, 3},      Shape{3, 0},    Shape{40, 700, 8}, Shape{2, 3000, 40}, Shape{1200, 1, 64}};

TEST(TileColumn, Softmax) {
  for (const Shape& s : kColumnShapes) {
    for (int reduced : {1, s.rank() - 1}) {
      Build b = softmax(s, reduced, false, Form::column);
      std::vector<Memory> m(2, Memory(DType::f32, s.numel()));
      m[0].fill(1, -20, 20);
      check(b.g, m, 1e-6);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TileColumn, NormWithWeightsStatisticsAndPositions) {
  for (const Shape& s : kColumnShapes) {
    if (s.numel() == 0) continue;
    const int rank = s.rank(), reduced = rank - 1;
    const int64_t length = s.numel() / s.back();
    Shape along = Shape::filled(rank, 0), down = contiguous_strides(s);
    along[rank - 1] = 1;
    for (int a = 0; a < rank; ++a) down[a] = a == rank - 1 ? 0 : down[a] / s.back();
    Build b(Form::column, s, reduced);
    int x = b.in(DType::bf16), wide = b.op(Op::cast, x), gamma = b.load(b.operand(), DType::f32, down), beta = b.load(b.operand(), DType::f32, along);
    int scale = b.literal(1.0 / double(length));
    int mean = b.op(Op::mul, b.reduce(Op::reduce_sum, wide), scale), centred = b.op(Op::sub, wide, mean);
    int var = b.op(Op::mul, b.reduce(Op::reduce_sum, b.op(Op::mul, centred, centred)), scale);
    int y = b.op(Op::mul, centred, b.op(Op::rsqrt, b.op(Op::add, var, b.literal(1e-2))));
    b.store(b.reduce(Op::arg_max, y, DType::i64), along);
    b.out(b.op(Op::add, b.op(Op::mul, y, gamma), beta));
    b.store(mean, along);
    std::vector<Memory> m{{DType::bf16, s.numel()}, {DType::f32, length},    {DType::f32, s.back()},
                          {DType::i64, s.back()},   {DType::f32, s.numel()}, {DType::f32, s.back()}};
    for (size_t k = 0; k < 3; ++k) m[k].fill(uint32_t(k));
    check(b.g, m, 2e-5);
    if (HasFatalFailure()) return;
  }
}

TEST(TileColumn, SeveralReducedAxesInAnyLayout) {
  Shape s{3, 4, 5, 6, 35};
  const int64_t n = s.numel();
  for (Shape strides : {contiguous_strides(s), Shape{1, 3, 12, 60, 360}, Shape{0, 1050, 210, 35, 1}, Shape{4200, 35, 140, 700, 1}}) {
    Build b(Form::column, s, 3);
    int x = b.load(b.operand(), DType::f32, strides), w = b.load(b.operand(), DType::f32, {0, 1, 0, 4, 0});
    int y = b.op(Op::mul, x, w);
    b.store(b.op(Op::neg, b.reduce(Op::reduce_sum, y)), {35, 0, 0, 0, 1});
    b.store(b.reduce(Op::arg_min, y, DType::i64), {35, 0, 0, 0, 1});
    std::vector<Memory> m{{DType::f32, n}, {DType::f32, 40}, {DType::f32, 105}, {DType::i64, 105}};
    m[0].fill(1), m[1].fill(2);
    check(b.g, m, 2e-5);
    if (HasFatalFailure()) return;
  }
}

TEST(TileEpilogue, ReadsSumsAndStoresBlocks) {
  Shape s{2, 37, 53};
  Build b(Form::map, s);
  int acc = b.push({});
  b.g.nodes[size_t(acc)].access = b.access(-1, DType::f32, {37 * 53, 53, 1});
  b.g.accumulator = b.g.nodes[size_t(acc)].access;
  int y = b.op(Op::add, acc, b.load(b.operand(), DType::f32, {0, 0, 1}));
  y = b.op(Op::add, b.op(Op::gelu_tanh, y), b.load(b.operand(), DType::f32, {53, 106, 1}));
  b.store(b.op(Op::cast, DType::bf16, y), {37 * 53, 53, 1});
  Memory bias(DType::f32, 53), residual(DType::f32, 2 * 37 * 53), out(DType::bf16, s.numel()), sums(DType::f32, s.numel());
  bias.fill(1), residual.fill(2), sums.fill(3);
  auto epilogue = make_tile_epilogue(b.g);
  std::byte* bases[] = {bias.data(), residual.data(), out.data()};
  std::vector<std::byte> scratch(size_t(epilogue->scratch_bytes()) + 64);
  Fault fault;
  Worker worker;
  worker.bases = bases, worker.fault = &fault;
  worker.scratch = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
  const Ref refs[] = {{0, 0}, {1, 0}, {2, 0}};
  MatmulEpilogue e = epilogue->bind(refs);
  for (int64_t batch = 0; batch < 2; ++batch)
    for (int64_t r = 0; r < 37; r += 14)
      for (int64_t c = 0; c < 53; c += 32)
        e.run(e.context, worker, batch, r, std::min<int64_t>(14, 37 - r), c, std::min<int64_t>(32, 53 - c), &sums.at<float>((batch * 37 + r) * 53 + c), 53);
  EXPECT_TRUE(out.intact());
  for (int64_t i = 0; i < s.numel(); ++i) {
    int64_t col = i % 53, row = i / 53 % 37, batch = i / 53 / 37;
    double want = scalar_op(Op::gelu_tanh, DType::f32, sums.get(i) + bias.get(col), 0, 0) + residual.get(batch * 53 + row * 106 + col);
    ASSERT_NEAR(out.get(i), want, 0x1p-8 * (1 + std::fabs(want)));
  }
}

// Behind a product in bf16, an activation needs one pass: it rounds the sums, stores them, and stores its own result.
TEST(TileEpilogue, AnActivationInBf16IsOnePass) {
  const int64_t rows = 29, cols = 147;
  Build b(Form::map, {1, rows, cols});
  int acc = b.push({});
  b.g.nodes[size_t(acc)].access = b.access(-1, DType::f32, {0, cols, 1});
  b.g.accumulator = b.g.nodes[size_t(acc)].access;
  const int before = b.op(Op::cast, DType::bf16, acc);
  b.store(before, {0, cols, 1});
  b.store(b.op(Op::cast, DType::bf16, b.op(Op::gelu_tanh, b.op(Op::cast, before))), {0, cols, 1});
  if (has_bf16(isa_tier())) {
    EXPECT_EQ(plan_tile_group(b.g, true)->phases[0].body.size(), 1u);
  }
  Memory stored(DType::bf16, rows * cols), out(DType::bf16, rows * cols), sums(DType::f32, rows * cols);
  sums.fill(5);
  auto epilogue = make_tile_epilogue(b.g);
  std::byte* bases[] = {stored.data(), out.data()};
  std::vector<std::byte> scratch(size_t(epilogue->scratch_bytes()) + 64);
  Fault fault;
  Worker worker;
  worker.bases = bases, worker.fault = &fault;
  worker.scratch = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
  const Ref refs[] = {{0, 0}, {1, 0}};
  MatmulEpilogue e = epilogue->bind(refs);
  for (int64_t r = 0; r < rows; r += 14) e.run(e.context, worker, 0, r, std::min<int64_t>(14, rows - r), 0, cols, &sums.at<float>(r * cols), cols);
  EXPECT_TRUE(stored.intact() && out.intact());
  for (int64_t i = 0; i < rows * cols; ++i) {
    ASSERT_EQ(stored.at<uint16_t>(i), f32_to_bf16(sums.at<float>(i))) << i;
    const double want = scalar_op(Op::gelu_tanh, DType::f32, stored.get(i), 0, 0);
    ASSERT_NEAR(out.get(i), want, 0x1p-8 * (1 + std::fabs(want))) << i;
  }
}

}  // namespace
}  // namespace ridge::cpu::tile_test
